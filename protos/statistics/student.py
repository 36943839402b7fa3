"""Computes p values of Fisher's F, and limits of Student's t distribution, without SciPy, which coordinators lack."""

from __future__ import annotations

from math import exp, lgamma, log

_STEPS = 500
_TINY = 1e-300


def p_of_f(value: float, number: int, degrees: float) -> float:
    """Return the probability of a larger F with these degrees of freedom, above 0. F of 1 and n is t^2 of n."""
    return _incomplete_beta(degrees / (degrees + number * value), degrees / 2, number / 2)


def limit_of_t(degrees: float) -> float:
    """Return the t statistic whose two-sided p value is 5%."""
    low, high = 0.0, 1e3
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if p_of_f(middle**2, 1, degrees) > 0.05 else (low, middle)
    return high


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function, by Lentz's continued fraction (Press et al. 2007, 6.4)."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - _incomplete_beta(1.0 - x, b, a)
    c, d = 1.0, 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    found = d
    for m in range(1, _STEPS):
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
