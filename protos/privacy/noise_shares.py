"""How large the noise is that each site adds to its integers, so that the honest shares together hide one patient.

A patient's term has at most the norm 1, which is PRIVATE_SCALE in integers. The rules:

* the shares of the fewest sites that a sum may have, less the assumed colluders, make up all of the noise;
* several sums of the same patients are one sum with noise that is smaller by the root of their number.

Source: Kairouz, Liu, Steinke 2021 (sums of discrete Gaussian shares); Dong, Roth, Su 2022 (composition).
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Final

PRIVATE_SCALE: Final = 1 << 30  # of a patient's term, whose norm is at most 1
# In one integer of one site: above 1,000 standard deviations for the smallest epsilon and delta that a plan may have.
LARGEST_NOISE: Final = 1 << 50
# Sums of K discrete Gaussian shares of variance v are as private as one continuous Gaussian of variance K (v - 4), up
# to a change of epsilon below 10**-26: rounding a continuous Gaussian by a discrete one of width 2 gives each share.
_LOST_TO_ROUNDING: Final = 4


def share_variance(ratio: float, honest: int, sums: int = 1) -> int:
    """The variance of one site's noise in each integer.

    Args:
        ratio: the mu that all sums together may have.
        honest: sites whose shares are in every sum, at least 1.
        sums: of the same patients, in the whole run.
    """
    # The ratio is a float64, which is one exact fraction, so that every program computes the same integer.
    whole = (Fraction(PRIVATE_SCALE) / Fraction(ratio)) ** 2 * sums
    return ceil(whole / honest) + _LOST_TO_ROUNDING
