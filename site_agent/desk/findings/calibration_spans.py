"""Computes 95% intervals of a model's calibration in the large, and of its calibration intercept and slope.

The bootstrap draws whole patients, and fits each resample by Newton's method, all of a block at once. Source of the
measures: Cox 1958, as in comparison/calibration.py. An interval is None if a resample has no such line, for example
because the prediction separates the classes.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.calibration import logits
from site_agent.desk.comparison.evaluation import Scores
from site_agent.desk.comparison.resampling import Counts, over_patients
from site_agent.desk.findings.thresholds import Happened, Patients
from site_agent.trainer.checkpoints import Json

_RESAMPLES: Final = 200
_STEPS: Final = 30
_LARGEST_STEP: Final = 2.0
_LARGEST: Final = 64.0
_TINIEST: Final = 1e-9
_PERCENTILES: Final = (2.5, 97.5)


def calibration_spans(happened: Happened, scores: Scores, patients: Patients, seed: int) -> dict[str, Json]:
    """Return 95% intervals of a model's calibration in the large, intercept and slope, by these names.

    Args:
        happened: 0 and 1, or false and true, shape (rows,).
        scores: probabilities, shape (rows,).
        patients: equal for rows of one patient; None if every row is a patient.
        seed: of the resamples, not negative.
    """
    outcome, logit = happened.astype(np.float64), logits(scores)
    names = ("in_the_large", "intercept", "slope")
    if not 0.0 < outcome.mean() < 1.0 or logit.min() == logit.max():
        return dict.fromkeys(names)
    shifts, lines = [], []
    for counts in over_patients(len(outcome), patients, seed, _RESAMPLES).blocks():
        shifts.append(_fitted(counts, outcome, logit, has_slope=False)[:, 0])
        lines.append(_fitted(counts, outcome, logit, has_slope=True))
    line = np.concatenate(lines)
    drawn = dict(zip(names, (np.concatenate(shifts), line[:, 0], line[:, 1]), strict=True))
    return {name: None if np.isnan(values).any() else _span(values) for name, values in drawn.items()}


def _fitted(counts: Counts, outcome: Scores, logit: Scores, *, has_slope: bool) -> npt.NDArray[np.float64]:
    """Return intercept and slope of a logistic regression on each resample, shape (resamples, 2); NaN if undefined."""
    line = np.tile([0.0, 1.0], (len(counts), 1))
    with np.errstate(all="ignore"):
        for _ in range(_STEPS):
            predicted = 1.0 / (1.0 + np.exp(-(line[:, :1] + line[:, 1:] * logit)))
            wrong, curved = counts * (outcome - predicted), counts * predicted * (1.0 - predicted)
            first, flat = wrong.sum(axis=1), curved.sum(axis=1)
            if has_slope:
                second, bent, both = wrong @ logit, curved @ logit**2, curved @ logit
                determinant = flat * bent - both**2
                step = np.stack([bent * first - both * second, flat * second - both * first], axis=1)
                step /= determinant[:, None]
            else:
                step = np.stack([first / flat, np.zeros(len(counts))], axis=1)
            line += np.clip(step, -_LARGEST_STEP, _LARGEST_STEP)
            if np.nanmax(np.abs(step), initial=0.0) < _TINIEST:
                break
    line[(np.abs(step) > 1e-4).any(axis=1) | (np.abs(line) > _LARGEST).any(axis=1)] = np.nan
    return line


def _span(values: npt.NDArray[np.float64]) -> list[Json]:
    low, high = np.percentile(values, _PERCENTILES)
    return [float(low), float(high)]
