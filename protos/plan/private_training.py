"""Defines private training: each round sums one clipped gradient for each patient, with noise.

The sites send no update of parameters. Each site adds up one term for each patient: the gradient of the patient's rows,
shortened to the norm `clip`. The gate adds its share of the noise. The method's server rule receives the step along the
noisy sum as the mean update. Every site receives the same parameters. The rules:

* a round has one sum over all training rows. So all rounds of a run together are one Gaussian with a closed form;
* under local noise a round has several steps. Each step adds the noise of a single site before the next step reads the
  values. The site sends the sum of the noisy sums. All steps together cost as much privacy as that many rounds;
* private layers of a site use their own part of these gradients. They have the full noise of this site, because no
  other site adds to them. The noisy sums of a step stay at the site;
* the sum is divided by the number of patients that the plan declares, because a count would cost privacy;
* inputs are concepts. Their encoding follows from the plan's declarations and never from a site's rows;
* no other number is sent: no loss, weight or choice of a checkpoint over all sites.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isqrt, prod, sqrt
from typing import Final

import numpy as np
import numpy.typing as npt

from protos.plan.architecture import Architecture, DenseNetwork, TensorSpec
from protos.plan.ingredients import InnerProblem, Method
from protos.plan.optimisers import Optimiser, is_plain_descent
from protos.plan.patient_privacy import TrainingPrivacy
from protos.plan.schedules import EpochSchedule, Schedule
from protos.privacy.accounting import PRIVATE_SCALE, share_variance
from protos.privacy.discrete_gaussian import LARGEST_VARIANCE

MOST_PRIVATE_NUMBERS: Final = 4096
MOST_PRIVATE_ROUNDS: Final = 10_000
LARGEST_PATIENTS: Final = 1 << 22  # of one site, for the bound of its sums
WIDEST: Final = 500  # inputs of one layer, so that sums of products are exact (private_gradient.py)
_DEVIATIONS: Final = 64  # standard deviations; a share of the noise is larger with a probability below 10**-800


@dataclass(frozen=True)
class PrivateTraining:
    """The quantities that a plan's private training depends on.

    Attributes:
        network: every tensor, in the network's order.
        tensors: the shared tensors, in the same order.
        has_own_steps: whether private tensors are trained too, with noise of their site alone.
        steps: noisy sums of a site in each round; 1 unless the noise is local.
        sites: the plan's contributors.
        honest: the number of sites whose shares of the noise are in every sum and count; 1 if the noise is local.
        inner: noisy sums of each step; more than 1 only for pFedMe's inner problem.
        pull: the part of its distance that a sum's step returns to the start of the round or the shared model.
        follow: the part of the distance that the shared model follows pFedMe's inner one after a step; 0 without
            pFedMe.
    """

    network: tuple[TensorSpec, ...]
    tensors: tuple[TensorSpec, ...]
    has_own_steps: bool
    promise: TrainingPrivacy
    rounds: int
    steps: int
    sites: int
    honest: int
    learning_rate: float
    inner: int
    pull: float
    follow: float

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Return the names of the numbers that are sent in each round, in the order of the parameters."""
        return tuple(
            f"private gradient: {tensor.name} {place}" for tensor in self.tensors for place in range(prod(tensor.shape))
        )

    @property
    def trained(self) -> int:
        """Return how many of the network's first tensors are trained. All other tensors keep their values."""
        return len(self.network if self.has_own_steps else self.tensors)

    @cached_property
    def is_own(self) -> npt.NDArray[np.bool_]:
        """Return which trained values belong to private layers, in the network's order; bool of shape (n,)."""
        trained, shared = self.network[: self.trained], {tensor.name for tensor in self.tensors}
        return np.concatenate([np.full(tensor.number_count, tensor.name not in shared) for tensor in trained])

    @cached_property
    def own_numbers(self) -> int:
        return int(self.is_own.sum())

    @cached_property
    def own_variance(self) -> int:
        """Return the variance of the noise in each number of a private layer's sum. One site adds this whole noise."""
        return share_variance(self.promise.ratio, 1, self.sums)

    @cached_property
    def own_bound(self) -> int:
        """Return the largest absolute value of one number in a round's sum for a private layer, including the noise."""
        return self.largest_sum + _DEVIATIONS * (isqrt(self.steps * self.own_variance) + 1)

    @property
    def is_local(self) -> bool:
        """Return whether each site's trainer draws the noise of each step, so that the gate process adds no noise."""
        return self.promise.noise == "local"

    @cached_property
    def share_variance(self) -> int:
        """Return the variance of a site's noise in each integer of a round, or of a step if the noise is local."""
        return share_variance(self.promise.ratio, self.honest, self.sums)

    @property
    def sums(self) -> int:
        """Return the number of noisy sums of a site in the whole run."""
        return self.rounds * self.steps * self.inner

    @cached_property
    def bound(self) -> int:
        """Return the largest absolute value of an integer that one site sends, including the noise of this site."""
        noise = isqrt(self.steps * self.inner * self.share_variance)
        return self.largest_sum + _DEVIATIONS * (noise + 1)

    @property
    def largest_sum(self) -> int:
        """Return the largest absolute value of a number in one step's sum at one site. Larger numbers are clipped."""
        return LARGEST_PATIENTS * PRIVATE_SCALE

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the honest sites' noise in a round's or step's sum, for terms of norm 1."""
        return sqrt(self.honest * self.share_variance) / PRIVATE_SCALE


