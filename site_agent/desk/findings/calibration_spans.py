"""Computes 95% intervals for the measures of a model's calibration, which comparison/calibration.py defines.

Functions take `happened`, 0 and 1 (or false and true) of shape (rows,), `scores`, probabilities of shape (rows,),
`patients`, equal for rows of one patient or None if every row is a patient, and `seed` of the resamples, not negative.

The bootstrap draws whole patients, and fits each resample by Newton's method, all of a block at once. The interval of
the calibration in the large, the intercept or the slope is None if a resample has no such line, for example because
the prediction separates the classes.

The expected calibration error and the integrated calibration index are means of absolute values. So by chance alone
they are above their true value, and on a resample of the rows they are higher again. The plain percentile interval
therefore never includes 0, not even for perfect predictions. For these two distances:

* the upper end is the percentile of the resamples;
* the lower end is the percentile minus twice the mean excess of the resamples over the distance itself;
* the lower end is 0 if perfect predictions could have such a distance by chance. For this test, outcomes are drawn
  from the predictions. All rows of a patient share one draw, so they count as one.

The coverage is in docs/researcher.md, and tests/site_agent/desk/findings/test_distance_spans.py repeats it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.bootstrap_intervals import Counts, over_patients
from site_agent.desk.comparison.calibration import BINS, SMOOTHING, logits, spline_columns
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from site_agent.desk.findings.thresholds import Happened, Patients
from site_agent.trainer.checkpoints import Json

NAMES: Final = ("expected_calibration_error", "integrated_calibration_index")
_RESAMPLES: Final = 200
_PERCENTILES: Final = (2.5, 97.5)
# Newton's method for a line.
_LINE_STEPS: Final = 30
_LARGEST_LINE_STEP: Final = 2.0
_LARGEST_LINE: Final = 64.0
_TINIEST_LINE_STEP: Final = 1e-9
# Newton's method for a smooth curve.
_CURVE_STEPS: Final = 25
_LARGEST_CURVE_STEP: Final = 4.0
_LARGEST_LOGIT: Final = 30.0
_TINIEST_CURVE_STEP: Final = 1e-6
Float64 = npt.NDArray[np.float64]


def intervals_by_outcome(rows: HeldOutRows, scores: Scores, seed: int) -> dict[str, Json]:
    """Return the intervals of all calibration measures, by class. `scores` are as in `HeldOutRows.evaluate`."""
    return {
        name: calibration_spans(happened, said, rows.patients, seed)
        | distance_spans(happened, said, rows.patients, seed)
        for name, happened, said in rows.outcomes(scores)
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


def distance_spans(happened: Happened, scores: Scores, patients: Patients, seed: int) -> dict[str, Json]:
    """Return the 95% intervals of both calibration errors by name. Return None if all rows have the same outcome."""
    outcome = happened.astype(np.float64)
    if not 0.0 < outcome.mean() < 1.0:
        return dict.fromkeys(NAMES)
    design = _design(scores)
    once = np.ones((1, len(scores)))
    found = _distances(once, outcome[None, :], scores, design)[0]
    resampling = over_patients(len(scores), patients, seed, _RESAMPLES)
    drawn, perfect = [], []
    generator = np.random.default_rng((seed, 1))
    for counts in resampling.blocks():
        drawn.append(_distances(counts, np.broadcast_to(outcome, counts.shape), scores, design))
        luck = generator.random((len(counts), int(resampling.owners.max()) + 1))[:, resampling.owners]
        perfect.append(_distances(np.ones_like(counts), (luck < scores).astype(np.float64), scores, design))
    both = np.concatenate(drawn), np.concatenate(perfect)
    return {name: _span(found[place], both[0][:, place], both[1][:, place]) for place, name in enumerate(NAMES)}


def _span(found: float, drawn: Float64, perfect: Float64) -> list[Json]:
    low, high = np.percentile(drawn, _PERCENTILES)
    is_chance = found <= np.percentile(perfect, _PERCENTILES[1])
    excess = max(0.0, float(drawn.mean()) - found)
    return [0.0 if is_chance else max(0.0, float(low) - 2.0 * excess), max(float(high), float(found))]


def _distances(counts: Counts, outcomes: Float64, scores: Scores, design: Float64) -> Float64:
    """Return both calibration errors, shape (resamples, 2), for counts and outcomes of shape (resamples, rows)."""
    rows = counts.sum(axis=1)
    ranks = np.searchsorted(np.sort(scores), scores, side="left")
    members = np.eye(BINS)[ranks * BINS // len(scores)]
    gaps = np.abs((counts * (scores - outcomes)) @ members).sum(axis=1) / rows
    smooth = _curves(counts, outcomes, design)
    return np.stack([gaps, (counts * np.abs(smooth - scores)).sum(axis=1) / rows], axis=1)


def _design(scores: Scores) -> Float64:
    """Return the spline's columns for the smooth curve, shape (rows, columns). The first column is constant."""
    columns = spline_columns(logits(scores))
    constant = np.ones((len(scores), 1))
    return constant if columns is None else np.concatenate([constant, columns], axis=1)


def _curves(counts: Counts, outcomes: Float64, design: Float64) -> Float64:
    """Return for each resample the smooth curve of `calibration.smoothed`, by Newton's method: (resamples, rows)."""
    width = design.shape[1]
    products = (design[:, :, None] * design[:, None, :]).reshape(len(design), width**2)
    ridge = np.diag([0.0, *[1.0 / SMOOTHING] * (width - 1)])
    line = np.zeros((len(counts), width))
    for _ in range(_CURVE_STEPS):
        smooth = _shares(line @ design.T)
        gradient = (counts * (outcomes - smooth)) @ design - line @ ridge
        # 1e-9 is added to the penalty, so that the matrix is invertible even if all drawn rows have the same class.
        curvature = ((counts * smooth * (1.0 - smooth)) @ products).reshape(-1, width, width) + ridge
        step = np.linalg.solve(curvature + 1e-9 * np.eye(width), gradient[:, :, None])[:, :, 0]
        largest = np.abs(step).max(axis=1, keepdims=True)
        line += step * np.minimum(1.0, _LARGEST_CURVE_STEP / np.maximum(largest, _TINIEST_CURVE_STEP))
        if largest.max() < _TINIEST_CURVE_STEP:
            break
    return _shares(line @ design.T)


def _shares(values: Float64) -> Float64:
    return 1.0 / (1.0 + np.exp(-np.clip(values, -_LARGEST_LOGIT, _LARGEST_LOGIT)))
