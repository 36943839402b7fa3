"""Computes the curves of predicted probabilities on rows with known outcomes, such as the ROC curve.

All functions take `happened`, 0 and 1 (or false and true) of shape (rows,), and `scores`, probabilities of shape
(rows,). A curve is None if all rows are of one class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from sklearn.metrics import precision_recall_curve, roc_curve

from site_agent.desk.comparison.calibration import BINS, smoothed
from site_agent.desk.comparison.evaluation import Scores
from site_agent.desk.findings.thresholds import Happened

MOST_POINTS: Final = 200
THRESHOLDS: Final = tuple(round(0.01 * percent, 2) for percent in range(1, 100))


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The points of a curve from left to right. There are at most MOST_POINTS."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class CalibrationCurve:
    """How often the outcome is observed at each predicted probability.

    Attributes:
        groups: mean predicted probability against the share of the outcome, in at most ten groups of almost equal
            size. Rows with equal probabilities share a group.
        rows: the number of rows in each group.
        smooth: the curve of `calibration.smoothed`, from the lowest to the highest probability; None if all rows are
            of one class.
    """

    groups: Curve
    rows: tuple[int, ...]
    smooth: Curve | None


def receiver_operating_characteristic(happened: Happened, scores: Scores) -> Curve | None:
    """Return the ROC curve: sensitivity against false positive rate, over all thresholds."""
    if not _has_both(happened):
        return None
    false, true, _ = roc_curve(happened.astype(np.int64), scores)
    return _thinned(false, true)


def precision_recall(happened: Happened, scores: Scores) -> Curve | None:
    """Return the precision-recall curve: positive predictive value against sensitivity, over all thresholds."""
    if not _has_both(happened):
        return None
    precision, recall, _ = precision_recall_curve(happened.astype(np.int64), scores)
    return _thinned(recall[::-1], precision[::-1])


def calibration_curve(happened: Happened, scores: Scores) -> CalibrationCurve:
    """Return the calibration curve: how often the outcome is observed at each predicted probability."""
    # Rows with equal scores all have the first of their ranks, as in the expected calibration error.
    ranks = np.searchsorted(np.sort(scores), scores, side="left")
    groups = ranks * BINS // len(scores)
    rows = np.bincount(groups, minlength=BINS)
    is_used = rows > 0
    predicted = np.bincount(groups, weights=scores, minlength=BINS)[is_used] / rows[is_used]
    observed = np.bincount(groups, weights=happened.astype(np.float64), minlength=BINS)[is_used] / rows[is_used]
    smooth = smoothed(happened, scores)
    order = np.argsort(scores, kind="stable")
    return CalibrationCurve(
        groups=Curve(xs=_plain(predicted), ys=_plain(observed)),
        rows=tuple(int(count) for count in rows[is_used]),
        smooth=None if smooth is None else _thinned(scores[order], smooth[order]),
    )


def decision_curve(happened: Happened, scores: Scores) -> Curve:
    """Return for each of THRESHOLDS the net benefit if all patients at or above this threshold are treated.

    Source: Vickers and Elkin 2006: true positives / rows - false positives / rows · p / (1 - p), for a threshold p.
    In units of true positives per row. Treating nobody has the value 0.
    """
    outcome = happened.astype(bool)
    thresholds = np.array(THRESHOLDS)
    true = _at_least(scores[outcome], thresholds)
    false = _at_least(scores[~outcome], thresholds)
    benefit = (true - false * thresholds / (1.0 - thresholds)) / len(scores)
    return Curve(xs=THRESHOLDS, ys=_plain(benefit))


def benefit_of_treating_all(happened: Happened) -> Curve:
    """Return for each threshold the net benefit of treating all patients."""
    return decision_curve(happened, np.ones(len(happened)))


def _at_least(scores: Scores, thresholds: Scores) -> Scores:
    return len(scores) - np.searchsorted(np.sort(scores), thresholds, side="left").astype(np.float64)


def _has_both(happened: Happened) -> bool:
    return len(np.unique(happened)) == 2


def _thinned(xs: Scores, ys: Scores) -> Curve:
    """Return at most MOST_POINTS of the points, evenly spaced, with the first and the last."""
    kept = np.unique(np.linspace(0, len(xs) - 1, min(len(xs), MOST_POINTS)).round().astype(np.int64))
    return Curve(xs=_plain(xs[kept]), ys=_plain(ys[kept]))


def _plain(values: Scores) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
