"""Computes the curves of predicted probabilities on rows with known outcomes: calibration and decision.

All functions take `happened`, 0 and 1 (or false and true) of shape (rows,), and `scores`, probabilities of shape
(rows,), and return the points from left to right as `xs` and `ys`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from sklearn import calibration

from site_agent.desk.comparison.evaluation import Scores
from site_agent.desk.findings.thresholds import Happened
from site_agent.trainer.disk import Json

_BINS: Final = 10


def calibration_curve(happened: Happened, scores: Scores) -> dict[str, Json] | None:
    """Return the share of the outcome against the mean predicted probability, in ten groups of about equal size.

    None if all rows are of one class.
    """
    if len(np.unique(happened)) < 2:
        return None
    observed, predicted = calibration.calibration_curve(
        happened.astype(np.int64), scores.clip(0.0, 1.0), n_bins=_BINS, strategy="quantile"
    )
    return {"xs": predicted.tolist(), "ys": observed.tolist()}
