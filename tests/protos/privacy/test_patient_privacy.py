"""The plan's key `privacy`: which promises are meaningful, and which plans can keep one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter, ValidationError

from protos.plan.exchange import Exchanges, stage_at
from protos.plan.manifest import manifest_of
from protos.plan.methods import MethodChoice
from protos.plan.patient_privacy import why_not_private
from protos.plan.prior_plan import PriorPlan
from protos.plan.privacy_in_words import how_private
from protos.privacy.accounting import LARGEST_NOISE, PRIVATE_SCALE, delta_of
from protos.wire.messages import Stage
from tests.protos.examples import listed
from tests.protos.examples import plan_with as network_plan
from tests.protos.privacy.private_plans import PROMISE, local_plan, private_network_plan, private_plan


@pytest.mark.parametrize(
    ("promise", "words"),
    [
        ({"epsilon": 0.0}, "it would be useless"), ({"epsilon": -1.0}, "it would be useless"),
        ({"epsilon": 1e9}, "could show almost surely who was a patient"),
        ({"epsilon": float("inf")}, "could show almost surely who was a patient"),
        ({"epsilon": float("nan")}, "epsilon is nan"),
        ({"delta": 0.0}, "the promise adds delta to every probability"),
        ({"delta": 0.5}, "the promise adds delta to every probability"),
        ({"clip": 0.0}, "greater than or equal to 0.000001"), ({"clip": 1e-300}, "greater than or equal to 0.000001"),
        ({"clip": float("nan")}, "finite number"), ({"sampling": 0.5}, "Extra inputs are not permitted"),
        ({"unit": "row"}, "patient"), ({"noise": 1.0}, "noise"),
    ],
)  # fmt: skip
def test_a_promise_without_meaning_is_refused_with_what_it_would_mean(promise: dict[str, Any], words: str) -> None:
    """Epsilon 0, a billion and NaN, and other nonsense, are refused in words."""
    with pytest.raises(ValidationError, match=words):
        private_network_plan(promise)


# Every method that keeps the promise, with what else its plan says; all others are refused.
PRIVATE: dict[str, dict[str, Any]] = {
    "fedavg": {}, "fedprox": {}, "fedadam": {}, "fedyogi": {}, "fedadagrad": {}, "local-adaptation": {}, "ditto": {},
    "apfl": {}, "fedbabu": {"outputs": None},
}  # fmt: skip
# Those whose private layers take steps with noise of their own.
WITH_LAYERS: dict[str, dict[str, Any]] = {
    "global-layers": {"outputs": None},
    "fedper": {"outputs": None},
    "lg-fedavg": {},
    "player-fl-random": {},
}
# Why each other method cannot with shared noise; each reason is read by the researcher.
REFUSED = {
    "fedrep": "the method trains private layers first, in steps that the privacy budget does not cover",
    "fenda-fl": "cannot clip the gradients of a network with a shared and a private extractor",
    "player-fl": "the method would measure the layers on patients' data",
    "fedbn": "no normalisation layers that could stay private",
    "chfl": "cannot clip the gradients of a network with a common and a unique column",
    "perfcl": "the contrastive penalty uses the site's own earlier model",
    "moon": "the contrastive penalty uses the site's own earlier model",
    "scaffold": "a control variate stores gradients of a site's patients",
    "pfedme": "Set noise under privacy to local",
    "local": "no sums over patients",
}


@pytest.mark.parametrize("name", [*PRIVATE, *WITH_LAYERS])
def test_a_method_that_is_private_says_what_privacy_changes(name: str) -> None:
    """Its plan is accepted with one sum a round, a price and a sentence about how."""
    plan = private_network_plan(hidden=(4, 4), method={"name": name}, **(PRIVATE | WITH_LAYERS)[name])

    assert plan.private_training is not None
    assert plan.private_sums == plan.rounds == 10
    assert [*why_not_private(plan.ingredients, "shared")] == []
    assert plan.privacy is not None
    assert next(how_private(plan)).startswith("In each round the sites send one noisy sum of clipped gradients")
    exchange = Exchanges(plan, manifest_of(plan)).of(3, Stage.TRAINING, b"")
    assert [scalar.name for scalar in exchange.scalars] == list(plan.private_training.names)
    assert (exchange.up, exchange.has_controls) == ((), False)
    assert (exchange.own_numbers > 0) is (name in WITH_LAYERS)


def test_received_layers_that_are_blended_are_not_private() -> None:
    """A site would keep a part of values without noise."""
    with pytest.raises(ValidationError, match="Set update_rate to 1"):
        private_network_plan(hidden=(4, 4), method={"name": "global-layers", "update_rate": 0.5}, outputs=None)


def test_private_layers_have_the_whole_noise_of_their_site() -> None:
    """The noise of a private layer's sum alone keeps the plan's delta over all rounds, and no smaller one does."""
    plan = private_network_plan(hidden=(4, 4), method={"name": "global-layers"}, outputs=None)
    training = plan.private_training
    assert training is not None

    whole = 10 * PRIVATE_SCALE**2 / float(training.own_variance - 4)

    assert delta_of(1.0, np.sqrt(whole)) <= 1e-5 < delta_of(1.0, 1.01 * np.sqrt(whole))
    assert training.own_variance == pytest.approx(3 * training.share_variance, rel=1e-9)


@pytest.mark.parametrize("name", REFUSED)
def test_a_method_that_is_not_private_has_its_reason_in_the_refusal(name: str) -> None:
    """The text for the researcher has every reason."""
    method = TypeAdapter[Any](MethodChoice).validate_json(f'{{"name": "{name}"}}')

    reasons = [*why_not_private(method.method(), "shared")]

    assert ([*why_not_private(method.method(), "local")] == reasons) is (name != "pfedme")
    assert any(REFUSED[name] in reason for reason in reasons)
    with pytest.raises(ValidationError) as refused:
        network_plan(method={"name": name}, sites=listed(4), privacy=PROMISE | {"patients": 300})
    assert all(f"privacy is impossible in this plan: {reason}" in str(refused.value) for reason in reasons)


def test_the_inner_problem_of_pfedme_is_paid_for() -> None:
    """Each of its steps is a noisy sum, and a step that overshoots is refused."""
    plan = local_plan(rounds=5, steps=3, method={"name": "pfedme", "strength": 0.5, "inner_steps": 4, "rate": 0.5})

    assert plan.privacy is not None
    assert (plan.private_releases, plan.private_sums) == (5, 60)
    assert "covers all of these steps" in " ".join(how_private(plan))
    with pytest.raises(ValidationError, match="rate times strength of pfedme is 2, but local noise allows at most 1"):
        local_plan(method={"name": "pfedme", "strength": 0.5, "rate": 4.0})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"masking": {"required": False}}, "Set required under masking to true"),
        ({"assumed_colluders": 0}, "assumed_colluders is 0"),
        ({"assumed_colluders": 4}, "assumed_colluders is 4"),
    ],
)
def test_a_plan_that_cannot_keep_the_promise_is_refused(changes: dict[str, Any], words: str) -> None:
    """Without masks, or with no honest site, a share of the noise hides nobody."""
    with pytest.raises(ValidationError, match=words):
        private_plan(**changes)


@pytest.mark.parametrize("colluders", [1, 2])
@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.0, 20.0])
def test_the_honest_shares_alone_keep_the_promise(epsilon: float, colluders: int) -> None:
    """Less what rounding takes, the shares of the sites that do not collude have the variance that delta needs."""
    plan = private_plan({"epsilon": epsilon}, assumed_colluders=colluders)
    assert isinstance(plan, PriorPlan)
    assert plan.private is not None

    honest = (4 - colluders) * (plan.private.share_variance - 4)

    assert delta_of(epsilon, PRIVATE_SCALE / np.sqrt(float(honest))) <= 1e-5
    assert delta_of(epsilon, 1.01 * PRIVATE_SCALE / np.sqrt(float(honest))) > 1e-5


def test_one_round_sends_everything() -> None:
    """A private run has one round, and its numbers leave room for rows and for the widest noise."""
    plan = private_plan({"epsilon": 0.01, "delta": 1e-12})
    assert isinstance(plan, PriorPlan)
    assert plan.private is not None

    assert plan.rounds == 1
    assert (stage_at(plan, 0), stage_at(plan, 1)) == (Stage.STATISTICS, None)
    scalars = manifest_of(plan).scalars
    assert len(scalars) == len(plan.private.names) == 5 * 6 // 2 + 5 * 4 + 4 + 9
    assert 4 * max(scalar.bound for scalar in scalars) < 1 << 62
    assert 100 * np.sqrt(float(plan.private.share_variance)) < LARGEST_NOISE
