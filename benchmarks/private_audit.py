"""Audits a whole private training in one run, with artificial patients (canaries).

It draws made-up patients by coin, trains on them, and guesses which were drawn.

Each patient is a canary: the clipped gradient has one large number, and no other canary has the same one. The attacker
is the coordinator. It chooses the first values of the network, so that each canary wakes one neuron, and reads the
noisy sum of every round. It knows all other patients and would subtract them exactly, so there are none. It guesses
only for one in 24 canaries, those with the clearest signs. The number of right guesses gives a lower bound of epsilon
(95%), without repeating a round. Sums, noise and steps are those of the deployed code. A plan allows 4,096 numbers.
These are too few canaries to detect that half of the noise is missing, so the audited network is wider.

Source: Steinke, Nasr, Jagielski 2023, "Privacy auditing with one (1) training run", algorithm 1 and theorem 5.2.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import exp, prod
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

from protos.plan.architecture import DenseNetwork, network_tensors
from protos.plan.noisy_results import mean_change
from protos.plan.plan import Plan, plan_from_json
from protos.plan.private_training import WIDEST
from protos.privacy.accounting import PRIVATE_SCALE, epsilon_of
from protos.privacy.discrete_gaussian import RandomBytes
from site_agent.gate.privacy_ledger import with_noise
from site_agent.trainer.training.private_gradient import PrivateRows, private_sums

Numbers: TypeAlias = npt.NDArray[np.float64]
Noise: TypeAlias = Callable[[Plan, Sequence[int], RandomBytes], list[int]]

NEURONS: Final = 100  # of the audited network, with 40,000 canaries
NEURONS_OF_A_PLAN: Final = 8  # the largest number that a plan allows; so there are at most 3,936 canaries
_LARGE: Final = 30.0  # the input that only one canary has; its gradient is nearly in this direction
_CONFIDENCE: Final = 0.95


@dataclass(frozen=True, kw_only=True, eq=False)
class Audited:
    """The result of one training with canaries.

    Attributes:
        scores: how strongly the sent data suggest that each canary was in the table, float64 of shape (canaries,).
        is_in: whether the canary was in the table.
    """

    scores: Numbers
    is_in: npt.NDArray[np.bool_]

    @property
    def advantage(self) -> float:
        """The attack's true positive rate minus its false positive rate, with the median score as threshold."""
        named = self.scores > np.median(self.scores)
        return float(named[self.is_in].mean() - named[~self.is_in].mean())

    def bound(self, delta: float) -> float:
        """Return the largest epsilon at `delta` that the correct guesses for 1 of 24 canaries rule out (95%)."""
        # The number of guesses is fixed beforehand. In simulations, guessing for 1 of 24 canaries was best at detecting
        # a plan with half of the noise.
        order, each = np.argsort(self.scores), len(self.scores) // 48
        right = int((~self.is_in[order[:each]]).sum() + self.is_in[order[-each:]].sum())
        return _ruled_out(len(order), 2 * each, right, delta, 1 - _CONFIDENCE)


