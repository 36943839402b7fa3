"""Computes an upper bound of epsilon for sums over random samples of patients, by Rényi divergences.

Every patient is in a sum with the same probability, independently of all others and of all earlier sums. Nobody outside
the site learns which patients were in a sum. The rules:

* the bound is valid for an added and for a removed patient;
* it is never above the closed form of the same sums without sampling;
* the noise is computed from the bound on a coarse grid and rounded up, so every program computes the same integer.

Sources: Mironov, Talwar, Zhang 2019, section 3.3 (the divergence of integer orders); Canonne, Kamath, Steinke 2020,
proposition 12 (from divergences to epsilon and delta).
"""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, lgamma, log, log1p, sqrt
from typing import Final

from protos.privacy.accounting import epsilon_of

_ORDERS: Final = (*range(2, 64), *(round(64 * 1.2**step) for step in range(16)))  # up to 986
_STEPS_OF_NOISE: Final = 256  # steps of the grid for each unit of the noise multiplier
_LARGEST_MULTIPLIER: Final = 1 << 16
_SAFETY: Final = 1.0 + 1e-9  # larger than every rounding error of these formulas


def sampled_epsilon(multiplier: float, rate: float, sums: int, delta: float) -> float:
    """Return an upper bound of the epsilon of `sums` sampled sums together at `delta`; inf if there is no useful bound.

    Args:
        multiplier: standard deviation of the noise in each sum, where a patient's term has norm 1; above 0.
        rate: the probability with which a patient takes part in a sum, above 0 and below 1.
        delta: above 0 and below 1.
    """
    found = epsilon_of(sqrt(sums) / multiplier, delta)
    for order in _ORDERS:
        divergence = sums * _divergence(order, multiplier, rate)
        found = min(found, divergence + log1p(-1 / order) - (log(delta) + log(order)) / (order - 1))
    return max(found, 0.0) * _SAFETY


@lru_cache(maxsize=64)
def sampled_multiplier(epsilon: float, delta: float, rate: float, sums: int) -> float:
    """Return the smallest noise multiplier on the grid that gives at most this epsilon; inf if there is none."""
    low, high = 0, _LARGEST_MULTIPLIER * _STEPS_OF_NOISE
    if sampled_epsilon(high / _STEPS_OF_NOISE, rate, sums, delta) > epsilon:
        return inf
    while high - low > 1:
        middle = (low + high) // 2
        is_enough = sampled_epsilon(middle / _STEPS_OF_NOISE, rate, sums, delta) <= epsilon
        low, high = (low, middle) if is_enough else (middle, high)
    return high / _STEPS_OF_NOISE


def _divergence(order: int, multiplier: float, rate: float) -> float:
    """Return the Rényi divergence of one sampled sum, for an integer order."""
    present, absent = log(rate), log1p(-rate)
    logs = [
        lgamma(order + 1) - lgamma(taken + 1) - lgamma(order - taken + 1)
        + (order - taken) * absent + taken * present + taken * (taken - 1) / (2 * multiplier * multiplier)
        for taken in range(order + 1)
    ]  # fmt: skip
    largest = max(logs)
    return (largest + log(sum(exp(one - largest) for one in logs))) / (order - 1)
