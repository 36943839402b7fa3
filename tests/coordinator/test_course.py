"""Decisions from sums equal examples by hand: chosen layers, intervals, the best round, the end of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from coordinator.rounds.course import Course, follow, rounds_of
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


def rounds(count: int) -> dict[str, Any]:
    """A schedule of this number of rounds of one step."""
    return {"aggregate": "every-epoch", "epochs": count, "batches_per_epoch": 1}


def measuring(early_stopping: dict[str, Any] | None = None, **keys: Any) -> Plan:
    """A plan of eight rounds that measures; equal weights unless said otherwise."""
    schedule = rounds(8) | {"early_stopping": early_stopping}
    return plan_of({"name": "fedavg"}, schedule=schedule, **({"checkpoint": "global"} | keys))


def told(plan: Plan, losses: list[float | None], improving: list[int] | None = None) -> Course:
    """The course after rounds 1, 2, ... in which the sites' weighted losses added up to these; None for no report."""
    manifest = manifest_of(plan)
    course = Course()
    zeros = np.zeros(manifest.parameters)
    course = follow(plan, course, 0, sums_of(plan, zeros))
    for number, loss in enumerate(losses, start=1):
        scalars = {} if loss is None else {"validation weight": 2, "validation loss": int(loss * LOSS_SCALE)}
        scalars["still improving"] = 1 if improving is None else improving[number - 1]
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
    scalars = {"rows": 64, "validation weight": 48, "validation loss": int(1.5 * LOSS_SCALE), "still improving": 2}

    course = follow(plan, Course(), 1, sums_of(plan, np.zeros(4), scalars, number=1))

    assert course.best == (1, 2.0)


def test_a_round_in_which_every_loss_was_infinite_is_never_the_best() -> None:
    """A loss that is not finite counts as the largest; a run of nothing else has no best round."""
    course = told(measuring(), [2 * LARGEST_LOSS, 2 * LARGEST_LOSS])

    assert course.best_round is None
    assert len(course.curve) == 2


def stopping(signal: str, patience: int) -> dict[str, Any]:
    """Early stopping without a global checkpoint."""
    return {"checkpoint": "local", "early_stopping": {"signal": signal, "patience": patience}}


@pytest.mark.parametrize(
    ("losses", "patience", "training_rounds"),
    [
        ([5.0, 4.0, 4.0], 1, 5),  # round 3 decides, round 4 is on its way: rounds 0 to 4
        ([5.0, 4.0, 4.5, 3.0], 2, None),
        ([5.0, 4.0, 4.5, 4.2], 2, 6),
        ([5.0, 5.0], 1, 4),
        ([5.0, None, None], 1, None),  # what is not measured is not counted
        ([5.0, 6.0, 6.0, 6.0, 6.0, 6.0], 5, None),  # round 6 decides, round 7 is the last one anyway
        ([5.0, 6.0, 6.0, 6.0, 6.0, 6.0], 4, 7),
    ],
)
def test_training_ends_when_the_common_loss_does_not_fall(
    losses: list[float | None], patience: int, training_rounds: int | None
) -> None:
    """After this number of measured rounds without improvement; the round after the deciding one is still made."""
    plan = measuring(**stopping("global", patience))

    course = told(plan, losses)

    assert course.training_rounds == training_rounds
    assert rounds_of(plan, course) == (training_rounds or 8)


@pytest.mark.parametrize(
    ("improving", "training_rounds"), [([2, 1, 0], 5), ([0], 3), ([2, 2, 1, 1, 1], None), ([1, 0, 2], 4)]
)
def test_training_ends_when_no_site_improves(improving: list[int], training_rounds: int | None) -> None:
    """The sum of the sites that still improve is 0 once. Later rounds change nothing."""
    plan = measuring(**stopping("local", 2))

    course = told(plan, [5.0] * len(improving), improving)

    assert course.training_rounds == training_rounds


COURSES = [
    Course(),
    probed([1.0, 3.0, 4.0, 5.0]),
    told(measuring(early_stopping={"signal": "global", "patience": 1}), [5.0, 1 / 3, 4.0]),
]


@pytest.mark.parametrize("course", COURSES)
def test_a_course_survives_the_journal(course: Course) -> None:
    """A written course is read as the same course, every float to its last bit."""
    assert Course.from_json(course.to_json()) == course
