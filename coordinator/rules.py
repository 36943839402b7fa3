"""Server rules: the aggregate and the federated parameters to the next federated parameters.

A rule sees sums only. Masking is therefore not a mode of any rule.
"""

from __future__ import annotations

from typing import assert_never

import numpy as np
import numpy.typing as npt

from protos.fixed_point import BLOCK, FixedPoint
from protos.ingredients import Mean, ServerRule
from protos.plan import EqualWeights, RowWeights, Weighting
from protos.tensors import Integers32


def total_weight(weighting: Weighting, contributors: int, scalars: tuple[int, ...]) -> float:
    """The sum of the weights by which the sites multiplied their changes."""
    match weighting:
        case EqualWeights():
            return float(contributors)
        case RowWeights(largest_rows=largest_rows):
            return scalars[0] / largest_rows
        case _:
            assert_never(weighting)


def apply_rule(
    rule: ServerRule,
    parameters: npt.NDArray[np.float32],
    changes: Integers32,
    fixed_point: FixedPoint,
    weight: float,
) -> None:
    """Turn the parameters into the next ones, in place.

    Args:
        rule: the method's server rule.
        parameters: float32 of shape (n,), what this round was trained from.
        changes: int32 of shape (n,), the sum of the encoded weighted changes.
        fixed_point: how the changes were encoded.
        weight: the sum of the weights, above 0.
    """
    match rule:
        case Mean():
            for start in range(0, parameters.size, BLOCK):
                block = parameters[start : start + BLOCK]
                # In float64 the sum is exact, so that adding 1 for n rounds gives n.
                block[...] = block + fixed_point.decode(changes[start : start + BLOCK], weight)
        case _:
            assert_never(rule)
