"""Compares a model's quality on new patients with its quality on the test rows, and reports a clear loss of quality.

The samples are resampled separately because their patients differ. A resample draws whole patients. The rules:

* "worse" is reported only if chance shows such a difference, in any metric, in less than 1 of 100 tables;
* the mean prediction is compared with the outcome's frequency. So a change of the frequency is detected even if the
  ranking stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.bootstrap_intervals import Compared, compare, is_lower_better
from site_agent.desk.comparison.calibration import calibrations
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores, headline_metric
from site_agent.desk.comparison.gain import FEDERATED
from site_agent.desk.drift.column_drift import LEVEL
from site_agent.desk.findings.calibration_spans import intervals_by_outcome
from site_agent.trainer.disk import Json

_SEED: Final = 20_261_122
_RESAMPLES: Final = 1_000
_FEWEST: Final = 20  # the smallest number of rows for which an interval of the normal distribution is used


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A model's mean prediction, the observed mean of the outcome, and the standard deviation of their difference.

    The deviation is over whole patients. For a probability it is at least that of outcomes with the predicted
    frequency. Otherwise a few rows without an outcome would look certain.
    """

    expected: float
    happened: float
    deviation: float

    @property
    def excess(self) -> float:
        """The mean prediction minus the observed mean of the outcome."""
        return self.expected - self.happened


def quality_of(new: HeldOutRows, scores: Scores, test: HeldOutRows, then: Scores) -> dict[str, Json]:
    """Return the model's metrics and calibration on new rows and on the test rows, with intervals of the differences.

    `scores` and `then` are the model's for both.
    """
    now = compare(new, {FEDERATED: scores}, _SEED, _RESAMPLES)
    before = compare(test, {FEDERATED: then}, _SEED + 1, _RESAMPLES)
    found = {metric: now.difference(FEDERATED, FEDERATED, metric, before) for metric in now.metrics[FEDERATED]}
    return {
        "rows": len(new),
        "patients": None if new.patients is None else len(np.unique(new.patients)),
        "metrics": dict(now.metrics[FEDERATED]),
        "intervals": now.intervals(FEDERATED),
        "calibration": {name: asdict(one) for name, one in calibrations(new, scores).items()},
        "calibration_intervals": intervals_by_outcome(new, scores, _SEED),
        "calibration_intervals_at_the_test": intervals_by_outcome(test, then, _SEED),
        "at_the_test": dict(before.metrics[FEDERATED]),
        "differences": {metric: None if one is None else one.to_json() for metric, one in found.items()},
        "is_worse": {metric: _is_worse(metric, now, before, len(found)) for metric in found},
        "calibration_at_the_test": {name: asdict(one) for name, one in calibrations(test, then).items()},
        "expected": _expectations(new, scores, test, then),
    }


def _is_worse(metric: str, now: Compared, before: Compared, metrics: int) -> bool | None:
    """Return whether a metric became worse by more than chance, or None if the metric is undefined.

    The difference is treated as normal, with the standard deviations of the resamples.
    """
    value, then = now.metrics[FEDERATED][metric], before.metrics[FEDERATED][metric]
    if value is None or then is None:
        return None
    spread = math.hypot(*(float(np.nanstd(compared.resampled[FEDERATED][metric])) for compared in (now, before)))
    worse_by = (then - value) * (-1.0 if is_lower_better(metric) else 1.0)
    return worse_by > spread * NormalDist().inv_cdf(1 - LEVEL / 2 / metrics)


def quality_warnings(quality: Mapping[str, Any], task: Any) -> Iterator[str]:
    """Yield one sentence for each measure of `quality_of` that became worse by more than chance."""
    metric = headline_metric(task)
    if quality["is_worse"][metric]:
        low, high = quality["differences"][metric]["interval"]
        yield (
            f"The model is worse on the new rows than on the test rows. {metric} is {quality['metrics'][metric]:.3f},"
            f" and was {quality['at_the_test'][metric]:.3f} (95% interval of the difference {low:+.3f} to {high:+.3f})."
        )
    for name, one in quality["expected"].items():
        if one["has_changed"]:
            yield (
                f"The mean prediction for {name} is {one['expected']:.3g}, and the observed mean is "
                f"{one['happened']:.3g}. On the"
                f" test rows they were {one['expected_at_the_test']:.3g} and {one['happened_at_the_test']:.3g}."
            )


def expected_of(
    happened: npt.NDArray[np.generic], scores: Scores, patients: npt.NDArray[np.int64] | None, *, is_number: bool
) -> Expected:
    """Return the mean prediction, the observed mean of the outcome, and the standard deviation of their difference.

    Source: Liang and Zeger 1986, the variance of a mean from the sums of its residuals within clusters. `happened` and
    `scores` are of shape (rows,), probabilities unless `is_number`. `patients` are int64 (rows,), equal for rows of one
    patient, or None if every row is a patient.
    """
    wrong = scores - happened.astype(np.float64)
    rows = len(wrong)
    owners = np.arange(rows) if patients is None else np.unique(patients, return_inverse=True)[1].reshape(-1)
    sums = np.bincount(owners, weights=wrong - wrong.mean())
    few = len(sums) / max(1, len(sums) - 1)
    least = 0.0 if is_number else float((scores * (1 - scores)).sum())
    return Expected(
        expected=float(scores.mean()),
        happened=float(happened.astype(np.float64).mean()),
        deviation=math.sqrt(max(few * float(sums @ sums), least)) / rows,
    )


def _expectations(new: HeldOutRows, scores: Scores, test: HeldOutRows, then: Scores) -> dict[str, Json]:
    """Return predicted and observed means for each outcome. Without drift, one table in 100 gives a false alarm."""
    found: dict[str, Json] = {}
    outcomes = list(_by_outcome(new, scores))
    if not outcomes:
        return {}
    deviate, is_number = NormalDist().inv_cdf(1 - LEVEL / 2 / len(outcomes)), new.task == "regression"
    is_enough = min(len(new), len(test)) >= _FEWEST
    for (name, happened, said), (_, happened_then, said_then) in zip(outcomes, _by_outcome(test, then), strict=True):
        now = expected_of(happened, said, new.patients, is_number=is_number)
        before = expected_of(happened_then, said_then, test.patients, is_number=is_number)
        change, span = now.excess - before.excess, deviate * math.hypot(now.deviation, before.deviation)
        found[name] = {
            "expected": now.expected,
            "happened": now.happened,
            "expected_at_the_test": before.expected,
            "happened_at_the_test": before.happened,
            "change": change,
            "interval": [change - span, change + span],
            "has_changed": is_enough and abs(change) > span,
        }
    return found


def _by_outcome(rows: HeldOutRows, scores: Scores) -> Iterator[tuple[str, npt.NDArray[np.generic], Scores]]:
    if rows.task == "regression":
        yield "the outcome", rows.targets, scores
    else:  # for masks, the scores are those of whole images, not of an outcome
        yield from rows.outcomes(scores)
