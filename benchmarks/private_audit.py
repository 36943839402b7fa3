"""An audit of a whole private training in one run.

It adds made-up patients to the table at random, and guesses which were added.

Half of many canaries, drawn at random, take part. The attacker reads everything that the sites send: the noisy sum of
every round. The attacker also has every canary's gradient, and guesses only for the canaries with the clearest signs.
The number of right guesses gives a lower bound of epsilon. Sums, noise and steps are those of the deployed code.

Local noise is also audited by many single rounds, because one run detects only large mistakes. Each canary has a column
of its own, so one round of a site's trainer has as many trials as canaries. Error rates of a test at one threshold give
the bound (Clopper-Pearson, 95%).

Source: Steinke, Nasr, Jagielski 2023, "Privacy auditing with one (1) training run", algorithm 1 and theorem 5.2.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from math import exp, log
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.stats import beta, binom

from protos.numbers.round_sums import Sums
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.private_training import PrivateTraining
from protos.plan.server_rules import apply_rule, begin_rule
from protos.privacy.accounting import PRIVATE_SCALE, epsilon_of
from protos.privacy.discrete_gaussian import discrete_gaussian
from protos.wire.messages import Stage
from site_agent.trainer.training.private_gradient import Layer, PrivateRows, clipped_gradients
from site_agent.trainer.training.private_steps import private_sums

Numbers = npt.NDArray[np.float64]

CANARIES: Final = 450
_PATIENTS: Final = 300
_CONFIDENCE: Final = 0.95
_ALPHA: Final = 0.01  # how often a test may name a patient who is absent


@dataclass(frozen=True, kw_only=True, eq=False)
class Audited:
    """One training with canaries.

    Attributes:
        scores: how strongly the sent data suggest that each canary was in the table, float64 of shape (canaries,).
        is_in: whether the canary was in the table.
    """

    scores: Numbers
    is_in: npt.NDArray[np.bool_]

    @property
    def advantage(self) -> float:
        """The advantage of an attack at the median score: its share of named members, minus that of named others."""
        named = self.scores > np.median(self.scores)
        return float(named[self.is_in].mean() - named[~self.is_in].mean())

    def bound(self, delta: float) -> float:
        """The largest epsilon at `delta` that this many right guesses rule out (95%), over numbers of guesses."""
        order, found = np.argsort(self.scores), 0.0
        for each in (5, 15, 50, 100):
            right = int((~self.is_in[order[:each]]).sum() + self.is_in[order[-each:]].sum())
            # Four numbers of guesses are tried, so each has a quarter of the error.
            found = max(found, _ruled_out(len(order), 2 * each, right, delta, (1 - _CONFIDENCE) / 4))
        return found


def canary_plan(content: dict[str, Any], rounds: int, **promise: Any) -> Plan:
    """A plan with a logistic regression on as many concepts as there are canaries.

    Args:
        content: of a private network plan; its concepts are replaced.
        rounds: of the training.
        promise: changes keys of `privacy`.
    """
    concept = {"kind": "number", "definition": "Made up.", "low": 0.0, "high": 1.0}
    changes = {
        "concepts": [concept | {"name": f"canary-{number:03d}"} for number in range(CANARIES)],
        "schedule": {"aggregate": "every-batch", "epochs": rounds, "batches_per_epoch": 1},
        "architecture": {"name": "dense", "hidden": []},
        "privacy": content["privacy"] | {"patients": _PATIENTS + CANARIES // 2} | promise,
    }
    return Plan.model_validate_json(json.dumps(content | changes))


def audited_training(plan: Plan, seed: int, deviations: float = 1.0) -> Audited:
    """Train once. Only the honest shares of noise are added, because the other sites belong to the attacker.

    Args:
        plan: of `canary_plan`.
        seed: decides the patients, the canaries in the table and the noise, so an audit can be repeated.
        deviations: by which the noise is multiplied; below 1 in a weakened copy.
    """
    manifest, training, generator = manifest_of(plan), plan.private_training, np.random.default_rng(seed)
    assert training is not None
    rule = plan.ingredients.server_rule
    parameters, state = manifest.initial_parameters(plan.seed), begin_rule(rule, manifest.parameters)
    exchange, is_in = Exchanges(plan, manifest).of(0, Stage.TRAINING, b""), generator.permutation(CANARIES) % 2 == 0
    patients = generator.standard_normal((_PATIENTS, CANARIES))
    features = np.concatenate([patients, 30.0 * np.eye(CANARIES)[is_in]]).astype(np.float32)
    outcomes = np.concatenate([generator.integers(0, 2, _PATIENTS), np.ones(is_in.sum())]).astype(np.float64)
    scores, everybody = np.zeros(CANARIES), PrivateRows.of(features, outcomes, None)
    known = PrivateRows.of(features[:_PATIENTS], outcomes[:_PATIENTS], None)
    for _ in range(training.rounds):
        views = manifest.views(parameters)
        layers = [Layer(*(views[tensor.name].astype(np.float64) for tensor in training.tensors))]
        sums = np.array(clipped_gradients(layers, training.promise.clip, everybody))
        variance = max(1, round(training.honest * training.share_variance * deviations**2))
        noisy = sums + discrete_gaussian(len(sums), variance, generator.bytes)
        # The attacker knows all other patients, so it subtracts them. The gradient of a canary lowers its own column.
        others = np.array(clipped_gradients(layers, training.promise.clip, known))
        scores -= (noisy - others)[:CANARIES] / PRIVATE_SCALE
        scalars = dict(zip(training.names, noisy.tolist(), strict=True))
        found = Sums(exchange=exchange, contributors=4, updates=np.empty(0, np.int32), scalars=scalars)
        apply_rule(plan, manifest, found, parameters, state)
    return Audited(scores=scores, is_in=is_in)


def local_training(content: dict[str, Any], epsilon: float) -> PrivateTraining:
    """One round of three steps with local noise, for canaries. Steps are so small that the model learns no canary."""
    local = {"noise": "local", "epsilon": epsilon}
    schedule = {"aggregate": "every-round", "epochs": 3, "epochs_per_round": 3, "batches_per_epoch": 1}
    plan = json.loads(canary_plan(content, 1, **local).canonical)
    slow = plan | {"schedule": schedule, "optimiser": {"name": "sgd", "learning_rate": 0.1}}
    training = Plan.model_validate_json(json.dumps(slow)).private_training
    assert training is not None
    return training


def with_half_the_noise(training: PrivateTraining) -> PrivateTraining:
    """The weakened copy."""
    promise = training.promise
    weak = promise.model_copy(update={"epsilon": epsilon_of(2 * promise.ratio, promise.delta)})
    return replace(training, promise=weak)


def audited_local_steps(training: PrivateTraining, rounds: int, seed: int) -> float:
    """A lower bound of epsilon from one site's messages in this many rounds with canaries, each a separate round."""
    generator = np.random.default_rng(seed)
    arrays, scores, members = [np.zeros(tensor.shape) for tensor in training.tensors], [], []
    for _ in range(rounds):
        is_in = generator.random(CANARIES) < 0.5
        features = (30.0 * np.eye(CANARIES)[is_in]).astype(np.float32)
        rows = PrivateRows.of(features, np.ones(len(features)), None)
        sums = private_sums(training, arrays, rows, generator.bytes)
        scores.append(-np.array(sums[:CANARIES], np.float64))
        members.append(is_in)
    found, is_in = np.concatenate(scores), np.concatenate(members)
    absent, first = found[~is_in], len(found) // 4
    return bound_of_test(absent[:first], absent[first:], found[is_in], training.promise.delta)


