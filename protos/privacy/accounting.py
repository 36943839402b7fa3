"""Computes epsilon and delta of Gaussian noise in closed form, for one sum and for several sums.

Every sum here is full-batch: it includes each patient, and one patient changes it by at most the clip. Several such
sums are one sum with larger sensitivity, so all of them together have one number, the signal-to-noise ratio mu. The
rules:

* a sum with clip C and noise of standard deviation z * C has mu = 1 / z;
* several sums have mu = sqrt(mu_1^2 + mu_2^2 + ...), also if the results of earlier sums decide about later ones and
  about their ratios, as long as a limit of mu is fixed beforehand;
* epsilon follows from mu and delta exactly, not by a bound;
* several sites make the noise together. The shares of the fewest sites in a sum, less the assumed colluders, make up
  all of it;
* a patient's term has at most the norm 1, which is PRIVATE_SCALE in integers.

Sources: Balle and Wang, ICML 2018, theorem 8 (the exact epsilon of one Gaussian); Dong, Roth, Su 2022, corollary 3.3
(adaptive composition, ratios fixed beforehand); Smith, Thakurta 2022 (ratios chosen adaptively, up to a fixed limit);
Kairouz, Liu, Steinke 2021 (sums of discrete Gaussian shares).
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import ceil, erfc, exp, inf, sqrt
from typing import Final

_SAFETY: Final = 1.0 + 1e-9  # larger than every rounding error of these formulas
_LARGEST: Final = 700.0  # exp of a larger number overflows; such an epsilon promises nothing
_STEPS: Final = 200


def delta_of(epsilon: float, mu: float) -> float:
    """Return the smallest delta with which a Gaussian of ratio `mu` is (epsilon, delta)-private."""
    if mu == 0.0:
        return 0.0
    return _below(mu / 2 - epsilon / mu) - exp(epsilon) * _below(-mu / 2 - epsilon / mu)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon with which a Gaussian of ratio `mu` is (epsilon, delta)-private; inf above 700."""
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
    """Return the largest mu that is (epsilon, delta)-private, rounded down. Epsilon and delta must be above 0."""
    low, high = 0.0, 100.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(epsilon, middle) <= delta else (low, middle)
    return low / _SAFETY


def together(ratios: Iterable[float]) -> float:
    """Return the ratio `mu` of several sums together, over the same patients."""
    return sqrt(sum(ratio * ratio for ratio in ratios))


def _below(value: float) -> float:
    """Return the probability that a standard normal number is below `value`."""
    return erfc(-value / sqrt(2.0)) / 2.0


PRIVATE_SCALE: Final = 1 << 30  # of a patient's term, whose norm is at most 1
# The largest noise in one integer of one site: above 1,000 standard deviations for the smallest possible epsilon and
# delta of a plan.
LARGEST_NOISE: Final = 1 << 50
# Sums of K discrete Gaussian shares of variance v are as private as one continuous Gaussian of variance K (v - 4):
# rounding a continuous Gaussian by a discrete one of width 2 gives each share, up to a factor 1 + 2 exp(-8 pi^2) of
# every probability. So epsilon changes by less than 10**-33 for each number of a site, whatever v and the scale are.
_LOST_TO_ROUNDING: Final = 4


def share_variance(ratio: float, honest: int, sums: int = 1) -> int:
    """Return the variance of one site's noise in each integer.

    Args:
        ratio: the largest mu that all sums together may have.
        honest: the number of sites whose shares are in every sum, at least 1.
        sums: of the same patients, in the whole run.
    """
    # The ratio is a float64, which is one exact fraction, so every program computes the same integer.
    whole = (Fraction(PRIVATE_SCALE) / Fraction(ratio)) ** 2 * sums
    return ceil(whole / honest) + _LOST_TO_ROUNDING
