"""Measures calibration: whether 20 of 100 patients with a predicted probability of 20% have the outcome.

A measure is None if it is undefined, as with test rows of one class. A probability is limited to 1e-8 to 1 - 1e-8, so
that its logit is finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from sklearn.calibration import calibration_curve as curve_of

from site_agent.desk.comparison.evaluation import Scores
from site_agent.desk.findings.thresholds import Happened
from site_agent.trainer.disk import Json

_TINIEST: Final = 1e-8


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How far predicted probabilities are from observed outcomes.

    Attributes:
        predicted, observed: the mean predicted probability, and the share of the rows with the outcome.
        intercept, slope: of the logistic regression of the outcome on the logit (Cox 1958); perfect are 0 and 1. A
            slope below 1 means that predictions are too extreme. None if the logit separates the classes.
    """

    predicted: float
    observed: float
    intercept: float | None
    slope: float | None


def calibration(happened: npt.NDArray[np.generic], scores: Scores) -> Calibration:
    """Return how well the predicted probabilities of an outcome are calibrated.

    Args:
        happened: 0 and 1 (or false and true) of shape (rows,).
        scores: probabilities of shape (rows,).
    """
    from sklearn.linear_model import LogisticRegression

    outcome, inside = happened.astype(np.int64), scores.clip(_TINIEST, 1.0 - _TINIEST)
    logit = np.log(inside) - np.log1p(-inside)
    yes, no = logit[outcome == 1], logit[outcome == 0]
    intercept, slope = None, None
    if len(yes) and len(no) and yes.min() < no.max() and no.min() < yes.max():
        # Centred and scaled, so that the solver's first step is good for all logits.
        centre, spread = float(logit.mean()), float(logit.std())
        line = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10, max_iter=1000)
        line.fit((logit[:, None] - centre) / spread, outcome)
        slope = float(line.coef_[0, 0]) / spread
        intercept = float(line.intercept_[0]) - slope * centre
    return Calibration(predicted=float(scores.mean()), observed=float(outcome.mean()), intercept=intercept, slope=slope)


_BINS: Final = 10


def calibration_curve(happened: Happened, scores: Scores) -> dict[str, Json] | None:
    """Return the share of the outcome against the mean predicted probability, in ten groups of about equal size.

    None if all rows are of one class.
    """
    if len(np.unique(happened)) < 2:
        return None
    observed, predicted = curve_of(happened.astype(np.int64), scores.clip(0.0, 1.0), n_bins=_BINS, strategy="quantile")
    return {"xs": predicted.tolist(), "ys": observed.tolist()}