def bound_of_test(calibrating: Numbers, absent: Numbers, present: Numbers, delta: float) -> float:
    """A lower bound of epsilon at `delta` (95%) from a test for a patient at one threshold.

    Args:
        calibrating: scores without the patient, which choose the threshold and nothing else.
        absent: further scores without the patient.
        present: scores with the patient.
    """
    threshold = np.quantile(calibrating, 1 - _ALPHA)
    false, true = int((absent > threshold).sum()), int((present > threshold).sum())
    level = (1 - _CONFIDENCE) / 2  # of each of two bounds
    most = float(beta.ppf(1 - level, false + 1, len(absent) - false))
    least = float(beta.ppf(level, true, len(present) - true + 1)) if true else 0.0
    return log((least - delta) / most) if least - delta > most else 0.0


def _ruled_out(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """The largest epsilon for which this many right guesses are less probable than `error`; 0 if there is none."""
    low, high = 0.0, 30.0
    for _ in range(40):
        middle = (low + high) / 2
        is_ruled_out = _probability(canaries, guesses, right, middle, delta) < error
        low, high = (middle, high) if is_ruled_out else (low, middle)
    return low


def _probability(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """An upper limit on the probability of this many right guesses under (epsilon, delta)."""
    chance = 1 / (1 + exp(-epsilon))
    steps = np.arange(1, right + 1)
    sums = np.cumsum(binom.pmf(right - steps, guesses, chance))
    more = float((sums / steps).max(initial=0.0))
    return min(1.0, float(binom.sf(right - 1, guesses, chance)) + 2 * canaries * delta * more)
