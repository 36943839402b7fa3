"""Measures how well one column alone predicts the outcome. A very good column was often recorded after the outcome.

The test set is not used. Each column predicts in three ways, and the best result is used: by its rank, by the
outcome's rate in each of its codes or tenths, and by whether a value is missing. Rates come from one half of the rows
and are applied to the other half. So a column with many codes gains nothing by chance.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.cells import Numbers

SUSPICIOUS_AUROC: Final = 0.8
SUSPICIOUS_CORRELATION: Final = 0.9
_FEWEST: Final = 10
_MOST_ROWS: Final = 100_000
_TENTHS: Final = 10

Truth = npt.NDArray[np.bool_]


def sampled(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the row numbers, or a fixed random sample of 100,000 row numbers if there are more."""
    if len(rows) <= _MOST_ROWS:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, _MOST_ROWS, replace=False))


def auroc(values: Numbers, truth: Truth) -> float:
    """Return the area under the ROC curve.

    Pairs with equal scores count half. Both outcomes must occur. NaN is not allowed.
    """
    places, inverse = np.unique(values, return_inverse=True)
    positives = np.bincount(inverse[truth], minlength=len(places)).astype(np.float64)
    negatives = np.bincount(inverse[~truth], minlength=len(places)).astype(np.float64)
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / (positives.sum() * negatives.sum()))


def auroc_alone(values: Numbers, truth: Truth, *, is_code: bool) -> float | None:
    """Return the area under the ROC curve of one column alone. Return None if an outcome has fewer than ten rows.

    Args:
        values: float64 of shape (rows,); missing values are NaN, or -1 for a code.
        truth: of shape (rows,).
        is_code: whether the order of the values has no meaning.
    """
    if min(truth.sum(), (~truth).sum()) < _FEWEST:
        return None
    absent = values < 0 if is_code else np.isnan(values)
    areas = [auroc(absent.astype(np.float64), truth), _by_rates(_cells(values, absent, is_code=is_code), truth)]
    there, known = values[~absent], truth[~absent]
    if not is_code and min(known.sum(), (~known).sum()) >= _FEWEST:
        areas.append(auroc(there, known))
    return max(max(area, 1 - area) for area in areas)


def best_term(has_term: Truth, truth: Truth) -> float | None:
    """Return the area under the ROC curve of the best term alone. Return None if an outcome has fewer than ten rows.

    Args:
        has_term: of shape (rows, terms).
        truth: of shape (rows,).
    """
    if min(truth.sum(), (~truth).sum()) < _FEWEST:
        return None
    # A column of two values has one corner in its ROC curve.
    return float(0.5 + np.abs(has_term[truth].mean(axis=0) - has_term[~truth].mean(axis=0)).max() / 2)


def correlation_alone(values: Numbers, target: Numbers) -> float | None:
    """Return the absolute value of Spearman's correlation, or None for fewer than ten values or equal values."""
    there = ~np.isnan(values)
    if there.sum() < _FEWEST:
        return None
    one, other = _ranks(values[there]), _ranks(target[there])
    spread = one.std() * other.std()
    return float(abs(((one - one.mean()) * (other - other.mean())).mean() / spread)) if spread > 0 else None


def _ranks(values: Numbers) -> Numbers:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse].astype(np.float64)


def _cells(values: Numbers, absent: Truth, *, is_code: bool) -> npt.NDArray[np.int64]:
    """Return for each row the number of its code, or of the decile that contains its value. A missing value is 0."""
    if is_code:
        return np.where(absent, 0, values + 1).astype(np.int64)
    there = values[~absent]
    if not len(there):
        return np.zeros(len(values), dtype=np.int64)
    edges = np.unique(np.quantile(there, np.linspace(0, 1, _TENTHS + 1)[1:-1]))
    return np.where(absent, 0, np.searchsorted(edges, np.where(absent, 0.0, values)) + 1).astype(np.int64)


def _by_rates(cells: npt.NDArray[np.int64], truth: Truth) -> float:
    halves = np.arange(len(cells)) % 2 == 0
    areas = []
    for learnt, used in ((halves, ~halves), (~halves, halves)):
        if min(truth[used].sum(), (~truth[used]).sum()) == 0:
            return 0.5
        size = int(cells.max()) + 1
        counts = np.bincount(cells[learnt], minlength=size)
        positives = np.bincount(cells[learnt], weights=truth[learnt], minlength=size)
        rate = (positives + truth[learnt].mean()) / (counts + 1.0)  # the mean rate is added as if it were one more row
        areas.append(auroc(rate[cells[used]], truth[used]))
    return float(np.mean(areas))
