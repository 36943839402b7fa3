"""Computes medians and quartiles from counts on a declared grid, and standardised mean differences between groups.

A quantile lies in a bin for certain; inside the bin it is interpolated. The bin's width is its resolution, which is
printed beside it. Sources: Austin 2009, for numbers; Yang, Dalton 2012, for codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Float64: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

MOST_BINS: Final = 200


def bin_counts(values: Float64, low: float, high: float, bins: int) -> Integers:
    """Count values, float64 (rows,), in equal bins from low to high, int64 (bins,). Values outside count at the ends.

    A value on the border of two bins counts in the upper one. Missing values (NaN) are skipped.
    """
    there = values[~np.isnan(values)]
    places = np.floor((there - low) / (high - low) * bins).astype(np.int64)
    return np.bincount(np.clip(places, 0, bins - 1), minlength=bins).astype(np.int64)


def quantile(counts: Integers, low: float, high: float, share: float) -> float | None:
    """Return the value below which a share of the counted values lies, interpolated in its bin. None without values.

    The quantile of the values themselves, by any usual definition whose value lies between two neighbours in one bin,
    differs by less than a bin's width.
    """
    total = int(counts.sum())
    if not total:
        return None
    below = np.concatenate([[0], np.cumsum(counts)])
    wanted = share * total
    place = int(np.searchsorted(below[1:], wanted, side="left"))
    inside = float((wanted - below[place]) / counts[place])
    return low + (high - low) * (place + inside) / len(counts)


def difference_of_numbers(one: tuple[float, float], other: tuple[float, float]) -> float | None:
    """Return the standardised mean difference of two groups, each a mean and a standard deviation."""
    pooled = sqrt((one[1] ** 2 + other[1] ** 2) / 2)
    return abs(one[0] - other[0]) / pooled if pooled > 0 else None


def difference_of_codes(one: Sequence[int], other: Sequence[int]) -> float | None:
    """Return the standardised difference of two groups in a column of codes, from the rows of each code."""
    first, second = (np.array(counts, np.float64) for counts in (one, other))
    if not first.sum() or not second.sum():
        return None
    first, second = first / first.sum(), second / second.sum()
    seen = np.flatnonzero(first + second)[1:]  # one code follows from the others
    covariance = sum(np.diag(shares[seen]) - np.outer(shares[seen], shares[seen]) for shares in (first, second)) / 2
    change = first[seen] - second[seen]
    if not len(seen):
        return 0.0
    if np.linalg.matrix_rank(covariance) < len(seen):
        return None
    return sqrt(float(change @ np.linalg.solve(covariance, change)))
