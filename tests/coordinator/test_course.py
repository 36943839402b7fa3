"""Decisions from sums equal examples by hand: chosen layers, and the best round."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.rounds.course import Course, follow
from protos.plan.manifest import LARGEST_LOSS, LOSS_SCALE, SENSITIVITY_SCALE, manifest_of
from protos.plan.plan import Plan
from tests.coordinator.totals import plan_of, sums_of

CHAIN = {"name": "dense", "hidden": [2, 2, 2]}  # four layers, of which PLayer-FL may federate three
KEYS: dict[str, Any] = {"architecture": CHAIN, "columns": ["x"], "outputs": 1}
ROWS: dict[str, Any] = {"weighting": {"name": "rows", "largest_rows": 64}}


def probed(sensitivities: list[float], threshold: float = 2.0) -> Course:
    """The course after a probe whose sums stand for these numbers."""
    plan = plan_of({"name": "player-fl", "threshold": threshold}, **KEYS)
    scalars = {f"sensitivity {n}": int(value * SENSITIVITY_SCALE) for n, value in enumerate(sensitivities, start=1)}
    return follow(plan, Course(), 0, sums_of(plan, (), scalars))


@pytest.mark.parametrize(
    ("sensitivities", "layers"),
    [
        ([1.0, 3.0, 4.0, 5.0], 1),  # 3 at once
        ([1.0, 2.0, 5.0, 6.0], 2),  # exactly 2 does not cross, 2.5 does
        ([1.0, 1.0, 1.0, 4.0], 3),  # the rise into the last layer, which is never federated
        ([1.0, 3.0, 9.0, 27.0], 1),  # the first of several
        ([1.0, 1.5, 2.0, 2.5], 3),  # nothing crosses: all but the last
        ([0.0, 1.0, 1.0, 1.0], 1),  # from nothing to something is a sharp rise
        ([0.0, 0.0, 1.0, 1.0], 2),
        ([0.0, 0.0, 0.0, 1.0], 3),
        ([0.0, 0.0, 0.0, 0.0], 3),  # nothing after nothing is none
    ],
)
def test_layers_up_to_the_first_sharp_rise_are_federated(sensitivities: list[float], layers: int) -> None:
    """p = min {p : F_(p+1) / F_p > 2}, by hand, zeros and no crossing included; the vector is kept."""
    course = probed(sensitivities)

    assert course.chosen == (True,) * layers + (False,) * (3 - layers)
    assert course.sensitivities == tuple(sensitivities)


def measuring(**keys: Any) -> Plan:
    """A plan of eight rounds that measures; equal weights unless said otherwise."""
    schedule = {"aggregate": "every-epoch", "epochs": 8, "batches_per_epoch": 1}
    return plan_of({"name": "fedavg"}, schedule=schedule, checkpoint="global", **keys)


def told(plan: Plan, losses: list[float]) -> Course:
    """The course after rounds 1, 2, ... in which the sites' weighted losses added up to these."""
    manifest = manifest_of(plan)
    course = Course()
    zeros = np.zeros(manifest.parameters)
    course = follow(plan, course, 0, sums_of(plan, zeros))
    for number, loss in enumerate(losses, start=1):
        scalars = {"validation weight": 2, "validation loss": int(loss * LOSS_SCALE)}
        course = follow(plan, course, number, sums_of(plan, zeros, scalars, number=number))
    return course


def test_the_best_round_is_the_earliest_of_the_lowest() -> None:
    """Round r stands for the model that was offered in it; of equal losses the earlier wins."""
    course = told(measuring(), [6.0, 4.0, 5.0, 4.0])

    assert course.curve == ((1, 3.0), (2, 2.0), (3, 2.5), (4, 2.0))
    assert course.best == (2, 2.0)
    assert course.best_round == 2


def test_a_mean_loss_is_weighed_by_validation_rows() -> None:
    """By rows: 48 of 64 rows, weights 1/2 and 1/4, losses 1 and 4 give (1/2 + 1) / (3/4) = 2."""
    plan = measuring(**ROWS)
    scalars = {"rows": 64, "validation weight": 48, "validation loss": int(1.5 * LOSS_SCALE)}

    course = follow(plan, Course(), 1, sums_of(plan, np.zeros(4), scalars, number=1))

    assert course.best == (1, 2.0)


def test_a_round_in_which_every_loss_was_infinite_is_never_the_best() -> None:
    """A loss that is not finite counts as the largest; a run of nothing else has no best round."""
    course = told(measuring(), [2 * LARGEST_LOSS, 2 * LARGEST_LOSS])

    assert course.best_round is None
    assert len(course.curve) == 2


COURSES = [Course(), probed([1.0, 3.0, 4.0, 5.0]), told(measuring(), [5.0, 1 / 3, 4.0])]


@pytest.mark.parametrize("course", COURSES)
def test_a_course_survives_the_journal(course: Course) -> None:
    """A written course is read as the same course, every float to its last bit."""
    assert Course.from_json(course.to_json()) == course
