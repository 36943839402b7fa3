"""Monitoring of a model in use: drift is reported by column, and figures are compared with the test's."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from protos.plan.documents import parse_document
from site_agent.desk.monitoring import LEVEL, _compared, monitor_lines, monitor_table
from site_agent.desk.use.new_rows import NewRows
from site_agent.hospital import Hospital
from site_agent.trainer.data.column_profile import profile_of
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Table
from tests.site_agent.desk.test_after_deployment import new_rows
from tests.site_agent.trainer.after_a_run import site_after_run


@pytest.fixture(scope="module")
def hospital(tmp_path_factory: pytest.TempPathFactory) -> Hospital:
    """A site after a run on real patients."""
    return site_after_run(tmp_path_factory.mktemp("site"), siloed_baseline=False)


def test_without_outcomes_inputs_are_watched_alone(hospital: Hospital, tmp_path: Path) -> None:
    """A table without the target has no quality, and the terminal reports it."""
    new = new_rows(hospital, tmp_path / "a.csv", {}, without="outcome")

    found = monitor_table(hospital, new, None)

    assert found["quality"] is None
    assert any("outcome is not known" in line for line in monitor_lines(found))


def test_without_a_required_column_the_others_are_compared(hospital: Hospital, tmp_path: Path) -> None:
    """The missing column is named, and no row has a prediction."""
    changed = new_rows(hospital, tmp_path / "new.csv", {}, without="mean_texture")

    facts = monitor_table(hospital, changed, None)
    (named,) = [line for line in facts["warnings"] if "no column" in str(line)]
    assert named == "The table has no column mean_texture, but the model requires this column."
    assert (
        "The model predicted no row of this table. Therefore the quality of the model on these rows was not computed."
    ) in monitor_lines(facts)


@pytest.mark.parametrize("is_turned", [False, True])
def test_a_model_that_got_worse_is_told(hospital: Hospital, tmp_path: Path, is_turned: bool) -> None:
    """Rows whose outcomes are exchanged have another area under the curve than the test, and other rows do not."""
    with Path(hospital.data.table).open(newline="") as file:
        rows = list(csv.DictReader(file))
    outcomes = sorted({row["outcome"] for row in rows})
    turned = {(place, "outcome"): outcomes[row["outcome"] == outcomes[0]] for place, row in enumerate(rows)}
    new = new_rows(hospital, tmp_path / "new.csv", turned if is_turned else {})

    found = monitor_table(hospital, new, None)

    told = [text for text in found["warnings"] if "worse on the new rows" in text]
    assert [text.split(". ")[1].split(" ")[0] for text in told] == (["AUROC", "Brier"] if is_turned else [])
    assert found["quality"]["is_worse"]["auroc"] is is_turned
    assert any(line.startswith("auroc ") and "at the test" in line for line in monitor_lines(found))
    assert json.loads(json.dumps(found, allow_nan=False)) == found


CONTRACT = parse_document(
    b"""
format: {header: true}
columns:
  - {name: age, role: feature, type: numeric, missing: median}
  - {name: ward, role: feature, type: categorical, codes: [a, b, c]}
  - {name: y, role: target, task: binary, positive: [1], negative: [0]}
""",
    Contract,
    source="",
    consequence="",
)


def made_up(seed: int, patients: int, rows_each: int = 1, shift: float = 0.0, missing: float = 0.05) -> Table:
    """Patients with equal rows; their ages moved by `shift` deviations."""
    generator, owners = np.random.default_rng(seed), np.repeat(np.arange(patients), rows_each)
    ages = np.where(generator.random(patients) < missing, np.nan, generator.normal(shift, 1, patients))
    wards = generator.choice(3, patients, p=[0.7, 0.28, 0.02]).astype(np.float64)
    features = {"age": ages[owners], "ward": wards[owners]}
    return Table(contract=CONTRACT, rows=len(owners), features=features, target=None, patients=tuple(map(str, owners)))


def warned(before: Table, new: Table) -> list[str]:
    """The columns of which monitoring says that they have changed."""
    who = np.unique(before.patients or (), return_inverse=True)[1].astype(np.int64)
    known = profile_of(CONTRACT, before, np.arange(before.rows), who)
    found = [_compared(one, known.patients, NewRows(table=new), LEVEL / 2) for one in known.columns]
    return [one["name"] for one in found if any("has changed" in text for text in one["warnings"])]


def test_without_drift_hardly_any_table_has_an_alarm() -> None:
    """At 1% more than 3 of 50 tables happen once in 600 times; equal rows of a patient are one."""
    for size, rows_each in ((250, 1), (120, 5)):
        alarms = [warned(made_up(seed, 250, rows_each), made_up(1000 + seed, size, rows_each)) for seed in range(50)]

        assert sum(bool(found) for found in alarms) <= 3


@pytest.mark.parametrize("change", [{"shift": 1.0}, {"missing": 0.4}])
def test_a_real_drift_is_found_and_named(change: dict[str, float]) -> None:
    """Ages that rose by a deviation, and ages that are no longer measured; the wards are as before."""
    for seed in range(10):
        assert warned(made_up(seed, 400), made_up(1000 + seed, 200, **change)) == ["age"]  # type: ignore[arg-type]  # both are float
