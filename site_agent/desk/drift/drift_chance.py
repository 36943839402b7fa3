"""Measures how much new rows differ from the training rows, and how much difference is expected by chance.

The population stability index is never 0: two samples of the same patients differ, and small samples differ more. So
the report shows with every index the value that chance exceeds in 1 of 100 tables without drift, over all columns
together. Five kinds of alarm share the 5 of 100 (Bonferroni): the index, missing values, values beyond the limits,
the model's metrics, and the model's mean prediction. The rules:

* both sample sizes are used, that of the new rows and that of the training rows;
* several rows of one patient are not as many patients, so a sample is counted by its effective rows
  (`effective_rows`);
* this file reads no value of a patient, only shares and counts.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

LEVEL: Final = 0.05 / 5  # probability of a false alarm of one type, over all columns, metrics or outcomes together
_SMALLEST: Final = 1e-4
# If at least this many rows are expected in every bin of both samples, a formula replaces drawn samples.
_ENOUGH: Final = 20.0
_MOST_DRAWS: Final = 20_000
_FEWEST_DRAWS: Final = 2_000
_BEYOND: Final = 10  # a quantile must be exceeded by at least this many draws

Shares = npt.NDArray[np.float64]
Patients = npt.NDArray[np.int64]


def stability_index(expected: Shares, found: Shares) -> float:
    """Return the population stability index: Σ (found - expected)·ln(found / expected) over the frequencies of bins.

    A share is set to at least 1e-4, so that an empty bin does not make the sum infinite.

    Args:
        expected, found: shares, each of shape (bins,).
    """
    return float(_indices(expected[None], found[None])[0])


def stability_by_chance(
    expected: Shares, found: Shares, rows: tuple[float, float], level: float, generator: np.random.Generator
) -> float:
    """Return the stability index that is exceeded with probability `level` if nothing has changed.

    Source: Yurdakul and Naranjo 2020, "Statistical properties of the population stability index": without drift the
    index is (1/n + 1/m) times a chi-square with bins - 1 degrees of freedom. One difference: if a bin is expected to
    have fewer than 20 rows, empty bins have more effect. Then the quantile is that of drawn samples. For a level that
    is too rare for the number of draws, it is at least the largest draw and the quantile of a chi-square with their
    mean and variance.

    Args:
        expected, found: shares of the bins in the training rows and in the new ones, each of shape (bins,).
        rows: effective rows with a value, of training and new ones.
        level: between 0 and 1.
    """
    before, now = (max(1, round(size)) for size in rows)
    pooled = (before * expected + now * found) / (before + now)
    pooled = pooled[pooled > 0]
    if len(pooled) < 2:
        return 0.0
    if min(before, now) * pooled.min() >= _ENOUGH:
        return (1 / before + 1 / now) * _chi_square(len(pooled) - 1.0, 1 - level)
    can_tell = level * _MOST_DRAWS >= _BEYOND
    draws = min(_MOST_DRAWS, math.ceil(2 * _BEYOND / level)) if can_tell else _FEWEST_DRAWS
    drawn = _indices(
        generator.multinomial(before, pooled, draws) / before, generator.multinomial(now, pooled, draws) / now
    )
    if can_tell:
        return float(np.quantile(drawn, 1 - level))
    mean, variance = float(drawn.mean()), float(drawn.var())
    scaled = variance / (2 * mean) * _chi_square(2 * mean**2 / variance, 1 - level) if variance else mean
    return max(scaled, float(drawn.max()))


def share_differs(shares: tuple[float, float], rows: tuple[float, float], level: float) -> bool:
    """Return whether the frequencies in training rows and in new rows differ by more than chance.

    Source: Anscombe 1948, whose arcsine gives shares the same variance, also near 0 and 1 and with few rows.

    Args:
        shares: of training and new rows.
        rows: effective rows of both.
        level: of the two-sided test, between 0 and 1.
    """
    before, now = (
        math.asin(math.sqrt((share * size + 0.375) / (size + 0.75))) for share, size in zip(shares, rows, strict=True)
    )
    deviation = 0.5 * math.sqrt(1 / (rows[0] + 0.5) + 1 / (rows[1] + 0.5))
    return abs(now - before) > NormalDist().inv_cdf(1 - level / 2) * deviation


def _indices(expected: Shares, found: Shares) -> Shares:
    """Return the stability index of each pair of samples; both arguments have shape (pairs, bins)."""
    before, after = expected.clip(_SMALLEST), found.clip(_SMALLEST)
    return np.asarray(((after - before) * np.log(after / before)).sum(axis=1))


def _chi_square(freedom: float, probability: float) -> float:
    """Return a quantile of the chi-square distribution with an error below 1%. Source: Wilson and Hilferty 1931."""
    part = 2 / (9 * freedom)
    return float(freedom * max(0.0, 1 - part + NormalDist().inv_cdf(probability) * math.sqrt(part)) ** 3)
