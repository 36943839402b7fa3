"""Computes confidence intervals of metrics, and of differences between two models, by resampling (the bootstrap).

Source: Efron and Tibshirani 1993, chapter 13: the percentile interval of the bootstrap. An interval shows the
variation between patients of the same hospital. It does not cover other hospitals or another start of the training.
The rules:

* rows of one patient are drawn together, because they are not independent;
* patients are drawn from all patients, so the outcome's frequency varies as in another test. With a fixed number of
  each class, an interval of the Brier score or log loss at nominal 95% covered 51 to 91% (simulated);
* a seed gives the same resamples for every model, so the difference between two models is paired.

A resample is stored as counts of how often each row was drawn. So thousands of resamples are one matrix. Rows are
ranked once for each model. Then the ranking metrics are running sums of counts, and all other metrics are one matrix
product. The results equal scikit-learn's on the repeated rows to rounding, also with ties. A metric that is undefined
on a resample is NaN, because arrays have no None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.evaluation import HeldOutRows, Metrics, Scores, brier_of_rows
from site_agent.trainer.disk import Json
from site_agent.trainer.fitted_models import log_loss_of_rows

_PERCENTILES: Final = (2.5, 97.5)
_DEFINED_SHARE: Final = 0.6  # fraction of the resamples; a class with one patient occurs in 63% of the resamples
Counts: TypeAlias = npt.NDArray[np.float64]
Values: TypeAlias = dict[str, npt.NDArray[np.float64]]
Resampled: TypeAlias = Callable[[Counts], Values]
RESAMPLES: Final = 2_000
_BLOCK_NUMBERS: Final = 1 << 19  # 4 MiB at once, for any number of rows
_CONSTANT: Final = 1e-12  # a smaller fraction of the sum of squares is a rounding error, not a spread of values


class Interval(NamedTuple):
    """A 95% interval, computed from the resamples for which the metric is defined."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference of a metric between two models, in the metric's own unit, with its interval."""

    metric: str
    first: float
    second: float
    interval: Interval | None

    @property
    def value(self) -> float:
        return self.first - self.second

    @property
    def better(self) -> bool | None:
        """True or False if the first model is clearly better or clearly worse. None if the interval includes zero."""
        if self.interval is None or self.interval.low <= 0.0 <= self.interval.high:
            return None
        return (self.value > 0.0) != is_lower_better(self.metric)

    def to_json(self) -> dict[str, Json]:
        return {"difference": self.value, "interval": self.interval}


