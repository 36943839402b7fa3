"""Plans that train a network privately: the possible ones, the sent numbers, the size of the noise, and the step."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from protos.numbers.round_sums import Sums
from protos.plan.exchange import Exchanges, stage_at
from protos.plan.manifest import manifest_of, most_bytes
from protos.plan.plan import Plan, plan_from_wire
from protos.plan.private_training import PrivateTraining
from protos.plan.server_rules import apply_rule
from protos.privacy.accounting import PRIVATE_SCALE, delta_of, together
from protos.wire.messages import Stage
from tests.for_each import for_each
from tests.protos.examples import listed
from tests.protos.privacy.private_plans import PROMISE, local_plan, private_network_plan

EVALUATING = [site | {"tier": "evaluation"} for site in listed(1)] + listed(4)[1:]


def training_of(plan: Plan) -> PrivateTraining:
    """The private training of the plan."""
    assert plan.private_training is not None
    return plan.private_training


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architecture": {"name": "dense", "hidden": [4], "dropout": 0.1}},
            "cannot compute exact gradients of single patients",
        ),
        (
            {"architecture": {"name": "dense", "hidden": [4], "activation": "tanh"}},
            "cannot compute exact gradients of single",
        ),
        (
            {"architecture": {"name": "parallel", "common": [4], "unique": [4]}},
            "cannot compute exact gradients of single patients",
        ),
        (
            {"architecture": {"name": "dense", "hidden": [501]}},
            "501 inputs, but training with privacy allows at most 500 inputs",
        ),
        (
            {"architecture": {"name": "dense", "hidden": [400, 20]}},
            "parameters, but training with privacy allows at most 4096 parameters",
        ),
        ({"columns": ["a", "b"], "concepts": []}, "List concepts in the plan, because the plan declares how"),
        ({"outputs": 3}, "needs a binary outcome, so outputs must be 1"),
        ({"schedule": {"aggregate": "every-batch", "epochs": 2, "batches_per_epoch": 2}}, "one gradient over all rows"),
        (
            {"schedule": {"aggregate": "every-round", "epochs": 4, "batches_per_epoch": 1, "epochs_per_round": 2}},
            "a round of this plan has 2 steps, but shared noise allows only 1 step. Set noise under privacy to local",
        ),
        (
            {"schedule": {"aggregate": "every-steps", "rounds": 3, "steps_per_round": 1, "batch_rows": 9}},
            "one gradient over all rows",
        ),
        ({"schedule": {"aggregate": "every-batch", "epochs": 10_001, "batches_per_epoch": 1}}, "at most 10000"),
        ({"optimiser": {"name": "adamw", "learning_rate": 0.1}}, "one plain step along each sum"),
        ({"optimiser": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9}}, "one plain step along each sum"),
        ({"loss": {"name": "task-default", "class_weights": "balanced"}}, "class weights and of other losses"),
        ({"loss": {"name": "focal"}}, "class weights and of other losses"),
        ({"start": {"name": "own", "seed": 3}}, "all sites start from the same values"),
        ({"weighting": {"name": "rows", "largest_rows": 1024}}, "row weights are counts of patients"),
        ({"checkpoint": "global"}, "checkpoint: global sums losses"),
        ({"masking": {"required": False}}, "Set required under masking to true"),
        ({"assumed_colluders": 0}, "assumed_colluders is 0"),
        ({"start": {"name": "file", "seed": 3, "sha256": "0" * 64}}, "all sites start from the same values"),
        ({"privacy": PROMISE | {"patients": 0}}, "greater than or equal to 1"),
        ({"method": {"name": "fedadam"}, "weighting": {"name": "rows", "largest_rows": 1024}}, "row weights are"),
        ({"sites": EVALUATING}, "only evaluates adds no noise"),
        (
            {"schedule": {"aggregate": "every-round", "epochs": 4, "batches_per_epoch": 1, "epochs_per_round": 2}},
            "noise in each step that is 1.73 times as large as its share",
        ),
    ],
    ids=str,
)
def test_what_would_let_an_unpaid_number_out_is_refused_by_name(changes: dict[str, Any], words: str) -> None:
    """Every number that a private network may not send or depend on has its reason in the refusal."""
    with pytest.raises(ValidationError, match=words):
        private_network_plan(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"method": {"name": "fedprox", "strength": 1.5}},
            "learning_rate times the strength of the proximal term is 1.5",
        ),
        ({"rounds": 200, "steps": 51}, "the plan has 10200 steps, but training with privacy allows at most 10000"),
        (
            {"promise": {"epsilon": 0.01, "delta": 1e-12}, "rounds": 1, "steps": 1000},
            "cannot draw the large noise that 1000 steps at epsilon 0.01 need",
        ),
        ({"masking": {"required": False}}, "Set required under masking to true"),
        ({"checkpoint": "global"}, "checkpoint: global sums losses"),
    ],
    ids=str,
)
def test_local_noise_has_limits_of_its_own(changes: dict[str, Any], words: str) -> None:
    """A step that overshoots, too many steps and noise that does not fit into a word are refused by name."""
    with pytest.raises(ValidationError, match=words):
        local_plan(**changes)


@pytest.mark.parametrize(("rounds", "steps"), [(1, 1), (5, 3), (40, 25)])
def test_the_noise_of_each_site_alone_keeps_the_promise_over_all_steps(rounds: int, steps: int) -> None:
    """No other site's noise is counted, and every step is, whatever the quorum: 1% less noise breaks the promise."""
    plan = local_plan(rounds=rounds, steps=steps, assumed_colluders=2)
    deviation = sqrt(training_of(plan).share_variance - 4) / PRIVATE_SCALE

    assert (training_of(plan).honest, plan.private_sums) == (1, rounds * steps)
    assert delta_of(1.0, sqrt(rounds * steps) / deviation) <= 1e-5
    assert delta_of(1.0, 1.01 * sqrt(rounds * steps) / deviation) > 1e-5


