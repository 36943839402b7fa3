"""Measures the effect of treating all patients with at least a chosen predicted probability, such as net benefit.

Functions take `happened`, 0 and 1 (or false and true) of shape (rows,), and `patients`, equal for rows of one patient
or None if every row is a patient. A share has the 95% interval of Wilson 1927, which is also correct at 0 and 1. Rows
of one patient count as one, because they are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.evaluation import Scores
from site_agent.trainer.disk import Json

USUAL_THRESHOLDS: Final = (0.05, 0.1, 0.2, 0.3, 0.5)
Happened = npt.NDArray[np.generic]
Patients = npt.NDArray[np.int64] | None


@dataclass(frozen=True, kw_only=True)
class Share:
    """A fraction of the rows, with its 95% interval. Without rows the fraction is None."""

    value: float | None
    low: float | None
    high: float | None

    def to_json(self) -> dict[str, Json]:
        """Return plain values for `json.dumps`."""
        return {"value": self.value, "interval": None if self.low is None else [self.low, self.high]}


@dataclass(frozen=True, kw_only=True)
class AtThreshold:
    """The results of treating every patient whose predicted probability reaches one threshold.

    Attributes:
        threshold: the probability from which a patient is treated.
        treated: share of rows at or above it.
        sensitivity, specificity: of rows with, and without, the outcome.
        positive_predictive_value, negative_predictive_value: of rows treated, and not treated.
        net_benefit: see `net_benefit`, in true positives per row.
        without_model: the net benefit of treating all or nobody, whichever is better.
    """

    threshold: float
    treated: Share
    sensitivity: Share
    specificity: Share
    positive_predictive_value: Share
    negative_predictive_value: Share
    net_benefit: float
    without_model: float

    def to_json(self) -> dict[str, Json]:
        """Return plain values for `json.dumps`."""
        return {name: one.to_json() if isinstance(one, Share) else one for name, one in vars(self).items()}


def prevalence_of(happened: Happened, patients: Patients) -> Share:
    """Return the fraction of the rows that have the outcome."""
    return _share(happened.astype(bool), np.ones(len(happened), dtype=bool), patients)


def net_benefit(happened: Happened, treated: npt.NDArray[np.bool_], threshold: float) -> float:
    """Return the net benefit of treating some patients, in true positives per row. Treating nobody has the value 0.

    Source: Vickers and Elkin 2006: true positives / rows - false positives / rows · p / (1 - p), for a threshold p.
    """
    outcome = happened.astype(bool)
    return float((treated & outcome).mean() - (treated & ~outcome).mean() * threshold / (1.0 - threshold))


def at_thresholds(
    happened: Happened, scores: Scores, thresholds: Sequence[float], patients: Patients
) -> tuple[AtThreshold, ...]:
    """Return for each threshold the result of treating every patient whose predicted probability is at least as high.

    Args:
        scores: probabilities, shape (rows,).
        thresholds: each between 0 and 1, both excluded.
    """
    outcome, everyone, found = happened.astype(bool), np.ones(len(happened), dtype=bool), []
    for threshold in thresholds:
        treated = scores >= threshold
        found.append(
            AtThreshold(
                threshold=threshold,
                treated=_share(treated, everyone, patients),
                sensitivity=_share(treated, outcome, patients),
                specificity=_share(~treated, ~outcome, patients),
                positive_predictive_value=_share(outcome, treated, patients),
                negative_predictive_value=_share(~outcome, ~treated, patients),
                net_benefit=net_benefit(happened, treated, threshold),
                without_model=max(0.0, net_benefit(happened, everyone, threshold)),
            )
        )
    return tuple(found)


def _share(is_in: npt.NDArray[np.bool_], among: npt.NDArray[np.bool_], patients: Patients) -> Share:
    """Return a fraction with its 95% interval. Rows of the same patient are treated as one observation."""
    from scipy.stats import binomtest

    rows = int(among.sum())
    if not rows:
        return Share(value=None, low=None, high=None)
    value = float(is_in[among].mean())
    count = rows if patients is None else len(np.unique(patients[among]))
    interval = binomtest(round(value * count), count).proportion_ci(method="wilson")
    return Share(value=value, low=float(interval.low), high=float(interval.high))
