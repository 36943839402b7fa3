"""The alternatives of a plan: one agreement, several runs, and one choice among them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import ValidationError

from protos.plan.announced_plan import plan_from_wire
from protos.plan.plan import Plan
from protos.plan.sweep import chosen_of
from tests.protos.examples import listed, plan_with
from tests.protos.test_plan import COMPANIONS, OTHER_VALUES

RATES = [[0.001], [0.01], [0.1]]


def swept(**changes: Any) -> Plan:
    """A plan with three learning rates."""
    keys = {"checkpoint": "global", "sweep": {"keys": ["optimiser.learning_rate"], "alternatives": RATES}}
    return plan_with(**keys | changes)


def sweep_of(keys: list[str], alternatives: list[list[float]], **more: Any) -> dict[str, Any]:
    """A sweep as a person writes it."""
    return {"sweep": {"keys": keys, "alternatives": alternatives} | more}


def test_each_alternative_is_a_plan_and_run_of_its_own_with_the_whole_list() -> None:
    """Alternatives differ in the swept numbers only, have digests of their own, and each yields all of them."""
    plans = swept().alternatives

    assert [plan.optimiser.learning_rate for plan in plans] == [0.001, 0.01, 0.1]
    assert len({plan.run_name for plan in plans}) == len(plans)
    assert plans[0] == swept()
    for number, plan in enumerate(plans):
        assert plan.sweep is not None
        assert plan.sweep.at == number
        assert plan.alternatives == plans
        assert plan_from_wire(plan.canonical) == plan
        settings = json.loads(plan.canonical) | {"optimiser": None, "sweep": None}
        assert settings == json.loads(plans[0].canonical) | {"optimiser": None, "sweep": None}


def test_a_plan_without_a_sweep_is_its_only_alternative() -> None:
    """Everything that handles alternatives handles a usual plan, too."""
    assert plan_with().alternatives == (plan_with(),)


def test_strengths_and_counts_of_a_method_may_be_swept() -> None:
    """A number inside a composition is named by its place, and a count stays a whole number."""
    of = [{"name": "fedprox", "strength": 0.1}, {"name": "fedrep", "head_epochs": 2}]
    method = {"name": "composition", "of": of}
    keys = ["method.of.0.strength", "method.of.1.head_epochs"]
    schedule = {"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": 4}
    plan = swept(method=method, columns=["age"], schedule=schedule, **sweep_of(keys, [[0.1, 2], [1.0, 4]]))

    other = json.loads(plan.alternatives[1].canonical)["method"]["of"]

    assert other == [{"name": "fedprox", "strength": 1.0}, {"name": "fedrep", "head_epochs": 4}]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"checkpoint": "local"}, "checkpoint must be global"),
        ({"on_lost_site": "continue"}, "on_lost_site must be wait"),
        ({"sites": listed(4)}, "quorum must be the number of sites"),
        (sweep_of(["optimiser.learning_rate"], [[0.01], [0.1]]), "alternative 0 of sweep has optimiser.learning_rate"),
        (sweep_of(["optimiser.learning_rate"], RATES, at=1), "alternative 1 of sweep has optimiser.learning_rate"),
        (sweep_of(["optimiser.learning_rate"], RATES, at=3), "no alternative number 3"),
        (sweep_of(["optimiser.learning_rate"], [[0.001], [-1.0]]), "alternative 1 of sweep is impossible"),
        (sweep_of(["optimiser.speed"], [[0.001], [0.1]]), "the plan has no number with this key"),
        (sweep_of(["optimiser.name"], [[0.001], [0.1]]), "the plan has no number with this key"),
        (sweep_of(["optimiser.learning_rate.x"], [[0.001], [0.1]]), "the plan has no number with this key"),
        (sweep_of(["optimiser.learning_rate"], [[0.001], [0.001]]), "lists the same alternative twice"),
        (sweep_of(["optimiser.learning_rate"], [[0.001], [0.1, 2.0]]), "one value for each key"),
        (sweep_of(["optimiser.learning_rate"], [[0.001]]), "at least 2"),
        (sweep_of(["optimiser.learning_rate"], [[0.001], [float("nan")]]), "finite number"),
        (sweep_of(["method.of.0.strength", "method.of.00.strength"], [[0.1, 0.1], [0.1, 0.2]]), "pattern"),
        # Only the training at a site may differ. The sent data, their times and their sites are the same in all runs.
        (sweep_of(["quorum"], [[3], [2]]), "pattern"),
        (sweep_of(["encoding.clipping_range"], [[8.0], [16.0]]), "pattern"),
        (sweep_of(["schedule.epochs"], [[2], [3]]), "pattern"),
    ],
)
def test_a_sweep_that_cannot_be_agreed_is_refused(changes: dict[str, Any], reason: str) -> None:
    """The error names the fault."""
    with pytest.raises(ValidationError, match=reason):
        swept(**changes)


@pytest.mark.parametrize(
    ("method", "key", "other"),
    [
        ({"name": "player-fl", "layers": 1}, "layers", 2),
        ({"name": "player-fl", "threshold": 2.0}, "threshold", 1e6),
        ({"name": "fedlp", "keep_probability": 0.5}, "keep_probability", 1.0),
        ({"name": "fedlama", "slow_factor": 4}, "slow_factor", 2),
    ],
)
def test_a_number_that_decides_which_layers_leave_is_not_swept(method: dict[str, Any], key: str, other: float) -> None:
    """The review shows what leaves in one alternative, and the approval covers all: no other may send more layers."""
    keys = {
        "method": method,
        "architecture": {"name": "dense", "hidden": [8, 8]},
        "columns": ["age"],
        "schedule": {"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 4},
        "outputs": 1,
    }
    assert swept(**keys).method.name == method["name"]

    with pytest.raises(
        ValidationError,
        match="alternative 1 of sweep is impossible: it would change which layers sites send in which rounds",
    ):
        swept(**keys, **sweep_of([f"method.{key}"], [[method[key]], [other]]))


def test_the_alternatives_of_a_plan_are_read_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """To check the whole list in each alternative again would take minutes for the largest plan."""
    plan, read = swept(), Plan.model_validate_json
    texts: list[str] = []
    monkeypatch.setattr(Plan, "model_validate_json", lambda text: texts.append(text) or read(text))

    assert len(plan.alternatives) == len(texts) == len(RATES)


@pytest.mark.parametrize("checkpoint", ["local", "global"])
def test_a_plan_with_differential_privacy_has_no_sweep(checkpoint: str) -> None:
    """The budget does not pay for the losses that a choice needs."""
    sweep = {"keys": ["method.ridge"], "alternatives": [[1.0], [2.0]]}
    private = OTHER_VALUES["privacy"]
    assert plan_with(privacy=private, **COMPANIONS["privacy"]).privacy is not None

    with pytest.raises(ValidationError, match="checkpoint"):
        plan_with(privacy=private, checkpoint=checkpoint, sweep=sweep, **COMPANIONS["privacy"])


@pytest.mark.parametrize(
    ("losses", "chosen"), [([0.5, 0.4, 0.6], 1), ([0.4, 0.4, 0.5], 0), ([float("inf"), 0.9], 1), ([0.3], 0)]
)
def test_the_lowest_loss_is_chosen(losses: list[float], chosen: int) -> None:
    """Of equal losses the first alternative is chosen."""
    assert chosen_of(losses) == chosen
