"""Computes 95% intervals for the measures of a model's calibration, which comparison/calibration.py defines.

Functions take `happened`, 0 and 1 (or false and true) of shape (rows,), `scores`, probabilities of shape (rows,),
`patients`, equal for rows of one patient or None if every row is a patient, and `seed` of the resamples, not negative.

The bootstrap draws whole patients, and fits each resample by Newton's method, all of a block at once. The interval of
the calibration in the large, the intercept or the slope is None if a resample has no such line, for example because
the prediction separates the classes.

The expected calibration error and the integrated calibration index have no interval: by chance alone they are above
their true value, and on a resample higher again.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.bootstrap_intervals import Counts, over_patients
from site_agent.desk.comparison.calibration import logits
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from site_agent.desk.findings.thresholds import Happened, Patients
from site_agent.trainer.disk import Json

_RESAMPLES: Final = 200
_PERCENTILES: Final = (2.5, 97.5)
# Newton's method for a line.
_LINE_STEPS: Final = 30
_LARGEST_LINE_STEP: Final = 2.0
_LARGEST_LINE: Final = 64.0
_TINIEST_LINE_STEP: Final = 1e-9
Float64 = npt.NDArray[np.float64]


def intervals_by_outcome(rows: HeldOutRows, scores: Scores, seed: int) -> dict[str, Json]:
    """Return the intervals of `calibration_spans` by class. `scores` are as in `HeldOutRows.evaluate`."""
    return {
        name: calibration_spans(happened, said, rows.patients, seed) for name, happened, said in rows.outcomes(scores)
    }


def calibration_spans(happened: Happened, scores: Scores, patients: Patients, seed: int) -> dict[str, Json]:
    """Return the 95% intervals of a model's calibration in the large, intercept and slope, by their names."""
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
    return {
        name: None if np.isnan(values).any() else np.percentile(values, _PERCENTILES).tolist()
        for name, values in drawn.items()
    }


def _fitted(counts: Counts, outcome: Scores, logit: Scores, *, has_slope: bool) -> Float64:
    """Return intercept and slope of a logistic regression on each resample, shape (resamples, 2); NaN if undefined."""
    line = np.tile([0.0, 1.0], (len(counts), 1))
    with np.errstate(all="ignore"):
        for _ in range(_LINE_STEPS):
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
            line += np.clip(step, -_LARGEST_LINE_STEP, _LARGEST_LINE_STEP)
            if np.nanmax(np.abs(step), initial=0.0) < _TINIEST_LINE_STEP:
                break
    line[(np.abs(step) > 1e-4).any(axis=1) | (np.abs(line) > _LARGEST_LINE).any(axis=1)] = np.nan
    return line
