"""A site that claims few rows and sends large numbers. The division by the sum of rows would then make its update the
model. Under row weights the mean is the sum of the updates over the sum of the weights. A sum of rows that is too
small, or a number that no honest sites of these weights can have sent, voids the round."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np

from coordinator.rounds.phases import Gathering
from coordinator.rounds.run import Run, new_run, terms_of
from protos.numbers.fixed_point import FixedPoint
from protos.plan.plan import Plan
from tests.hostile.attack import Attack, in_copy, patched
from tests.rehearsal.study import contribution, made_up_identities, plan_with

HONEST = {"a": 64, "b": 96}
WEIGHTS = {"name": "rows", "largest_rows": 1024, "fewest_rows": 64}


def _without_bounds_on_sums() -> AbstractContextManager[None]:
    return patched(Run, _fewest_rows=1, _is_in_range=lambda self, sums: True)


def a_plan() -> Plan:
    """Three sites of at least 64 rows each."""
    return plan_with(made_up_identities("abc"), changes={"weighting": WEIGHTS})


def moved_by(rows: int, number: float, *, sent_as: int) -> float:
    """How far the model moves if c claims these rows and sends this update with another weight; 0 if it is void."""
    plan = a_plan()
    run = new_run(plan, terms_of(plan), Gathering())
    run.begin_sum(0, tuple("abc"))
    exchange = run.offered(0).exchange
    for site, count in HONEST.items():
        for index, body in enumerate(contribution(plan, 0.01, exchange, {"rows": count})):
            run.running_sum.add(site, index, body)
    layout, buffer = exchange.layout, bytearray(exchange.layout.total_bytes)
    body = layout.body(buffer, 0)
    layout.words(body, 0)[:] = [1, rows]
    updates = layout.updates(body, 0)
    FixedPoint(plan.masking.clipping_range, 3).encode(np.full(updates.size, number, "f4"), sent_as / 1024, updates)
    run.running_sum.add("c", 0, bytes(body))
    before = run.parameters.copy()
    if run.is_consistent:
        run.close_round(0)
    return float(np.abs(run.parameters - before).max())


def one_row_and_a_large_change(weakened: bool) -> bool:
    """Claim one row, and send an update with the weight of the largest row count."""
    with in_copy(weakened, _without_bounds_on_sums):
        return moved_by(1, 8.0, sent_as=1024) > 8.0


def fewest_rows_and_a_large_change(weakened: bool) -> bool:
    """Claim exactly the fewest rows, and send an update as if all rows of the cap stood behind it."""
    with in_copy(weakened, _without_bounds_on_sums):
        return moved_by(64, 8.0, sent_as=1024) > 8.0


ATTACKS = (
    Attack(
        "one-row-and-a-large-change",
        "the bounds on the sum of rows and on the sum of updates",
        one_row_and_a_large_change,
    ),
    Attack(
        "fewest-rows-and-a-large-change",
        "the bounds on the sum of rows and on the sum of updates",
        fewest_rows_and_a_large_change,
    ),
)
