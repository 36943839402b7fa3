"""What Gaussian noise promises: epsilon and delta of one sum, and of several together; closed forms only.

Every sum here is full-batch: each patient is in it, and changes it by at most the clip. Several such sums are one sum
with larger sensitivity, so all of them together have one number, the signal-to-noise ratio mu. The rules:

* a sum with clip C and noise of standard deviation z * C has mu = 1 / z;
* several sums have mu = sqrt(mu_1^2 + mu_2^2 + ...), whatever decides about the later ones;
* epsilon follows from mu and delta exactly, not by a bound.

Sources: Balle and Wang, ICML 2018, theorem 8 (the exact epsilon of one Gaussian); Dong, Roth, Su 2022, corollary 3.3
(composition of Gaussians, adaptive).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import erfc, exp, inf, sqrt
from typing import Final

_SAFETY: Final = 1.0 + 1e-9  # above every rounding error of these formulas
_LARGEST: Final = 700.0  # exp of more overflows; such an epsilon promises nothing
_STEPS: Final = 200


def delta_of(epsilon: float, mu: float) -> float:
    """The smallest delta with which a Gaussian of ratio `mu` is (epsilon, delta)-private."""
    if mu == 0.0:
        return 0.0
    return _below(mu / 2 - epsilon / mu) - exp(epsilon) * _below(-mu / 2 - epsilon / mu)


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon with which a Gaussian of ratio `mu` is (epsilon, delta)-private; inf above 700."""
    if delta_of(0.0, mu) <= delta:
        return 0.0
    if delta_of(_LARGEST, mu) > delta:
        return inf
    low, high = 0.0, _LARGEST
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, mu) > delta else (low, middle)
    return high


def ratio_of(epsilon: float, delta: float) -> float:
    """The largest mu that is (epsilon, delta)-private, rounded down; both have to be above 0."""
    low, high = 0.0, 100.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(epsilon, middle) <= delta else (low, middle)
    return low / _SAFETY


def together(ratios: Iterable[float]) -> float:
    """The mu of several sums of the same patients."""
    return sqrt(sum(ratio * ratio for ratio in ratios))


def _below(value: float) -> float:
    """The probability that a standard normal number is below `value`."""
    return erfc(-value / sqrt(2.0)) / 2.0
