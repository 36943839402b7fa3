"""Measures the effect of treating all patients with at least a chosen predicted probability, such as net benefit.

Functions take `happened`, 0 and 1 (or false and true) of shape (rows,), and `patients`, equal for rows of one patient
or None if every row is a patient. A share has the 95% interval of Wilson 1927, which is also correct at 0 and 1. Rows
of one patient count as one, because they are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.evaluation import Scores
from site_agent.trainer.disk import Json

USUAL_THRESHOLDS: Final = (0.05, 0.1, 0.2, 0.3, 0.5)
Happened = npt.NDArray[np.generic]
Patients = npt.NDArray[np.int64] | None


def net_benefit(happened: Happened, treated: npt.NDArray[np.bool_], threshold: float) -> float:
    """Return the net benefit of treating some patients, in true positives per row. Treating nobody has the value 0.

    Source: Vickers and Elkin 2006: true positives / rows - false positives / rows · p / (1 - p), for a threshold p.
    """
    outcome = happened.astype(bool)
    return float((treated & outcome).mean() - (treated & ~outcome).mean() * threshold / (1.0 - threshold))


def prevalence_of(happened: Happened, patients: Patients) -> dict[str, Json]:
    """Return the fraction of the rows that have the outcome, as `value` and `interval`."""
    return _share(happened.astype(bool), np.ones(len(happened), dtype=bool), patients)


def at_thresholds(
    happened: Happened, scores: Scores, thresholds: Sequence[float], patients: Patients
) -> list[dict[str, Json]]:
    """Return for each threshold the result of treating every patient whose predicted probability is at least as high.

    Shares are as in `prevalence_of`: `treated` of all rows, `sensitivity` and `specificity` of those with and without
    the outcome, predictive values of those treated and not. `net_benefit` is in true positives per row, and
    `without_model` that of treating all or nobody, whichever is better. Thresholds are above 0 and below 1, `scores`
    probabilities of shape (rows,).
    """
    outcome, everyone, found = happened.astype(bool), np.ones(len(happened), dtype=bool), list[dict[str, Json]]()
    for threshold in thresholds:
        treated = scores >= threshold
        found.append(
            {
                "threshold": threshold,
                "treated": _share(treated, everyone, patients),
                "sensitivity": _share(treated, outcome, patients),
                "specificity": _share(~treated, ~outcome, patients),
                "positive_predictive_value": _share(outcome, treated, patients),
                "negative_predictive_value": _share(~outcome, ~treated, patients),
                "net_benefit": net_benefit(happened, treated, threshold),
                "without_model": max(0.0, net_benefit(happened, everyone, threshold)),
            }
        )
    return found


def _share(is_in: npt.NDArray[np.bool_], among: npt.NDArray[np.bool_], patients: Patients) -> dict[str, Json]:
    """Return a fraction with its 95% interval, None without rows. Rows of one patient are one observation."""
    from scipy.stats import binomtest

    rows = int(among.sum())
    if not rows:
        return {"value": None, "interval": None}
    value = float(is_in[among].mean())
    count = rows if patients is None else len(np.unique(patients[among]))
    interval = binomtest(round(value * count), count).proportion_ci(method="wilson")
    return {"value": value, "interval": [float(interval.low), float(interval.high)]}