def test_noise_that_cannot_be_drawn_is_refused_before_the_run() -> None:
    """The smallest promise over the most rounds needs wider noise than the sampler has."""
    with pytest.raises(ValidationError, match="cannot draw the large noise"):
        private_network_plan({"epsilon": 0.01, "delta": 1e-12}, rounds=10_000)


@pytest.mark.parametrize("hidden", [(), (8,), (8, 4)], ids=str)
def test_a_round_sends_one_noisy_number_for_each_parameter_and_nothing_else(hidden: tuple[int, ...]) -> None:
    """Parameters come down, no change goes up, and every scalar is a sum of gradients."""
    plan = private_network_plan(hidden=hidden)
    manifest, training = manifest_of(plan), training_of(plan)
    exchanges = Exchanges(plan, manifest)

    rounds = [exchanges.of(number, Stage.TRAINING, b"") for number in range(plan.rounds)]

    assert plan.rounds == 10
    assert stage_at(plan, 10) is None
    for exchange in rounds:
        assert exchange.up == ()
        assert exchange.down_parameters == manifest.parameters == len(training.names)
        assert [scalar.name for scalar in exchange.scalars] == list(training.names)
    assert most_bytes(plan, manifest) == sum(exchange.layout.total_bytes for exchange in rounds)
    assert plan_from_wire(plan.canonical) == plan


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-9), (1.0, 1e-5), (8.0, 1e-5), (20.0, 1e-3)])
@pytest.mark.parametrize("rounds", [1, 40, 2000])
@pytest.mark.parametrize(("quorum", "colluders"), [(4, 1), (4, 2), (3, 1)])
def test_the_honest_shares_of_all_rounds_keep_the_promise(
    epsilon: float, delta: float, rounds: int, quorum: int, colluders: int
) -> None:
    """With the fewest contributors in every round, less colluders and rounding, all rounds together meet delta, and
    with 1% less noise they do not."""
    promise = {"epsilon": epsilon, "delta": delta}
    plan = private_network_plan(promise, rounds=rounds, sites=listed(quorum), assumed_colluders=colluders)

    honest = float((quorum - colluders) * (training_of(plan).share_variance - 4))
    mu = together([PRIVATE_SCALE / sqrt(honest)] * rounds)

    assert delta_of(epsilon, mu) <= delta
    assert delta_of(epsilon, 1.01 * mu) > delta


@for_each("seed", range(3))
def test_a_step_is_the_rate_times_the_clipped_sum_over_the_declared_patients(seed: int) -> None:
    """By hand: parameters less rate * clip * sum / (patients * scale)."""
    plan = private_network_plan({"patients": 250, "clip": 0.5}, optimiser={"name": "sgd", "learning_rate": 2.0})
    manifest, names = manifest_of(plan), training_of(plan).names
    generator = np.random.default_rng(seed)
    numbers = generator.integers(-(1 << 40), 1 << 40, len(names))
    parameters = generator.standard_normal(manifest.parameters).astype(np.float32)
    before = parameters.astype(np.float64)
    exchange = Exchanges(plan, manifest).of(0, Stage.TRAINING, b"")
    scalars = dict(zip(names, numbers.tolist(), strict=True))

    sums = Sums(exchange=exchange, contributors=4, updates=np.empty(0, np.int32), scalars=scalars)
    apply_rule(plan, manifest, sums, parameters, {})

    np.testing.assert_allclose(parameters, before - 2.0 * 0.5 * numbers / (250 * PRIVATE_SCALE), rtol=1e-6)
