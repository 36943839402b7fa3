"""Server rules: the aggregate and the federated parameters to the next federated parameters.

A rule sees sums only. Masking is therefore not a mode of any rule. What a rule remembers from round to
round is kept in float64 beside the parameters.
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from protos.fixed_point import BLOCK, FixedPoint
from protos.ingredients import Adaptive, Mean, Moment, ServerRule
from protos.plan import EqualWeights, RowWeights, Weighting
from protos.tensors import Integers32

Float32: TypeAlias = npt.NDArray[np.float32]
Float64: TypeAlias = npt.NDArray[np.float64]
RuleState: TypeAlias = dict[str, Float64]


def total_weight(weighting: Weighting, contributors: int, scalars: tuple[int, ...]) -> float:
    """The sum of the weights by which the sites multiplied their changes."""
    match weighting:
        case EqualWeights():
            return float(contributors)
        case RowWeights(largest_rows=largest_rows):
            return scalars[0] / largest_rows
        case _:
            assert_never(weighting)


def begin_rule(rule: ServerRule, parameters: int) -> RuleState:
    """What a rule remembers before the first round: named float64 arrays of shape (parameters,)."""
    match rule:
        case Mean():
            return {}
        case Adaptive():
            return {"first moment": np.zeros(parameters), "second moment": np.zeros(parameters)}
        case _:
            assert_never(rule)


def apply_rule(
    rule: ServerRule,
    parameters: Float32,
    changes: Integers32,
    fixed_point: FixedPoint,
    weight: float,
    state: RuleState,
) -> None:
    """Turn the parameters and the rule's memory into the next ones, in place.

    Args:
        rule: the method's server rule.
        parameters: float32 of shape (n,), what this round was trained from.
        changes: int32 of shape (n,), the sum of the encoded weighted changes.
        fixed_point: how the changes were encoded.
        weight: the sum of the weights, above 0.
        state: what `begin_rule` made.
    """
    for start in range(0, parameters.size, BLOCK):
        part = slice(start, start + BLOCK)
        # In float64 the sum is exact, so that adding 1 for n rounds gives n.
        mean = fixed_point.decode(changes[part], weight)
        block = parameters[part]
        block[...] = block + _step(rule, mean, {name: array[part] for name, array in state.items()})


def _step(rule: ServerRule, mean: Float64, state: RuleState) -> Float64:
    """By how much the parameters move for a mean change; the state is written in place."""
    match rule:
        case Mean():
            return mean
        case Adaptive():
            return _adaptive_step(rule, mean, state["first moment"], state["second moment"])
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
