"""The trainings on made-up patients show what noise, clip and rounds of a private plan cost."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from coordinator.operations.made_up_patients import ranked
from coordinator.operations.made_up_training import MadeUp, _clipped_sum, better_rate, made_up_training
from protos.plan.plan import Plan
from protos.privacy.accounting import PRIVATE_SCALE
from site_agent.trainer.training.private_gradient import Layer, PrivateRows, clipped_gradients
from tests.protos.privacy.private_plans import local_plan, private_network_plan, private_plan


def plan_with(epsilon: float, patients: int, **changes: Any) -> Plan:
    """A plan of 40 rounds with a rate that suits it."""
    promise = {"epsilon": epsilon, "patients": patients, "clip": 1.0}
    return private_network_plan(promise, rounds=40, optimiser={"name": "sgd", "learning_rate": 3.0}, **changes)


@pytest.mark.parametrize(("epsilon", "patients", "lowest", "highest"), [(8.0, 5000, -0.01, 0.01), (0.1, 100, 0.1, 0.4)])
def test_more_noise_beside_fewer_patients_costs_more(
    epsilon: float, patients: int, lowest: float, highest: float
) -> None:
    """With many patients and a large epsilon the noise costs nothing; with few and a small one nearly everything."""
    found = made_up_training(plan_with(epsilon, patients))

    assert isinstance(found, MadeUp)
    assert found.patients == min(patients, 2000)
    assert lowest <= found.without - found.with_noise <= highest
    assert 0.7 < found.without < 0.82


def test_a_better_learning_rate_is_found_where_the_plan_follows_the_noise() -> None:
    """At a small epsilon a high rate follows the noise, and a low one gets nowhere; a suitable one is left alone."""
    plans = {rate: private_network_plan({"patients": 600, "clip": 0.5}, rounds=40, hidden=(8,),
             optimiser={"name": "sgd", "learning_rate": rate}) for rate in (8.0, 2.0, 0.25)}  # fmt: skip
    areas = {rate: made_up_training(plan) for rate, plan in plans.items()}

    better = {rate: better_rate(plan, area) for rate, plan in plans.items() if isinstance(area := areas[rate], MadeUp)}

    assert better[2.0] is None
    for rate in (8.0, 0.25):
        found, area = better[rate], areas[rate]
        assert found is not None
        assert isinstance(area, MadeUp)
        assert found[0] in {1.0, 2.0}
        assert found[1].with_noise > area.with_noise + 0.01
        assert found[1] == made_up_training(plans[2.0]) or found[0] != 2.0


@pytest.mark.parametrize("method", ["fedadam", "fedbabu"])
def test_it_follows_the_plan_s_method(method: str) -> None:
    """Server rules and layers that keep their first values are those of the plan, and the result is repeatable."""
    rates = {"method": {"name": method, **({"rate": 0.05} if method == "fedadam" else {})}}
    plan = plan_with(4.0, 2000, hidden=(6,), **rates, **({"outputs": None} if method == "fedbabu" else {}))

    found = made_up_training(plan)

    assert found == made_up_training(Plan.model_validate_json(json.dumps(json.loads(plan.canonical))))
    assert isinstance(found, MadeUp)
    assert found.without > 0.65


@pytest.mark.parametrize("shared", [1, 2])
def test_its_gradient_is_that_of_the_deployed_trainer(shared: int) -> None:
    """The sum of clipped gradients agrees with the trainer's integers to the steps of its grids."""
    generator = np.random.default_rng(0)
    features, outcomes = (
        generator.standard_normal((50, 4)).astype(np.float32),
        generator.integers(0, 2, 50).astype(float),
    )
    arrays = [generator.standard_normal(shape) for shape in ((5, 4), (5,), (1, 5), (1,))]
    layers = [Layer(arrays[0], arrays[1]), Layer(arrays[2], arrays[3])]

    rows = PrivateRows.of(features, outcomes, None)
    exact = np.array(clipped_gradients(layers, 0.7, rows, shared=shared)) / PRIVATE_SCALE

    part = (features.astype(float), outcomes)
    np.testing.assert_allclose(_clipped_sum(part, 0.7, 1.0, shared, arrays), exact, atol=5e-3)


def test_a_plan_without_a_network_or_with_too_much_work_is_skipped() -> None:
    """The federated prior has no gradients, and 10,000 rounds would keep a person waiting."""
    assert made_up_training(private_plan()) == "the plan trains no private network"
    too_long = made_up_training(private_network_plan({"epsilon": 8.0}, rounds=10_000, hidden=(20,)))
    assert too_long == "the plan has 10,000 steps, and a simulation makes at most 1,000"


@pytest.mark.parametrize(("rounds", "hidden", "patients"), [(40, (8,), 2000), (900, (8,), 389), (900, (60,), None)])
def test_slow_steps_read_fewer_patients_or_none(rounds: int, hidden: tuple[int, ...], patients: int | None) -> None:
    """A simulation keeps a person waiting for a second. The ratio of noise to signal stays that of the plan."""
    plan = private_network_plan({"patients": 5000, "epsilon": 8.0}, rounds=rounds, hidden=hidden)

    found = made_up_training(plan)

    told = found.patients if isinstance(found, MadeUp) else found
    assert told == (patients or "900 steps of 421 numbers would take too long")


def test_ranks_of_scores_give_the_share_of_pairs_in_order() -> None:
    """By hand: of six pairs five are in order."""
    assert ranked(np.array([0.1, 0.4, 0.3, 0.8, 0.9]), np.array([0, 0, 1, 1, 1])) == pytest.approx(5 / 6)


def test_local_noise_costs_more_than_the_same_steps_with_shared_noise() -> None:
    """Without noise both train about the same model; with noise each step of a site has the noise of all shares."""
    keys: dict[str, Any] = {"optimiser": {"name": "sgd", "learning_rate": 4.0}}
    promise = {"epsilon": 1.0, "patients": 600}
    shared = made_up_training(private_network_plan(promise, rounds=20, **keys))
    local = made_up_training(local_plan(promise, rounds=4, steps=5, **keys))

    assert isinstance(shared, MadeUp)
    assert isinstance(local, MadeUp)
    assert local.without == pytest.approx(shared.without, abs=0.01)
    assert local.with_noise < shared.with_noise - 0.005
