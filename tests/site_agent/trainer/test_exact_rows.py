"""The exact counts of training rows that a site sends over many studies."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from protos.plan.weighting import RowWeights
from protos.wire.messages import SiteReason
from site_agent.desk import after_rounds
from site_agent.hospital import read_hospital
from site_agent.trainer.before_rounds import released_count
from site_agent.trainer.choice import Measures
from site_agent.trainer.disk import recording
from site_agent.trainer.worker import Worker
from site_agent.trainer_socket import Failed, Prepare, Prepared
from tests.site_agent.trainer.asked import ScriptedSocket
from tests.site_agent.trainer.sites import approve_plan, make_plan, make_site, make_study


def used(folder: Path, kind: str = "training") -> list[int]:
    """The counts on disk, the newest last."""
    with recording(folder) as store:
        return [rows for (rows,) in store.read("SELECT rows FROM counts WHERE kind = ? ORDER BY place", kind)]


@pytest.mark.parametrize("seed", range(40))
def test_two_counts_that_leave_are_equal_or_a_cell_apart(tmp_path: Path, seed: int) -> None:
    """Over any history of a table, also one that loses the patient with most rows; each is near the truth."""
    generator = np.random.default_rng(seed)
    cell, rows, left = int(generator.integers(1, 30)), 200, list[int]()

    for place in range(60):
        rows = max(1, rows + int(generator.integers(-12, 13)))
        left.append(released_count(tmp_path, rows, 1 if place else cell))
        assert abs(left[-1] - rows) < cell

    assert left[0] > 0
    assert all(one == other or abs(one - other) >= cell for one, other in combinations(left, 2))
    assert sorted(used(tmp_path)) == sorted(set(left))


def test_rows_count_as_they_are_or_on_the_grid() -> None:
    """172 rows count as 192 on the grid and as 172 with exact; the cap holds for both. Validation rows stay rounded."""
    rounded, exact = (RowWeights(name="rows", largest_rows=256, exact=exact) for exact in (False, True))

    assert [rounded.counted(rows) for rows in (1, 172, 250, 300)] == [1, 192, 256, 256]
    assert [exact.counted(rows) for rows in (1, 172, 250, 300)] == [1, 172, 250, 256]
    weighting = exact.model_dump(mode="json")
    measures = Measures(make_plan(weighting=weighting, masking={"required": True}), 172, 171)
    assert measures.rows == 172
    assert measures.validation_of(0.5)["validation weight"] == 192


@pytest.mark.parametrize(
    ("weighting", "smallest", "takes_part"),
    [
        ({"name": "equal"}, 10, True),
        ({"name": "equal"}, 1000, False),
        ({"name": "rows", "largest_rows": 64}, 100, True),
        ({"name": "rows", "largest_rows": 64}, 1000, False),
        ({"name": "rows", "largest_rows": 64, "exact": True}, 100, True),
        ({"name": "rows", "largest_rows": 64, "exact": True}, 1000, False),
        ({"name": "rows", "largest_rows": 1024, "fewest_rows": 96, "exact": True}, 1, True),
        ({"name": "rows", "largest_rows": 1024, "fewest_rows": 192, "exact": True}, 1, False),
        ({"name": "rows", "largest_rows": 1024, "fewest_rows": 192}, 1, False),
    ],
)
def test_a_site_with_too_few_rows_does_not_train(
    tmp_path: Path, weighting: dict[str, object], smallest: int, takes_part: bool
) -> None:
    """About 115 training rows: the limits of policy and plan are for rows of the table, whatever the cap of weights."""
    config = make_site(tmp_path)
    config.write_text(config.read_text().replace("policy:", f"policy:\n  smallest_training_rows: {smallest}"))
    plan = make_plan(weighting=weighting, masking={"required": True})
    approve_plan(config, plan)
    socket = ScriptedSocket(Prepare("law-1", plan.canonical))

    status = Worker(read_hospital(config), socket, after_rounds).serve()  # type: ignore[arg-type]

    (answer,) = socket.answers
    if takes_part:
        assert (status, type(answer)) == (0, Prepared)
    else:
        assert answer == Failed(SiteReason.POLICY_FORBIDS, 77)


def test_a_small_count_of_an_earlier_study_stops_a_site_that_grew(tmp_path: Path) -> None:
    """The table now has as many rows as the plan requires, but the count that may leave is smaller."""
    config = make_site(tmp_path)
    weighting = {"name": "rows", "largest_rows": 1024, "fewest_rows": 96, "exact": True}
    plan = make_plan(weighting=weighting, masking={"required": True})
    approve_plan(config, plan)
    rows = len(make_study(config, make_plan()).own.training)
    config.write_text(config.read_text().replace("policy:", f"policy:\n  smallest_cell: {rows - 94}"))

    answers = []
    for before in (rows, 95):
        with recording(tmp_path / "state" / "models") as store:
            store.write("DELETE FROM counts")
            store.write("INSERT INTO counts (kind, rows) VALUES (?, ?)", "training", before)
        socket = ScriptedSocket(Prepare("law-1", plan.canonical))
        Worker(read_hospital(config), socket, after_rounds).serve()  # type: ignore[arg-type]
        answers += socket.answers

    assert rows >= 96
    assert [type(answer) for answer in answers] == [Prepared, Failed]


def test_a_study_weighs_by_the_count_that_its_site_used_before(tmp_path: Path) -> None:
    """Five rows fewer in the table change nothing, and a plan with rounded rows has the same memory."""
    config = make_site(tmp_path)
    rounded, exact = (
        make_plan(
            weighting={"name": "rows", "largest_rows": 1024} | ({"exact": True} if is_exact else {}),
            masking={"required": True},
        )
        for is_exact in (False, True)
    )
    memory = tmp_path / "state" / "models"

    assert make_study(config, rounded).rows == 128
    first = make_study(config, exact)
    assert used(memory) == [len(first.own.training)]
    assert first.rows == len(first.own.training) != 128
    table = (tmp_path / "table.csv").read_text().splitlines(keepends=True)
    (tmp_path / "table.csv").write_text("".join(table[:-5]))
    later = make_study(config, exact)

    assert len(later.own.training) < len(first.own.training)
    assert later.rows == first.rows
    assert used(memory) == [first.rows]
    assert used(memory, "validation") == [len(first.dataset.validation)]
