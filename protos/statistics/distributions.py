"""Computes p values and quantiles of the normal, chi-squared, F and t distributions, without SciPy.

The coordinator has no SciPy. Tails are computed themselves and not as 1 minus the rest, so a p value of 1e-300 has all
its digits.
"""

from __future__ import annotations

from collections.abc import Callable
from math import erfc, exp, lgamma, log, pi, sqrt
from statistics import NormalDist
from typing import Final, TypeAlias

_LARGEST_LOGARITHM: Final = 300.0
_TINY = 1e-300
Test: TypeAlias = dict[str, float]
TWO_SIDED: Final = NormalDist().inv_cdf(0.975)  # standard errors on each side of a 95% interval


def ratio_of(estimate: float) -> float:
    """Return exp of an estimate; of one beyond 300 that of 300, so that the result is a number for every unit."""
    return exp(max(-_LARGEST_LOGARITHM, min(_LARGEST_LOGARITHM, estimate)))


def chi_squared_test(value: float, degrees: int) -> Test:
    """Return what is printed of a chi-squared value. One below 0 is the rounding of 0."""
    value = max(0.0, value)
    return {"chi_squared": value, "degrees": degrees, "p": p_of_chi_squared(value, degrees)}


def p_of_chi_squared(value: float, degrees: int) -> float:
    """Return the probability of a chi-squared value above one of at least 0, by the finite sum for whole degrees.

    Source: Abramowitz, Stegun 1964, 26.4.4 and 26.4.5.
    """
    if value == 0.0:
        return 1.0
    half = value / 2.0
    if degrees % 2:
        total, term = erfc(sqrt(half)), 2.0 * sqrt(half / pi)
        steps = [0.5 + step for step in range((degrees - 1) // 2)]
    else:
        total, term = 0.0, 1.0
        steps = [float(step) for step in range(degrees // 2)]
    # Each term is the last one times half / (step + 1); the common factor exp(-half) is applied in logarithms.
    for step in steps:
        total += exp(log(term) - half)
        term *= half / (step + 1.0)
    return min(1.0, total)


def p_of_f(value: float, number: int, degrees: float) -> float:
    """Return the probability of a larger F with these degrees of freedom, above 0. F of 1 and n is t^2 of n."""
    return _incomplete_beta(degrees / (degrees + number * value), degrees / 2, number / 2)


def limit_of_t(degrees: float) -> float:
    """Return the t statistic whose two-sided p value is 5%."""
    return root_of(lambda t: p_of_f(t * t, 1, degrees) - 0.05, 0.0, 1e3)


def root_of(score: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling score is 0 between two numbers, by halving."""
    for _ in range(200):  # halvings; neighbouring numbers end it earlier
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if score(middle) > 0 else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by Lentz's continued fraction (Press et al. 2007, 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(1.0 - x, b, a)
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    found = d
    for m in range(1, 500):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1.0 / _away_from_zero(1.0 + step * d), _away_from_zero(1.0 + step / c)
            found *= c * d
        if abs(c * d - 1.0) < 1e-16:
            break
    front = lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1.0 - x)
    return exp(front) * found / a


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
