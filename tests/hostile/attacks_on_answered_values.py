"""A coordinator that repeats a regression after one patient's visit or with another range, and a lost memory. The sums
of both runs are those of the real trainer. All other hospitals send the same numbers twice, so the difference of two
sums is the difference of this hospital's numbers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import yaml

from protos.plan.prior_plan import PriorPlan
from protos.plan.prior_sums import PRIOR_MOMENT_SCALE
from protos.wire.messages import Stage
from site_agent.desk import after_rounds
from site_agent.hospital import read_hospital
from site_agent.trainer import answered_values
from site_agent.trainer.before_rounds import begin_prior
from site_agent.trainer.data import dataset
from site_agent.trainer.disk import site_secret
from site_agent.trainer.worker import Worker
from site_agent.trainer_socket import Failed, Prepare, Trained
from tests.hostile.attack import Attack, in_copy, patched, scratch
from tests.site_agent.trainer.asked import ScriptedSocket, as_bytes, question
from tests.site_agent.trainer.prior.prior_federation import concepts_of, make_hospital, prior_plan
from tests.site_agent.trainer.sites import approve_plan

TABLE = "breast-cancer"


def hospital(folder: Path) -> Path:
    """A hospital whose table names its patients."""
    config = make_hospital(folder, "ahus", TABLE)
    lines = (folder / "table.csv").read_text().splitlines()
    named = [f"{line},P{number:04d}" for number, line in enumerate(lines)]
    (folder / "table.csv").write_text("\n".join([lines[0] + ",who", *named[1:]]) + "\n")
    contract = yaml.safe_load((folder / "contract.yaml").read_text())
    contract["columns"].append({"name": "who", "role": "patient"})
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract))
    return config


def statistics(config: Path, plan: PriorPlan, memory: str = "") -> tuple[dict[str, int], str] | None:
    """The numbers of the first round, and the head of the memory, as the gate receives them; None if refused."""
    approve_plan(config, plan)
    zeros = np.zeros(plan.tensor.number_count, np.float32)
    asked = question(0, int(Stage.STATISTICS), as_bytes(zeros))
    socket = ScriptedSocket(Prepare(plan.run_name, plan.canonical, memory), asked)
    Worker(read_hospital(config), socket, after_rounds).serve()  # type: ignore[arg-type]
    answer = socket.answers[-1]
    if isinstance(answer, Failed):
        return None
    assert isinstance(answer, Trained)
    if answer.void:
        return None
    numbers: list[int] = np.frombuffer(answer.payload, "<i8").tolist()
    return dict(zip(plan.statistics_names, numbers, strict=True)), answer.memory


def _add_visits(folder: Path, count: int = 1) -> dict[str, float]:
    study = begin_prior(read_hospital(folder / "hospital.yaml"), prior_plan(TABLE))[0]
    lines = (folder / "table.csv").read_text().splitlines()
    cells = lines[1 + int(study._rows_of["training"][0])].split(",")
    cells[0] = "12.345"
    (folder / "table.csv").write_text("\n".join([*lines, *count * [",".join(cells)]]) + "\n")
    return {"value": 12.345, "outcome": float(cells[-2] == "0")}


def without_the_memory() -> AbstractContextManager[None]:
    """A site forgets which values its sums used."""
    return patched(answered_values, remember=lambda *used: None)


@contextmanager
def without_patients() -> Iterator[None]:
    """A site counts rows, and not their patients."""
    with (
        patched(answered_values, patients_of=lambda table, rows: None),
        patched(dataset, _patients=lambda table, rows: None),
    ):
        yield


def _without_the_witness() -> AbstractContextManager[None]:
    return patched(answered_values, require_head=lambda folder, head: None)


def one_more_visit(weakened: bool, lost: str = "", visits: int = 1) -> bool:
    """Repeat a regression after visits of one patient, and subtract: value and outcome of these visits."""
    plan, again = prior_plan(TABLE), prior_plan(TABLE, version=2)
    concept = plan.concepts[0]
    lacking = _without_the_witness if lost else without_the_memory if visits == 1 else without_patients
    with scratch() as folder, in_copy(weakened, lacking):
        config = hospital(folder / "site")
        if lost == "older":
            site_secret(folder / "site" / "state" / "models")
            shutil.copytree(folder / "site" / "state" / "models", folder / "copy")
        first = statistics(config, plan)
        assert first is not None
        if lost:
            shutil.rmtree(folder / "site" / "state" / "models")
        if lost == "older":
            shutil.copytree(folder / "copy", folder / "site" / "state" / "models")
        visit = _add_visits(folder / "site", visits)
        second = statistics(config, again, memory=first[1])
    if second is None:
        return False
    more = {name: second[0][name] - number for name, number in first[0].items()}
    value = more[f"sum {concept.name}"] / visits / PRIOR_MOMENT_SCALE * (concept.high - concept.low) + concept.low
    is_theirs = (more["outcomes"], more["sum outcome"]) == (visits, visits * visit["outcome"])
    return is_theirs and abs(value - visit["value"]) < 1e-6


def another_limit(weakened: bool) -> bool:
    """Repeat a regression with a range that replaces the largest value alone: its difference to the limit."""
    concepts = concepts_of(TABLE)
    with scratch() as folder:
        config = hospital(folder / "site")
        plan = prior_plan(TABLE)
        largest, second = _largest(config, plan)
        first_high, high = second + 2 * (largest - second), second + (largest - second) / 2
        wide, narrow = ([{**concepts[0], "high": limit}, *concepts[1:]] for limit in (first_high, high))
        with in_copy(weakened, without_the_memory):
            before = statistics(config, prior_plan(TABLE, concepts=wide))
            after = statistics(config, prior_plan(TABLE, concepts=narrow, version=2))
    assert before is not None
    if after is None:
        return False
    name, low = plan.columns[0].name, plan.concepts[0].low  # type: ignore[union-attr]
    sums = [
        found[0][f"sum {name}"] / PRIOR_MOMENT_SCALE * (limit - low) + low * found[0][f"count {name}"]
        for found, limit in ((before, first_high), (after, high))
    ]
    return abs(sums[0] - sums[1] + high - largest) < 1e-4


def _largest(config: Path, plan: PriorPlan) -> tuple[float, float]:
    """The two largest different training values of the first concept."""
    study = begin_prior(read_hospital(config), plan)[0]
    values = np.unique(study.part("training")[study.mapped[0].feature])  # type: ignore[union-attr]
    return float(values[-1]), float(values[-2])


ATTACKS = (
    Attack(name="regression-after-one-visit", without="the memory of the values that sums used", run=one_more_visit),
    Attack(
        name="regression-after-ten-visits-of-one-patient",
        tries="a regression is repeated after as many visits of one patient as the smallest cell has rows",
        without="the patients behind the rows that changed",
        run=partial(one_more_visit, visits=10),
    ),
    Attack(name="regression-with-another-limit", without="the memory of the values that sums used", run=another_limit),
    *(
        Attack(
            name=f"regression-with-a-memory-that-is-{lost}",
            tries=f"a regression is repeated after one visit, and the memory of answered values is {lost}",
            without="the witness of the memory in the audit log",
            run=partial(one_more_visit, lost=lost),
        )
        for lost in ("deleted", "older")
    ),
)
