"""Decides from the sites' sums how a run continues: shared layers, best round and early end.

A decision is made when a round closes. It takes effect from the round after the next offer, which is sent at the same
moment. It follows from plan and sums alone, so a record of it can be replayed. The rules:

* a round is measured by what its contributions report about the received model. Best round r means the model that the
  sites received in round r;
* a round without a report of validation is not measured;
* Newton rounds end when no coefficient moves, or after the plan's largest number. The next round is the last one. The
  sums are written into the vector for the sites.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict, TypeAdapter

from protos.numbers.newton_sums import OutOfBound, has_converged
from protos.numbers.round_sums import Sums
from protos.plan.announcing_plan import AnnouncingPlan
from protos.plan.exchange import pack_layers, stage_at
from protos.plan.ingredients import SensitivePrefix
from protos.plan.manifest import LARGEST_LOSS, LOSS_SCALE, SENSITIVITY_SCALE, largest_weight
from protos.plan.network_plan import NetworkPlan
from protos.plan.noisy_results import noisy_fit
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.plan.prior_sums import AnnouncedSums, place_sums
from protos.plan.statistics_plan import StatisticsPlan
from protos.statistics.announced_statistics import AnnouncedStatistics
from protos.wire.messages import Stage

Float32: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Course:
    """The decisions of a run so far, which can be written as JSON.

    Attributes:
        chosen: for each of the manifest's layers, whether PLayer-FL federates it; empty before its probe and for all
            other methods.
        sensitivities: F of every layer of the network, summed over the sites, from the probe.
        curve: measured rounds, each with the mean validation loss of the model that was offered in it.
        best: the entry of the curve with the lowest loss; of equal ones the earliest.
        training_rounds: the number of Newton rounds if they end early, otherwise None.
        exponents: of the scales of short integers in the next round, one for each layer. Empty for 32 bits.
        summed_rows: of the sites in the newest sum of a network's updates; 0 with equal weights.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")  # applies to values that are read from disk

    chosen: tuple[bool, ...] = ()
    sensitivities: tuple[float, ...] = ()
    curve: tuple[tuple[int, float], ...] = ()
    best: tuple[int, float] | None = None
    training_rounds: int | None = None
    exponents: tuple[int, ...] = ()
    summed_rows: int = 0

    @property
    def best_round(self) -> int | None:
        """Return the round at whose beginning the model had the lowest validation loss."""
        return None if self.best is None else self.best[0]

    def to_json(self) -> bytes:
        return _ADAPTER.dump_json(self)

    @classmethod
    def from_json(cls, raw: bytes) -> Course:
        """Read the JSON text that `to_json` wrote. Raises pydantic's ValidationError for any other text."""
        return _ADAPTER.validate_json(raw, strict=True)


_ADAPTER: Final = TypeAdapter(Course)


def rounds_of(plan: Plan, course: Course) -> int:
    """Return the total number of rounds of a run, as far as this number is already known."""
    saved = 0 if course.training_rounds is None else plan.training_rounds - course.training_rounds
    return plan.rounds - saved


def layers_at(plan: Plan, course: Course, round_number: int) -> bytes:
    """Return which layers of the model are summed in a round, as bytes for the message that offers the round."""
    stage = stage_at(plan, round_number, course.training_rounds)
    return b"" if stage is Stage.PROBE else layers_of_result(course)


def layers_of_result(course: Course) -> bytes:
    """Return which layers of the model the result contains, as bytes for the last message of the run."""
    return pack_layers(course.chosen)


def follow(plan: Plan, course: Course, round_number: int, sums: Sums) -> Course:
    """Return the decisions about the rest of the run, after a round is complete.

    Args:
        course: the decisions before the round.
        round_number: from 0.
    """
    match sums.exchange.stage:
        case Stage.PROBE:
            return _choose_layers(plan, course, sums)
        case Stage.STATISTICS | Stage.NEWTON | Stage.GUARD:
            return course
        case _:
            assert isinstance(plan, NetworkPlan)
            return _measure(plan, course, round_number, sums)