# Keys of a plan that make a site send further numbers, or make patients decide about the sums, each with the reason.
UNPAID: Final[Mapping[str, str]] = {
    "weighting": (
        "row weights are counts of patients, and the privacy budget does not cover these counts. Set weighting to "
        "{name: equal}"
    ),
    "checkpoint": (
        "checkpoint: global sums losses that the privacy budget does not cover. Set checkpoint to local or latest"
    ),
    "loss": "the program cannot clip the gradients of class weights and of other losses yet. Remove loss",
    "start": "in training with privacy all sites start from the same values. Remove start",
    "sites": "a site that only evaluates adds no noise, so every site must have the tier training",
}


def why_no_private_network(network: Architecture, columns: int | None, outputs: int | None) -> Iterator[str]:
    """Yield each reason why a network cannot be trained with differential privacy, as one clause.

    Args:
        columns: of the concepts that the network reads; None if it does not read concepts.
        outputs: as the plan lists them; None if each site has its own. Then its own table must have a binary outcome.
    """
    if not isinstance(network, DenseNetwork) or network.activation != "relu" or network.dropout:
        yield (
            f"the program cannot compute exact gradients of single patients for the network {network.name}. Set "
            "architecture to {name: dense, hidden: [...], activation: relu} without dropout"
        )
        return
    if columns is None:
        yield (
            "each site would encode its columns by its own rows. List concepts in the plan, because the plan "
            "declares how concepts are encoded"
        )
        return
    widths = (columns, *network.hidden)
    numbers = sum((inner + 1) * outer for inner, outer in zip(widths, (*network.hidden, 1), strict=True))
    if max(widths) > WIDEST:
        yield f"the widest layer has {max(widths)} inputs, but training with privacy allows at most {WIDEST} inputs"
    if numbers > MOST_PRIVATE_NUMBERS:
        yield (
            f"the network has {numbers} parameters, but training with privacy allows at most {MOST_PRIVATE_NUMBERS} "
            "parameters"
        )
    if outputs not in (None, 1):
        yield "training with privacy needs a binary outcome, so outputs must be 1"


def why_no_private_steps(
    promise: TrainingPrivacy, schedule: Schedule, optimiser: Optimiser, method: Method, honest: int
) -> Iterator[str]:
    """Yield each reason why the steps of a plan cannot be made with differential privacy, as one clause.

    Args:
        honest: sites whose shares of the noise are in every sum and are counted.
    """
    is_local, problem = promise.noise == "local", method.procedure
    pull = optimiser.learning_rate * method.proximal_strength
    in_round = schedule.steps_per_round * (problem.steps if isinstance(problem, InnerProblem) else 1)
    sums = schedule.rounds * in_round
    if not isinstance(schedule, EpochSchedule) or schedule.batches_per_epoch != 1:
        yield (
            "in training with privacy, each step sums one gradient over all rows. Set schedule to "
            "{aggregate: every-batch, epochs: ..., batches_per_epoch: 1}"
        )
    elif schedule.steps_per_round != 1 and not is_local:
        yield (
            f"a round of this plan has {schedule.steps_per_round} steps, but shared noise allows only 1 step. Set "
            "noise under privacy to local. Each site then adds noise in each step that is "
            f"{sqrt(max(1, honest)):.3g} times as large as its share"
        )
    if sums > MOST_PRIVATE_ROUNDS:
        yield f"the plan has {sums} steps, but training with privacy allows at most {MOST_PRIVATE_ROUNDS} steps"
    if in_round * share_variance(promise.ratio, 1, sums) > LARGEST_VARIANCE:
        yield (
            f"the program cannot draw the large noise that {sums} steps at epsilon {promise.epsilon:g} need. Plan "
            "fewer steps or a larger epsilon"
        )
    if is_local and pull > 1.0:
        yield (
            f"learning_rate times the strength of the proximal term is {pull:g}, but local noise allows at most "
            "1. With more, a step would move beyond the received values"
        )
    if isinstance(problem, InnerProblem) and problem.rate * problem.strength > 1.0:
        yield f"rate times strength of pfedme is {problem.rate * problem.strength:g}, but local noise allows at most 1"
    if not is_plain_descent(optimiser):
        yield (
            "in training with privacy, the coordinator makes one plain step along each sum. Set optimiser to "
            "{name: sgd, learning_rate: ...}"
        )