def is_lower_better(metric: str) -> bool:
    """Return whether a smaller value of the metric is better."""
    return metric in {"brier", "log_loss", "rmse", "mae"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Compared:
    """The metrics of several models by name, on the same rows and on the same resamples, and the number of these."""

    metrics: Mapping[str, Metrics]
    resampled: Mapping[str, Values]
    resamples: int

    def interval(self, model: str, metric: str) -> Interval | None:
        """Return the 95% interval of a model's metric, or None if too few resamples define the metric."""
        return _interval(self.resampled[model].get(metric))

    def intervals(self, model: str) -> dict[str, Json]:
        """Return the intervals of all metrics of a model by name, ready for JSON."""
        return {metric: self.interval(model, metric) for metric in self.metrics[model]}

    def difference(self, first: str, second: str, metric: str) -> Difference | None:
        """Return the metric of the first model minus the metric of the second, with the 95% interval of the difference.

        The interval is paired. The result is None if a metric is undefined.
        """
        value, second_value = self.metrics[first][metric], self.metrics[second][metric]
        if value is None or second_value is None:
            return None
        drawn = self.resampled[first][metric] - self.resampled[second][metric]
        return Difference(metric=metric, first=value, second=second_value, interval=_interval(drawn))

    def differences(self, first: str, second: str) -> dict[str, Json]:
        found = {metric: self.difference(first, second, metric) for metric in self.metrics[first]}
        return {metric: difference.to_json() if difference else None for metric, difference in found.items()}


def compare(rows: HeldOutRows, models: Mapping[str, Scores], seed: int, resamples: int = RESAMPLES) -> Compared:
    """Test models, each with its scores as `evaluate` takes them, on the same rows and resamples of these rows."""
    metrics = {name: rows.evaluate(scores) for name, scores in models.items()}
    prepared = {name: resampled_metrics(rows, scores) for name, scores in models.items()}
    parts: dict[str, list[Values]] = {name: [] for name in models}
    for counts in resamples_of(rows, seed, resamples):
        for name, values in prepared.items():
            parts[name].append(values(counts))
    joined = {name: {key: np.concatenate([b[key] for b in some]) for key in some[0]} for name, some in parts.items()}
    return Compared(metrics=metrics, resampled=joined, resamples=resamples)


def _interval(values: npt.NDArray[np.float64] | None) -> Interval | None:
    if values is None:
        return None
    defined = values[~np.isnan(values)]
    if len(defined) < _DEFINED_SHARE * len(values):
        return None
    low, high = np.percentile(defined, _PERCENTILES)
    return Interval(float(low), float(high))


def resamples_of(rows: HeldOutRows, seed: int, number: int = RESAMPLES) -> Iterator[Counts]:
    """Yield, for blocks of resamples of whole patients, how often each contains each row: float64 (resamples, rows).

    Equal seeds draw equal resamples. `seed` is from the plan's seed and the site's name; not negative.
    """
    generator, owners = np.random.default_rng(seed), np.unique(rows.owners, return_inverse=True)[1].reshape(-1)
    patients, size = int(owners.max()) + 1, max(1, _BLOCK_NUMBERS // len(rows))
    for start in range(0, number, size):
        drawn = np.empty((min(size, number - start), patients))
        for resample in drawn:
            resample[:] = np.bincount(generator.integers(0, patients, size=patients), minlength=patients)
        # If each row is a different patient, patients have the numbers of their rows.
        yield drawn if patients == len(rows) else drawn[:, owners]


def resampled_metrics(rows: HeldOutRows, scores: Scores) -> Resampled:
    """Return a function that computes one model's metrics on many resamples of the rows.

    Returns:
        a function from counts of shape (resamples, rows) to each metric of `measure` that is defined on the rows:
        float64 of shape (resamples,).
    """
    if rows.task == "regression":
        return _numbers(rows.targets.astype(np.float64), scores)
    labels = rows.labels
    losses = np.stack([brier_of_rows(labels, scores), log_loss_of_rows(labels, scores)], axis=1)
    present = np.unique(labels)
    if len(present) < 2:
        return lambda counts: _mean_losses(counts, losses)
    chosen = [(labels == 1, scores)] if scores.ndim == 1 else [(labels == c, scores[:, c]) for c in present]
    rankings = [_Ranking.of(is_positive, ranked) for is_positive, ranked in chosen]

    def values(counts: Counts) -> Values:
        with np.errstate(invalid="ignore"):  # 0 / 0 if a resample lacks a class
            ranked = np.mean([ranking.values(counts) for ranking in rankings], axis=0)
        return {"auroc": ranked[0], "auprc": ranked[1]} | _mean_losses(counts, losses)

    return values


def _mean_losses(counts: Counts, losses: npt.NDArray[np.float64]) -> Values:
    brier, log_loss = (counts @ losses).T / counts.sum(axis=1)
    return {"brier": brier, "log_loss": log_loss}


@dataclass(frozen=True, eq=False)
class _Ranking:
    """The rows of one class, and all other rows, each list sorted by score from high to low.

    Attributes:
        positives, negatives: row numbers, by falling score.
        positives_down_to: for each positive, the number of positives with its score or a higher one.
        negatives_above, negatives_down_to: for each positive, the number of negatives with a higher score, and with
            its score or a higher one.
    """

    positives: npt.NDArray[np.int64]
    negatives: npt.NDArray[np.int64]
    positives_down_to: npt.NDArray[np.int64]
    negatives_above: npt.NDArray[np.int64]
    negatives_down_to: npt.NDArray[np.int64]

    @staticmethod
    def of(is_positive: npt.NDArray[np.bool_], scores: Scores) -> _Ranking:
        order = np.argsort(-scores, kind="stable")
        positives, negatives = order[is_positive[order]], order[~is_positive[order]]
        high, low = -scores[positives], -scores[negatives]
        return _Ranking(
            positives,
            negatives,
            positives_down_to=np.searchsorted(high, high, side="right"),
            negatives_above=np.searchsorted(low, high, side="left"),
            negatives_down_to=np.searchsorted(low, high, side="right"),
        )

    def values(self, counts: Counts) -> npt.NDArray[np.float64]:
        """Return AUROC (Mann and Whitney 1947, ties count half) and average precision of resamples: (2, resamples)."""
        drawn = counts.take(self.positives, axis=1)
        hits, misses = _running(drawn), _running(counts.take(self.negatives, axis=1))
        false, true = misses.take(self.negatives_down_to, axis=1), hits.take(self.positives_down_to, axis=1)
        all_hits, all_misses = hits[:, -1], misses[:, -1]
        beaten = all_misses[:, None] - 0.5 * (misses.take(self.negatives_above, axis=1) + false)
        auroc = np.einsum("rp,rp->r", drawn, beaten) / (all_hits * all_misses)
        # If no row with this or a higher score was drawn, the precision has weight 0 in the mean.
        return np.stack([auroc, np.einsum("rp,rp->r", drawn, true / np.maximum(true + false, 1.0)) / all_hits])


def _running(counts: Counts) -> Counts:
    """Return running sums over the columns, starting with 0. The sums are exact, because counts are whole numbers."""
    running = np.zeros((len(counts), counts.shape[1] + 1))
    np.cumsum(counts, axis=1, out=running[:, 1:])
    return running


def _numbers(targets: Scores, scores: Scores) -> Resampled:
    # We subtract the mean first, because rounding the square of a large mean would hide the spread of a resample.
    wrong, centred = scores - targets, targets - targets.mean()
    columns = np.stack([np.ones(len(targets)), wrong**2, np.abs(wrong), centred, centred**2], axis=1)

    def values(counts: Counts) -> Values:
        total, squares, absolutes, first, second = (counts @ columns).T
        found = {"rmse": np.sqrt(squares / total), "mae": absolutes / total}
        if targets.min() < targets.max():
            spread = second - first**2 / total
            is_varied = spread > _CONSTANT * second
            found["r2"] = np.where(is_varied, 1.0 - squares / np.where(is_varied, spread, 1.0), np.nan)
        return found

    return values