def canary_plan(
    content: dict[str, Any], rounds: int, *, steps: int = 1, neurons: int = NEURONS, **promise: Any
) -> Plan:
    """Return a plan with the concepts of the canaries' network, and with as many neurons as a plan allows.

    Args:
        content: of a private network plan; its concepts are replaced.
        rounds: of the training.
        steps: of each round, more than 1 only with local noise.
        neurons: of the audited network.
        promise: changes keys of `privacy`.
    """
    concept = {"kind": "number", "definition": "Made up.", "low": 0.0, "high": 1.0}
    schedule = {"aggregate": "every-batch", "epochs": rounds * steps, "batches_per_epoch": 1}
    several = {"aggregate": "every-round", "epochs_per_round": steps}
    changes = {
        "concepts": [concept | {"name": f"canary-{number:03d}"} for number in range(WIDEST)],
        "schedule": schedule | (several if steps > 1 else {}),
        "architecture": {"name": "dense", "hidden": [NEURONS_OF_A_PLAN]},
        "privacy": content["privacy"] | {"patients": neurons * (WIDEST - neurons) // 2} | promise,
    }
    return plan_from_json(json.dumps(content | changes))


def with_a_share_of_the_noise(plan: Plan, share: float) -> Plan:
    """Return a weakened copy of a plan, whose noise has only this fraction of the standard deviation."""
    promise = plan.privacy
    assert promise is not None
    content = json.loads(plan.canonical)
    content["privacy"]["epsilon"] = epsilon_of(promise.ratio / share, promise.delta)
    return plan_from_json(json.dumps(content))


def audited_training(
    plan: Plan, *, neurons: int = NEURONS, random_bytes: RandomBytes = os.urandom, noise: Noise = with_noise
) -> Audited:
    """Train once. Only the honest sites train, because the other sites belong to the attacker.

    Args:
        plan: of `canary_plan`, with shared noise or local noise.
        neurons: of the network; the other inputs of the widest layer are canaries' own.
        random_bytes: for the coins and the noise; the operating system's, or those of a generator to repeat an audit.
        noise: adds one site's share, as the gate does.
    """
    training, inputs = plan.private_training, WIDEST - neurons
    assert training is not None
    wide = network_tensors(DenseNetwork(name="dense", hidden=(neurons,)), columns=WIDEST, outputs=1)
    training = replace(training, network=wide, tensors=wide)
    is_in = np.frombuffer(random_bytes(neurons * inputs), np.uint8) < 128
    homes = [_rows_of(part, neurons) for part in np.array_split(np.flatnonzero(is_in), training.honest)]
    # The neuron of a canary has the value 1 before relu, and every other neuron has the value -1. Rounds hardly change
    # that.
    first = np.concatenate([np.zeros((neurons, inputs)), 2 * np.eye(neurons) - 1], axis=1)
    values = np.concatenate([first.ravel(), np.zeros(neurons), -np.ones(neurons), np.zeros(1)]).astype(np.float32)
    ends, scores = np.cumsum([prod(tensor.shape) for tensor in wide])[:-1], np.zeros(neurons * inputs)
    for _ in range(training.rounds):
        parts = zip(np.split(values.astype(np.float64), ends), wide, strict=True)
        arrays = [part.reshape(tensor.shape) for part, tensor in parts]
        sent = [noise(plan, private_sums(training, arrays, rows, random_bytes), random_bytes) for rows in homes]
        noisy = np.sum(sent, axis=0).astype(np.float64)
        scores += noisy[: ends[0]].reshape(neurons, WIDEST)[:, :inputs].ravel() / PRIVATE_SCALE
        values = np.add(values, mean_change(training, noisy), casting="same_kind", dtype=np.float32)
    return Audited(scores=scores, is_in=is_in)


def _rows_of(canaries: npt.NDArray[np.int64], neurons: int) -> PrivateRows:
    """Return a row for each canary: a large input that no other canary has, and an input that activates its neuron."""
    inputs, places = WIDEST - neurons, np.arange(len(canaries))
    neuron, own = np.divmod(canaries, inputs)
    features = np.zeros((len(canaries), WIDEST), np.float32)
    features[places, own], features[places, inputs + neuron] = _LARGE, 1.0
    return PrivateRows.of(features, np.ones(len(canaries)), None)


def _ruled_out(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """Return the largest epsilon for which so many correct guesses are less probable than `error`, or 0."""
    low, high = 0.0, 30.0
    for _ in range(40):
        middle = (low + high) / 2
        is_ruled_out = _probability(canaries, guesses, right, middle, delta) < error
        low, high = (middle, high) if is_ruled_out else (low, middle)
    return low


def _probability(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return an upper limit on the probability of so many correct guesses under (epsilon, delta) privacy."""
    chance = 1 / (1 + exp(-epsilon))
    steps = np.arange(1, right + 1)
    sums = np.cumsum(binom.pmf(right - steps, guesses, chance))
    more = float((sums / steps).max(initial=0.0))
    return min(1.0, float(binom.sf(right - 1, guesses, chance)) + 2 * canaries * delta * more)
