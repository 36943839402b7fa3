"""Measures the effect of treating all patients with at least a chosen predicted probability, such as net benefit.

Functions take `happened`, 0 and 1 (or false and true) of shape (rows,), and `patients`, equal for rows of one patient
or None if every row is a patient. Every number has its 95% interval. The rules:

* a share has the interval of Wilson 1927, which is also correct at 0 and 1. Rows of one patient count as one, because
  they are not independent;
* net benefit has the interval of the bootstrap over patients. So has its difference to the better strategy without a
  model: treat everybody or treat nobody.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.bootstrap_intervals import over_patients
from site_agent.desk.comparison.evaluation import Scores
from site_agent.trainer.disk import Json

USUAL_THRESHOLDS: Final = (0.05, 0.1, 0.2, 0.3, 0.5)
_RESAMPLES: Final = 1_000
_QUANTILE: Final = 1.959963984540054  # of the normal distribution, for 95%
_PERCENTILES: Final = (2.5, 97.5)
_ROUNDING: Final = 1e-12
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
        net_benefit: see `decision_curve`, in true positives per row, with its interval.
        compared_with: the better strategy without a model, "treating all" or "treating nobody".
        difference: in net benefit to that strategy, with its interval.
    """

    threshold: float
    treated: Share
    sensitivity: Share
    specificity: Share
    positive_predictive_value: Share
    negative_predictive_value: Share
    net_benefit: Share
    compared_with: str
    difference: Share

    def to_json(self) -> dict[str, Json]:
        """Return plain values for `json.dumps`."""
        found: dict[str, Json] = {"threshold": self.threshold, "compared_with": self.compared_with}
        shares = {name: one for name, one in vars(self).items() if isinstance(one, Share)}
        return found | {name: one.to_json() for name, one in shares.items()}


def prevalence_of(happened: Happened, patients: Patients) -> Share:
    """Return the fraction of the rows that have the outcome."""
    return _share(happened.astype(bool), np.ones(len(happened), dtype=bool), patients)


def at_thresholds(
    happened: Happened, scores: Scores, thresholds: Sequence[float], patients: Patients, seed: int
) -> tuple[AtThreshold, ...]:
    """Return for each threshold the result of treating every patient whose predicted probability is at least as high.

    Args:
        scores: probabilities, shape (rows,).
        thresholds: each between 0 and 1, both excluded.
        seed: of the resamples, not negative.
    """
    outcome = happened.astype(bool)
    benefits = [_benefit(outcome, scores >= threshold, threshold) for threshold in thresholds]
    all_treated = [_benefit(outcome, np.ones(len(outcome), dtype=bool), threshold) for threshold in thresholds]
    is_all = [bool(treated.mean() > _ROUNDING) for treated in all_treated]
    apart = [one - treated * better for one, treated, better in zip(benefits, all_treated, is_all, strict=True)]
    spans = _spans(np.stack([*benefits, *apart], axis=1), patients, seed)
    found = []
    for place, threshold in enumerate(thresholds):
        treated = scores >= threshold
        found.append(
            AtThreshold(
                threshold=threshold,
                treated=_share(treated, np.ones(len(treated), dtype=bool), patients),
                sensitivity=_share(treated, outcome, patients),
                specificity=_share(~treated, ~outcome, patients),
                positive_predictive_value=_share(outcome, treated, patients),
                negative_predictive_value=_share(~outcome, ~treated, patients),
                net_benefit=spans[place],
                compared_with="treating all" if is_all[place] else "treating nobody",
                difference=spans[len(thresholds) + place],
            )
        )
    return tuple(found)


def _benefit(outcome: npt.NDArray[np.bool_], treated: npt.NDArray[np.bool_], threshold: float) -> Scores:
    """Return for each row its contribution to the net benefit. The mean of all contributions is the net benefit."""
    cost = threshold / (1.0 - threshold)
    return np.where(treated, np.where(outcome, 1.0, -cost), 0.0)


def _share(is_in: npt.NDArray[np.bool_], among: npt.NDArray[np.bool_], patients: Patients) -> Share:
    """Return a fraction with its 95% interval. Rows of the same patient are treated as one observation."""
    rows = int(among.sum())
    if not rows:
        return Share(value=None, low=None, high=None)
    value = float(is_in[among].mean())
    low, high = wilson(value, rows if patients is None else len(np.unique(patients[among])))
    return Share(value=value, low=low, high=high)


def wilson(share: float, number: int) -> tuple[float, float]:
    """Return the 95% interval of a fraction that was observed in `number` rows. Source: Wilson 1927."""
    squared = _QUANTILE**2
    middle = (share + squared / (2 * number)) / (1 + squared / number)
    half = _QUANTILE * math.sqrt(share * (1 - share) / number + squared / (4 * number**2)) / (1 + squared / number)
    return max(0.0, middle - half), min(1.0, middle + half)


def _spans(values: Scores, patients: Patients, seed: int) -> list[Share]:
    """Return the mean of each column of an array (rows, columns), with its bootstrap interval."""
    drawn = []
    for counts in over_patients(len(values), patients, seed, _RESAMPLES).blocks():
        drawn.append(counts @ values / counts.sum(axis=1, keepdims=True))
    low, high = np.percentile(np.concatenate(drawn), _PERCENTILES, axis=0)
    means = values.mean(axis=0)
    return [Share(value=float(m), low=float(a), high=float(b)) for m, a, b in zip(means, low, high, strict=True)]