def _choose_layers(plan: Plan, course: Course, sums: Sums) -> Course:
    """Choose PLayer-FL's layers up to the first sharp rise, p = min {p : F_(p+1) / F_p > threshold}."""
    federated = plan.ingredients.federated
    assert isinstance(federated, SensitivePrefix)
    found = tuple(sums.scalars[scalar.name] / SENSITIVITY_SCALE for scalar in sums.exchange.scalars)
    # Multiplied instead of divided, so that a rise from 0 is sharp, and 0 after 0 is no rise. Without a sharp rise, all
    # layers except the last are chosen.
    sharp = (p for p, (before, after) in enumerate(pairwise(found), start=1) if after > federated.threshold * before)
    last = next(sharp, len(found) - 1)
    return replace(course, sensitivities=found, chosen=tuple(layer < last for layer in range(len(found) - 1)))


def _measure(plan: NetworkPlan, course: Course, round_number: int, sums: Sums) -> Course:
    if not (weight := sums.scalars.get("validation weight", 0) / largest_weight(plan)):
        return course
    loss = sums.scalars["validation loss"] / LOSS_SCALE / weight
    # A loss that is not finite was sent as LARGEST_LOSS, so the best loss must be below LARGEST_LOSS.
    is_better = loss < (LARGEST_LOSS if course.best is None else course.best[1])
    here = (round_number, loss)
    return replace(course, curve=(*course.curve, here), best=here if is_better else course.best)


def announce(plan: AnnouncingPlan, course: Course, round_number: int, sums: Sums, values: Float32) -> Course:
    """Write the sums of a round into the vector that sites receive. Return the decisions after this round.

    Args:
        course: the decisions before the round.
        round_number: from 0.
        values: float32 of the announced tensor's size, changed in place.
    """
    made = plan.training_rounds if course.training_rounds is None else course.training_rounds
    stage, integers = sums.exchange.stage, [sums.scalars[scalar.name] for scalar in sums.exchange.scalars]
    place_sums(values, plan.place(round_number, made), integers)
    is_last = round_number == plan.training_rounds
    if stage is not Stage.NEWTON or is_last or not _has_ended(plan, round_number, values):
        return course
    return replace(course, training_rounds=round_number)


def _has_ended(plan: AnnouncingPlan, round_number: int, values: Float32) -> bool:
    """Return whether no coefficient moves any more.

    Impossible sums do not end the rounds here, because every site refuses them.
    """
    if isinstance(plan, StatisticsPlan):
        return AnnouncedStatistics(plan, values, round_number).has_converged
    assert isinstance(plan, PriorPlan)
    try:
        path = AnnouncedSums(plan, values).coefficients(round_number)
    except OutOfBound:
        return False
    return has_converged(path[-2], path[-1])


def analysed(plan: StatisticsPlan, course: Course, values: Float32, rounds_made: int) -> list[dict[str, Any]]:
    """Return what the analyses of a plan print, as values for JSON. Empty before the last round."""
    newton = plan.training_rounds if course.training_rounds is None else course.training_rounds
    if rounds_made < 1 + newton + (newton > 0):
        return []
    return AnnouncedStatistics(plan, values, newton, is_over=True).results()


def fitted(prior: PriorPlan, course: Course, values: Float32, rounds_made: int) -> dict[str, Float32]:
    """Return the fitted regression as named float32 arrays (outputs, columns): coefficients and standard errors.

    A run that ended early has the values after its last Newton round. Before the first Newton round the result is
    empty.
    """
    if rounds_made < (2 if prior.private is None else 1):
        return {}
    found = AnnouncedSums(prior, values)
    if prior.private is not None:
        slopes, deviations = noisy_fit(prior.private, found.terms, prior.ridge)
        return {"coefficients": slopes.astype(np.float32), "standard_errors": deviations.astype(np.float32)}
    most = prior.training_rounds if course.training_rounds is None else course.training_rounds
    # Sums that were never sent to sites are zeros, and a Newton step cannot be computed from zeros.
    made = min(most, rounds_made - 1)
    try:
        coefficients = found.coefficients(made)[-1]
        errors = found.newton(made).standard_errors(prior.ridge)
    except OutOfBound:  # honest sites cannot have sent these sums
        return {}
    return {"coefficients": coefficients.astype(np.float32), "standard_errors": errors.astype(np.float32)}
