"""Computes intervals of a metric, and of the difference between two models on the same rows.

Source: Efron and Tibshirani 1993, chapter 13: the percentile interval of the bootstrap. An interval shows the
variation between patients of the same hospital. It does not cover other hospitals or another start of the training.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.evaluation import HeldOutRows, Metrics, Scores
from site_agent.desk.comparison.resampling import RESAMPLES, Values, over_patients, resampled_metrics
from site_agent.trainer.checkpoints import Json

_PERCENTILES: Final = (2.5, 97.5)
_DEFINED_SHARE: Final = 0.6  # fraction of the resamples; a class with one patient occurs in 63% of the resamples


@dataclass(frozen=True)
class Interval:
    """A 95% interval, computed from the resamples for which the metric is defined."""

    low: float
    high: float

    @property
    def has_zero(self) -> bool:
        """Whether the interval includes zero."""
        return self.low <= 0.0 <= self.high

    def to_json(self) -> list[float]:
        """Return the lower and the upper limit of the interval."""
        return [self.low, self.high]


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of a metric between two models, in the metric's own unit, with its interval."""

    metric: str
    first: float
    second: float
    interval: Interval | None

    @property
    def value(self) -> float:
        """The metric of the first model minus the metric of the second."""
        return self.first - self.second

    @property
    def better(self) -> bool | None:
        """True if the first model is clearly better, False if clearly worse, None if the interval includes zero."""
        if self.interval is None or self.interval.has_zero:
            return None
        return (self.value > 0.0) != is_lower_better(self.metric)

    def to_json(self) -> dict[str, Json]:
        """Return plain values for `json.dumps`."""
        return {"difference": self.value, "interval": self.interval.to_json() if self.interval else None}


def is_lower_better(metric: str) -> bool:
    """Return whether a smaller value of the metric is better."""
    return metric in {"brier", "log_loss", "rmse", "mae"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """The metrics of several models on the same rows and the same resamples.

    Attributes:
        metrics: of each model, by the model's name.
        resampled: each model's metrics on the same resamples.
        resamples: the number of resamples.
    """

    metrics: Mapping[str, Metrics]
    resampled: Mapping[str, Values]
    resamples: int

    def interval(self, model: str, metric: str) -> Interval | None:
        """Return the 95% interval of a model's metric, or None if too few resamples define the metric."""
        return _interval(self.resampled[model].get(metric))

    def intervals(self, model: str) -> dict[str, Json]:
        """Return the intervals of all metrics of a model, as plain values."""
        found = {metric: self.interval(model, metric) for metric in self.metrics[model]}
        return {metric: interval.to_json() if interval else None for metric, interval in found.items()}

    def difference(self, first: str, second: str, metric: str, other: Compared | None = None) -> Difference | None:
        """Return the first model's metric minus the second model's, with its 95% interval.

        Args:
            other: a comparison on other rows, with equally many resamples, drawn independently. It gives the second
                metric. Then the interval is that of two samples. Without `other` the interval is paired.

        Returns:
            None if a metric is undefined.
        """
        then = other or self
        value, second_value = self.metrics[first][metric], then.metrics[second][metric]
        if value is None or second_value is None:
            return None
        drawn = self.resampled[first][metric] - then.resampled[second][metric]
        return Difference(metric=metric, first=value, second=second_value, interval=_interval(drawn))

    def differences(self, first: str, second: str) -> dict[str, Json]:
        """Return the differences between two models in all metrics, as plain values."""
        found = {metric: self.difference(first, second, metric) for metric in self.metrics[first]}
        return {metric: difference.to_json() if difference else None for metric, difference in found.items()}


def compare(rows: HeldOutRows, models: Mapping[str, Scores], seed: int, resamples: int = RESAMPLES) -> Compared:
    """Test models on the same rows and on the same resamples of these rows.

    Args:
        models: each model's scores by name, as `evaluate` takes them.
        seed: of the resamples; not negative.
    """
    metrics = {name: rows.evaluate(scores) for name, scores in models.items()}
    prepared = {name: resampled_metrics(rows, scores) for name, scores in models.items()}
    parts: dict[str, list[Values]] = {name: [] for name in models}
    for counts in over_patients(len(rows), rows.patients, seed, resamples).blocks():
        for name, values in prepared.items():
            parts[name].append(values(counts))
    joined = {
        name: {key: np.concatenate([b[key] for b in blocks]) for key in blocks[0]} for name, blocks in parts.items()
    }
    return Compared(metrics=metrics, resampled=joined, resamples=resamples)


def _interval(values: npt.NDArray[np.float64] | None) -> Interval | None:
    if values is None:
        return None
    defined = values[~np.isnan(values)]
    if len(defined) < _DEFINED_SHARE * len(values):
        return None
    low, high = np.percentile(defined, _PERCENTILES)
    return Interval(float(low), float(high))
