"""Computes the epsilon of sums over random samples of patients with the library dp-accounting.

Every patient is in a sum with the same probability, independently of all others and of all earlier sums. Nobody outside
the site learns which patients were in a sum. The rules:

* epsilon is never too small: the library rounds the losses of privacy up, for an added and for a removed patient;
* the noise is never more than without sampling, where epsilon has a closed form (accounting.py);
* the noise is computed on a coarse grid and rounded up, so every program computes the same integer;
* no plan costs much memory or time: noise has a lower limit, and with very many sums sampling is not counted.

Sources: Koskela, Jälkö, Honkela 2020 (the distribution of the privacy loss); Doroshenko et al. 2022 ("Connect the
Dots", how the library rounds); Zhu, Dong, Wang 2022 (an added and a removed patient).
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, log, sqrt
from typing import Final

from protos.errors import ConfigurationError, to_install
from protos.privacy.accounting import ratio_of

LARGEST_SUMS: Final = 10_000  # with more sums, every patient is counted as if in all of them
SMALLEST_MULTIPLIER: Final = 0.5  # losses with less noise would need much memory
_GRID: Final = 1.001  # each noise multiplier of the grid is so many times the one before
_WIDE: Final = 700  # steps of the grid, about a factor of two
_SAFETY: Final = 1.0 + 1e-6  # for rounding errors. Those of many sums are far smaller than what the library rounds up


def sampled_epsilon(multiplier: float, rate: float, sums: int, delta: float, width: float = 1e-4) -> float:
    """Return the epsilon of `sums` sampled sums together at `delta`, rounded up.

    Args:
        multiplier: standard deviation of the noise in each sum, where a patient's term has norm 1; above 0.
        rate: the probability with which a patient takes part in a sum, above 0 and below 1.
        delta: above 0 and below 1.
        width: of the grid to whose points the losses of privacy are rounded.

    Raises:
        ConfigurationError: dp-accounting is not installed.
    """
    try:
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
        from dp_accounting.pld import PLDAccountant
    except ImportError as cause:
        raise ConfigurationError(
            what="The plan draws patients at random (sampling), and the package dp-accounting is not installed. The "
            "package computes the plan's privacy cost, epsilon.",
            consequence="The plan was not used, and no epsilon was spent.",
            remedy=to_install("sampling"),
        ) from cause
    accountant = PLDAccountant(value_discretization_interval=width)
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(multiplier)), sums)
    return float(accountant.get_epsilon(delta)) * _SAFETY


@lru_cache(maxsize=64)
def sampled_multiplier(epsilon: float, delta: float, rate: float, sums: int) -> float:
    """Return the smallest noise multiplier on the grid that gives at most this epsilon.

    Raises:
        ConfigurationError: dp-accounting is not installed.
    """
    whole = sqrt(sums) / ratio_of(epsilon, delta)
    if sums > LARGEST_SUMS or whole <= SMALLEST_MULTIPLIER:
        return whole
    # Of the steps of losses. Finer steps take longer. They would clearly lower the noise only for a small epsilon or
    # thousands of sums.
    width = max(epsilon, 0.4) / 1000
    least, high = (ceil(log(multiplier) / log(_GRID)) for multiplier in (SMALLEST_MULTIPLIER, whole))

    def is_enough(place: int) -> bool:
        return sampled_epsilon(_GRID**place, rate, sums, delta, width) <= epsilon

    low = max(high - _WIDE, least)
    while low > least and is_enough(low):  # from much noise to less, because little noise takes long to compute
        low, high = max(low - _WIDE, least), low
    if low == least and is_enough(least):
        high = least
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return min(_GRID**high, whole)
