"""Computes the next shared parameters from the sum of a round and the current parameters, by the plan's server rule.

A rule receives only the sums of one round. So no rule needs to distinguish masked from unmasked sums. A rule's state is
stored in float64.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from protos.numbers.fixed_point import BLOCK, FixedPoint
from protos.numbers.round_sums import Sums
from protos.plan.architecture import TensorSpec
from protos.plan.ingredients import Adaptive, Controlled, Mean, Moment, ServerRule
from protos.plan.manifest import Manifest, slices_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.noisy_results import mean_change

_FEWEST_FOR_THREADS: Final = 64  # number of blocks; with fewer, threads cost more than they save
_MOST_THREADS: Final = 4

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
RuleState: TypeAlias = dict[str, Float64]


@dataclass(frozen=True)
class _Stretch:
    """A range of adjacent numbers in the sum. All of them are divided by the same number: scale times weight."""

    place: slice  # in the parameters
    part: slice  # in the sum
    divisor: float

    def blocks(self) -> Iterator[_Stretch]:
        """Yield smaller parts of this range, each small enough for the cache of a processor core."""
        for start in range(0, self.part.stop - self.part.start, BLOCK):
            part = slice(self.part.start + start, min(self.part.start + start + BLOCK, self.part.stop))
            first = self.place.start + start
            yield _Stretch(slice(first, first + part.stop - part.start), part, self.divisor)


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

    def move(blocks: list[_Stretch]) -> None:
        for block in blocks:
            mean = np.divide(sums.updates[block.part], block.divisor, dtype=kind)
            step = _step(rule, mean, {name: array[block.place] for name, array in state.items()}, pace)
            np.add(parameters[block.place], step, out=parameters[block.place], casting="same_kind")

    blocks = [block for stretch in _stretches(plan, manifest, sums) for block in stretch.blocks()]
    if len(blocks) < _FEWEST_FOR_THREADS:
        move(blocks)
    else:  # no block reads data that another writes, so the bits do not depend on the order
        cores = min(os.cpu_count() or 1, _MOST_THREADS)
        with ThreadPoolExecutor(cores) as threads:
            for done in [threads.submit(move, blocks[core::cores]) for core in range(cores)]:
                done.result()


def _stretches(plan: NetworkPlan, manifest: Manifest, sums: Sums) -> Iterator[_Stretch]:
    weight = sums.weight(plan.weighting)
    if not sums.exponents:
        scale = FixedPoint(plan.masking.clipping_range, len(plan.sites)).scale
        for place, part in spans(manifest, sums.exchange.up):
            yield _Stretch(place, part, scale * weight)
        return
    starts = dict(zip((tensor.name for tensor in manifest.tensors), slices_of(manifest.tensors), strict=True))
    numbers = {layer: number for number, layer in enumerate(manifest.layers)}
    for tensor, part in zip(sums.exchange.up, slices_of(sums.exchange.up), strict=True):
        scale = math.ldexp(1.0, sums.exponents[numbers[tensor.layer]])
        yield _Stretch(starts[tensor.name], part, scale * weight)


def spans(manifest: Manifest, tensors: tuple[TensorSpec, ...]) -> tuple[tuple[slice, slice], ...]:
    """Return the positions of tensors in the manifest's vector, and in a vector with only these tensors.

    Args:
        manifest: every tensor that may be sent.
        tensors: some of them, in the manifest's order.

    Returns:
        pairs of slices: a position in the manifest's vector, and the position of the same numbers in the smaller
            vector.
        Neighbouring tensors share one pair.
    """
    places = dict(zip((tensor.name for tensor in manifest.tensors), slices_of(manifest.tensors), strict=True))
    found: list[tuple[slice, slice]] = []
    for tensor, part in zip(tensors, slices_of(tensors), strict=True):
        place = places[tensor.name]
        if found and found[-1][0].stop == place.start:
            before, earlier = found.pop()
            place, part = slice(before.start, place.stop), slice(earlier.start, part.stop)
        found.append((place, part))
    return tuple(found)


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
