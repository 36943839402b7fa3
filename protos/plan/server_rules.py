"""Computes the next shared parameters from the sum of a round and the current parameters, by the plan's server rule.

A rule receives only the sums of one round. So no rule needs to distinguish masked from unmasked sums. A rule's state is
stored in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from protos.numbers.fixed_point import BLOCK, FixedPoint
from protos.numbers.round_sums import Sums
from protos.plan.ingredients import Adaptive, Controlled, Mean, Moment, ServerRule
from protos.plan.manifest import Manifest, slices_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.noisy_results import mean_change

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
RuleState: TypeAlias = dict[str, Float64]


@dataclass(frozen=True)
class _Pace:
    """The factors in SCAFFOLD's server rule: the sum of a round's learning rates, and contributors / sites."""

    rates: float
    share: float


def begin_rule(rule: ServerRule, parameters: int) -> RuleState:
    """Return the state of a server rule before the first round: named float64 arrays of shape (parameters,)."""
    match rule:
        case Mean():
            return {}
        case Adaptive():
            return {"first moment": np.zeros(parameters), "second moment": np.zeros(parameters)}
        case Controlled():
            return {"control": np.zeros(parameters)}
        case _:
            assert_never(rule)


def apply_rule(plan: NetworkPlan, manifest: Manifest, sums: Sums, parameters: Float32, state: RuleState) -> None:
    """Update the shared parameters and the state of the server rule in place.

    Args:
        sums: of one training round.
        parameters: float32 of shape (manifest.parameters,), the starting parameters of this round.
        state: the result of `begin_rule`.
    """
    rule, training = plan.ingredients.server_rule, plan.private_training
    rates = plan.schedule.steps_per_round * plan.optimiser.learning_rate
    pace = _Pace(rates, sums.contributors / len(plan.sites))
    if training is not None:
        noisy = np.array([sums.scalars[name] for name in training.names], np.float64)
        step = _step(rule, mean_change(training, noisy), state, pace)
        np.add(parameters, step, out=parameters, casting="same_kind")
        return

    # In float64 sums are exact, so adding 1 for n rounds gives n. In float32 short integers are.
    kind = np.float32 if isinstance(rule, Mean) and sums.exponents else np.float64
    for place, part, divisor in _blocks(plan, manifest, sums):
        mean = np.divide(sums.updates[part], divisor, dtype=kind)
        step = _step(rule, mean, {name: array[place] for name, array in state.items()}, pace)
        np.add(parameters[place], step, out=parameters[place], casting="same_kind")


def _blocks(plan: NetworkPlan, manifest: Manifest, sums: Sums) -> Iterator[tuple[slice, slice, float]]:
    """Yield for some adjacent numbers their place in the parameters and in the sum, and the divisor: scale * weight.

    Blocks are small enough for the cache of a processor core.
    """
    weight, scale = sums.weight(plan.weighting), FixedPoint(plan.masking.clipping_range, len(plan.sites)).scale
    numbers = {layer: number for number, layer in enumerate(manifest.layers)}
    for tensor, part in zip(sums.exchange.up, slices_of(sums.exchange.up), strict=True):
        place = manifest.places[tensor.name]
        if sums.exponents:
            scale = math.ldexp(1.0, sums.exponents[numbers[tensor.layer]])
        for start in range(0, tensor.number_count, BLOCK):
            end = min(start + BLOCK, tensor.number_count)
            moved = slice(place.start + start, place.start + end)
            yield moved, slice(part.start + start, part.start + end), scale * weight


def _step(rule: ServerRule, mean: Float64, state: RuleState, pace: _Pace) -> Float64:
    """Return the change of the parameters that the server rule makes for a mean update. Update the state in place."""
    match rule:
        case Mean():
            return mean
        case Adaptive():
            return _adaptive_step(rule, mean, state["first moment"], state["second moment"])
        case Controlled(rate=rate):
            _move_control(mean, state["control"], pace)
            return rate * mean
        case _:
            assert_never(rule)


def _adaptive_step(rule: Adaptive, mean: Float64, first: Float64, second: Float64) -> Float64:
    squared = mean * mean
    first[...] = rule.first_decay * first + (1 - rule.first_decay) * mean
    match rule.moment:
        case Moment.ADAM:
            second[...] = rule.second_decay * second + (1 - rule.second_decay) * squared
        case Moment.YOGI:
            second -= (1 - rule.second_decay) * np.sign(second - squared) * squared
        case Moment.ADAGRAD:
            second += squared
        case _:
            assert_never(rule.moment)
    step: Float64 = rule.rate * first / (np.sqrt(second) + rule.offset)
    return step


def _move_control(mean: Float64, control: Float64, pace: _Pace) -> None:
    """Update the control c: c += contributors / sites * mean change of the sites' c_i. Karimireddy et al. 2020, eq. 5.

    A site's c_i changes by -c - update / rates, with the c that the site received in float32. With any other c, the
    control would drift away from the mean of the c_i by one rounding in every round.
    """
    sent = control.astype(np.float32)
    control += pace.share * (-sent - mean / pace.rates)
