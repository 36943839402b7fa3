"""Whole runs with rounds that measure: probe, validation, report, an early end; what comes down and what is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from coordinator.storage.run_record import sha256_of
from protos.plan.manifest import LOSS_SCALE, SENSITIVITY_SCALE
from protos.plan.plan import Plan
from protos.wire.messages import Offer, Stage
from tests.coordinator.in_memory import IDENTITIES, BehavingSite
from tests.coordinator.in_memory import Stage as Scene
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import MEAN, plan_with

Scalars = Callable[[Offer], Mapping[str, int]]
CHAIN: dict[str, Any] = {"architecture": {"name": "dense", "hidden": [2, 2]}, "columns": ["x"], "outputs": 1}


def a_plan(method: str = "fedavg", rounds: int = 4, **changes: Any) -> Plan:
    """Three sites, and this number of training rounds of one step."""
    schedule = {"aggregate": "every-epoch", "epochs": rounds, "batches_per_epoch": 1}
    return plan_with(IDENTITIES, changes={"method": {"name": method}, "schedule": schedule} | changes)


def _run_of(state: Path, plan: Plan, scalars: Scalars = lambda offer: {}) -> tuple[Scene, list[BehavingSite]]:
    sites = [BehavingSite(name, scalars=scalars) for name in "abc"]
    scenes: list[Scene] = []

    async def scene() -> None:
        scenes.append(Scene(state, plan))
        scenes[0].engine.start()
        for site in sites:
            scenes[0].connect(site)
        scenes[0].deliver()

    play(scene())
    assert [outcome.is_complete for outcome in scenes[0].engine.outcomes] == [True]
    return scenes[0], sites


def _record_of(state: Path) -> dict[str, Any]:
    (path,) = (state / "runs").glob("*/record.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def measured(losses: Mapping[int, float]) -> Scalars:
    """The same validation loss at every site, by the round in which it is sent."""

    def scalars(offer: Offer) -> Mapping[str, int]:
        loss = int(losses.get(offer.round, 9.0) * LOSS_SCALE)
        return {"validation weight": 1, "validation loss": loss}

    return scalars


def test_the_probe_comes_first_and_its_choice_is_all_that_travels_then(tmp_path: Path) -> None:
    """PLayer-FL: nothing comes down with the probe; afterwards one layer of two, also in the result."""
    plan = a_plan("player-fl", rounds=2, **CHAIN)
    rise = {
        "sensitivity 1": SENSITIVITY_SCALE // 4,
        "sensitivity 2": SENSITIVITY_SCALE,
        "sensitivity 3": SENSITIVITY_SCALE,
    }

    _, sites = _run_of(tmp_path, plan, lambda offer: rise if offer.stage is Stage.PROBE else {})

    for site in sites:
        assert [(offer.stage, offer.layers) for offer in site.offers] == [
            (Stage.PROBE, b""),
            (Stage.TRAINING, b"\x01"),
            (Stage.TRAINING, b"\x01"),
        ]
        assert [vector.size for vector in site.vectors] == [0, 4, 4, 4]
        assert site.finish is not None
        assert (site.finish.round, site.finish.layers) == (3, b"\x01")
    record, (path,) = _record_of(tmp_path), (tmp_path / "runs").glob("*/parameters.safetensors")
    assert record["chosen_layers"] == ["input.layer1"]
    assert record["sensitivities"] == [0.75, 3.0, 3.0]
    assert (record["rounds"], record["rounds_made"], record["training_rounds"]) == (3, 3, 2)
    assert set(load_file(path)) == {"input.layer1.weight", "input.layer1.bias"}
    assert record["shared_parameters_sha256"] == sha256_of(sites[0].vectors[-1])


def test_a_global_checkpoint_measures_the_last_aggregate_in_a_round_of_its_own(tmp_path: Path) -> None:
    """Offers name the best round so far, from the round after it was measured; the last model is measured too."""
    losses = {1: 4.0, 2: 3.0, 3: 5.0, 4: 2.0}

    _, sites = _run_of(tmp_path, a_plan(checkpoint="global"), measured(losses))

    for site in sites:
        assert [offer.stage for offer in site.offers] == [Stage.TRAINING] * 4 + [Stage.VALIDATION]
        assert [offer.best_round for offer in site.offers] == [None, None, 1, 2, 2]
        assert site.finish is not None
        assert (site.finish.round, site.finish.best_round) == (5, 4)
        np.testing.assert_array_equal(site.vectors[-2], site.vectors[-1])  # a round that measures moves nothing
    record = _record_of(tmp_path)
    assert record["validation_curve"] == [[1, 4.0], [2, 3.0], [3, 5.0], [4, 2.0]]
    assert (record["best_round"], record["best_validation_loss"]) == (4, 2.0)
    assert (record["rounds"], record["training_rounds"]) == (5, 4)


@pytest.mark.parametrize(
    "scalars", [{"validation weight": -1}, {"validation weight": 2}, {"validation loss": -(1 << 40)}]
)
async def test_scalars_out_of_bounds_void_the_attempt(tmp_path: Path, scalars: dict[str, int]) -> None:
    """Sums that no honest sites can give never reach the course, whatever the checks say."""
    stage = Scene(tmp_path, a_plan(checkpoint="global"))
    stage.engine.start()
    for name in "abc":
        stage.connect(BehavingSite(name, scalars=lambda offer: scalars if offer.round == 1 else {}))
    stage.deliver()

    (outcome,) = stage.engine.outcomes
    assert (outcome.is_complete, outcome.reason) == (False, "the contributions do not add up")


def test_control_variates_come_down_behind_the_parameters_in_training_alone(tmp_path: Path) -> None:
    """SCAFFOLD: 10 numbers and 10 of c; c is minus the mean update over the learning rate, and stays at home later."""
    plan = a_plan("scaffold", rounds=2, checkpoint="global", optimiser={"name": "sgd", "learning_rate": 0.5})

    _, sites = _run_of(tmp_path, plan, measured({}))

    assert [vector.size for vector in sites[0].vectors] == [20, 20, 10, 10]
    np.testing.assert_array_equal(sites[0].vectors[0], np.zeros(20, np.float32))
    np.testing.assert_array_equal(sites[0].vectors[1], np.repeat(np.float32([MEAN, -MEAN / 0.5]), 10))
