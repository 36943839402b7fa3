"""Computes quartiles from counts in equal bins, and standardised differences between two groups.

A quantile is at most half a bin from that of the values that were counted. Sources: Hyndman, Fan 1996; Austin 2009 for
numbers; Yang, Dalton 2012 for codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np

from protos.plan.analyses import Bools, Float64, Integers, StudySize


def without_extremes(values: Float64, smallest: int) -> Float64:
    """Return values, float64 (rows,), whose extremes are moved inward to the `smallest`-th value from each end.

    At most a quarter of the values is moved on each side, so that no quartile of these values changes.
    """
    moved = min(smallest, len(values) // 4)
    if moved < 2:
        return values
    ordered = np.sort(values)
    return np.asarray(np.clip(values, ordered[moved - 1], ordered[-moved]))


def quantile(counts: Float64, share: float) -> float:
    """Return a quantile in 0..1, at most half a bin from that of the values. `counts` are of at least one value.

    As in R and NumPy it lies between two neighbouring values (type 7). Each is in the middle of its bin.
    """
    up_to = np.cumsum(counts)
    wanted = share * (up_to[-1] - 1.0)
    low, high = np.searchsorted(up_to, [np.floor(wanted), np.ceil(wanted)], side="right")
    part = wanted - np.floor(wanted)
    return float(0.5 + (1.0 - part) * low + part * high) / len(counts)


def standardised_difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> float | None:
    """Return the standardised mean difference of two records of a Table 1. None if one is void, or has no spread.

    For codes it is the Mahalanobis distance of the shares of all codes but the first.
    """
    if one.get("deviation") is not None and other.get("deviation") is not None:
        pooled = sqrt((one["deviation"] ** 2 + other["deviation"] ** 2) / 2)
        return abs(one["mean"] - other["mean"]) / pooled if pooled > 0.0 else None
    if not (one.get("rows") and other.get("rows") and "codes" in one and "codes" in other):
        return None
    first, second = (np.array([cell["share"] for cell in record["codes"].values()]) for record in (one, other))
    seen = np.flatnonzero(first + second)[1:]
    change = (first - second)[seen]
    covariance = sum(np.diag(shares[seen]) - np.outer(shares[seen], shares[seen]) for shares in (first, second)) / 2
    if not len(seen) or np.linalg.matrix_rank(covariance) < len(seen):
        return None
    return sqrt(float(change @ np.linalg.solve(covariance, change)))


def is_of_one_patient(values: Float64, patients: Integers) -> bool:
    """Return whether all but a twentieth of the squared distances from the mean is of one patient."""
    each = np.bincount(patients, (values - values.mean()) ** 2) if len(values) else np.zeros(1)
    number = len(np.unique(patients))  # of n patients, one can have at most the part (n - 1) / n
    return bool(each.max() * number > 0.95 * each.sum() * (number - 1) and each.max() > 0.0)


class Kinds:
    """The kinds of some values, (rows,), each of a patient: which rows differ from those that most patients have."""

    def __init__(self, values: Float64 | Integers, patients: Integers) -> None:
        self._kinds = np.unique(values, return_inverse=True)[1].reshape(-1)
        size = int(patients.max(initial=0)) + 1
        pairs, places = np.unique(self._kinds * size + patients, return_inverse=True)
        self._pairs, self._kind_of_pair = places.reshape(-1), pairs // size

    def _patients(self, rows: Integers) -> Integers:
        is_there = np.zeros(len(self._kind_of_pair), np.bool_)
        is_there[self._pairs[rows]] = True
        return np.bincount(self._kind_of_pair[is_there], minlength=1)

    def count(self, rows: Integers) -> int:
        """Count the kinds of values in these rows."""
        return int(np.count_nonzero(self._patients(rows)))

    def beside(self, rows: Integers) -> Integers:
        """Return the rows with another value than most patients in these rows have."""
        return np.asarray(rows[self._kinds[rows] != self._patients(rows).argmax()])


def are_few(sites: Float64, size: StudySize) -> Bools:
    """Return which cells are of one site, or of two, each of which would see the other's number. Of any shape."""
    return np.asarray((sites > 0) & (sites < min(3, size.fewest_sites)))


def beside_commonest(values: Float64, patients: Integers) -> int:
    """Count the patients with a value that differs from the one that most patients have."""
    return len(np.unique(patients[Kinds(values, patients).beside(np.arange(len(values)))]))
