"""Computes the curves of predicted probabilities on rows with known outcomes, such as the ROC curve.

All functions take `happened`, 0 and 1 (or false and true) of shape (rows,), and `scores`, probabilities of shape
(rows,). A curve is None if all rows are of one class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from sklearn import calibration
from sklearn.metrics import roc_curve

from site_agent.desk.comparison.evaluation import Scores
from site_agent.desk.findings.thresholds import Happened, net_benefit

MOST_POINTS: Final = 200
THRESHOLDS: Final = tuple(round(0.01 * percent, 2) for percent in range(1, 100))
_BINS: Final = 10


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The points of a curve from left to right. There are at most MOST_POINTS."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]


def receiver_operating_characteristic(happened: Happened, scores: Scores) -> Curve | None:
    """Return the ROC curve: sensitivity against false positive rate, over all thresholds."""
    if not _has_both(happened):
        return None
    false, true, _ = roc_curve(happened.astype(np.int64), scores)
    kept = np.unique(np.linspace(0, len(false) - 1, min(len(false), MOST_POINTS)).round().astype(np.int64))
    return Curve(xs=_plain(false[kept]), ys=_plain(true[kept]))


def calibration_curve(happened: Happened, scores: Scores) -> Curve | None:
    """Return the share of the outcome against the mean predicted probability, in ten groups of about equal size."""
    if not _has_both(happened):
        return None
    observed, predicted = calibration.calibration_curve(
        happened.astype(np.int64), scores.clip(0.0, 1.0), n_bins=_BINS, strategy="quantile"
    )
    return Curve(xs=_plain(predicted), ys=_plain(observed))


def decision_curve(happened: Happened, scores: Scores) -> Curve:
    """Return for each of THRESHOLDS the net benefit if all patients at or above this threshold are treated."""
    ys = [net_benefit(happened, scores >= threshold, threshold) for threshold in THRESHOLDS]
    return Curve(xs=THRESHOLDS, ys=tuple(ys))


def benefit_of_treating_all(happened: Happened) -> Curve:
    """Return for each threshold the net benefit of treating all patients."""
    return decision_curve(happened, np.ones(len(happened)))


def _has_both(happened: Happened) -> bool:
    return len(np.unique(happened)) == 2


def _plain(values: Scores) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
