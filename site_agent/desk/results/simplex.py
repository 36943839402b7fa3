"""Minimises a convex function over weights that are not negative and that add up to 1."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
_GOLDEN: Final = (5**0.5 - 1) / 2
_SECTIONS: Final = 40  # after this number of steps, an interval of length 1 is shortened to 5e-9
_SWEEPS: Final = 60
_STILL: Final = 1e-7


def smallest_on_simplex(value: Callable[[Float64], float], start: Float64) -> Float64:
    """Return the weights at which a function is smallest. Each step changes two weights and keeps their sum.

    For a smooth convex function, a point that no pair can improve is the minimum (Beck 2014, "The 2-coordinate
    descent method").

    Args:
        value: convex and smooth, of float64 of shape (n,).
        start: shares, float64 of shape (n,).
    """
    weights = start.copy()
    for _ in range(_SWEEPS):
        before = weights.copy()
        for one, other in combinations(range(len(weights)), 2):
            weights = _between(value, weights, one, other)
        if np.abs(weights - before).max() < _STILL:
            break
    return weights


def _between(value: Callable[[Float64], float], weights: Float64, one: int, other: int) -> Float64:
    """Return the weights after dividing the sum of two weights between these two in the best way (Kiefer 1953)."""
    both = float(weights[one] + weights[other])

    def divided(share: float) -> Float64:
        changed = weights.copy()
        changed[one], changed[other] = share, both - share
        return changed

    low, high = 0.0, both
    left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_left, at_right = value(divided(left)), value(divided(right))
    for _ in range(_SECTIONS):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - _GOLDEN * (high - low)
            at_left = value(divided(left))
        else:
            low, left, at_left = left, right, at_right
            right = low + _GOLDEN * (high - low)
            at_right = value(divided(right))
    # At an end of the interval, one of the two weights is exactly 0.
    found = min((0.0, both, (low + high) / 2), key=lambda share: value(divided(share)))
    return divided(found)
