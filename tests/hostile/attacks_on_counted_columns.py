"""A coordinator that has a column counted twice, before and after one patient arrived, and subtracts the two sums."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import yaml

import site_agent.trainer.answered_values
from protos.plan.analyses import SUM_SCALE
from site_agent.hospital import read_hospital
from site_agent.trainer.answered_values import ReleasedBefore
from tests.hostile.attack import Attack, in_copy, patched, scratch
from tests.protos.examples import table_one_of
from tests.site_agent.trainer.sites import make_plan, make_site
from tests.site_agent.trainer.test_statistics import own_numbers

AGE = {"name": "mean-radius", "low": 0.0, "high": 40.0}
OF_THE_PATIENT = 17.25


def without_a_memory_of_values() -> AbstractContextManager[None]:
    """A site forgets which values it used."""
    return patched(site_agent.trainer.answered_values, remember=lambda *used: None)


def counting(version: int) -> Any:  # a statistics plan
    """A plan that counts one column."""
    return make_plan(**table_one_of(AGE), smallest_cell=5, version=version)


def _map(folder: Path) -> None:
    """The contract says that the first column of numbers records the concept."""
    contract = yaml.safe_load((folder / "contract.yaml").read_text())
    contract["columns"][1]["concept"] = AGE["name"]
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract))


def add_patient(folder: Path) -> None:
    """A patient and an unrelated column come into the hospital's table and contract."""
    lines = (folder / "table.csv").read_text().splitlines()
    cells = lines[1].split(",")
    cells[0], cells[1] = "P9999", str(OF_THE_PATIENT)
    lines = [f"{line},{1 + number % 3}" for number, line in enumerate([*lines, ",".join(cells)])]
    lines[0] = lines[0].rsplit(",", 1)[0] + ",unrelated"
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    contract = yaml.safe_load((folder / "contract.yaml").read_text())
    contract["columns"].append({"name": "unrelated", "role": "feature", "type": "numeric"})
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract))


def one_added_patient(weakened: bool) -> bool:
    """Count a column, wait for a patient, count it again after an unrelated column has joined, and subtract."""
    with scratch() as folder, in_copy(weakened, without_a_memory_of_values):
        config = make_site(folder)
        _map(folder)
        _, _, rows, _, total, *_ = own_numbers(read_hospital(config), counting(1), folder)
        add_patient(folder)
        try:
            _, _, more, _, later, *_ = own_numbers(read_hospital(config), counting(2), folder)
        except ReleasedBefore:
            return False
    return more == rows + 1 and abs((later - total) / SUM_SCALE * 40.0 - OF_THE_PATIENT) < 1e-3


ATTACKS = (
    Attack(
        name="statistics-of-one-added-patient",
        tries="the coordinator has a column counted before and after a patient came, and subtracts",
        without="the memory of each column's rows",
        run=one_added_patient,
    ),
)
