"""Measures how well a model predicts in groups of patients, such as women and men, or wards.

A model that is good on average can be bad for some patients. The rules:

* groups are those of the test rows, and each result has its number of rows;
* a group of fewer than FEWEST_ROWS rows has no result, because it would mean nothing;
* the intervals use the same bootstrap as the rest of the report, within the group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from site_agent.desk.comparison.bootstrap_intervals import Interval, compare
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores, headline_metric
from site_agent.desk.comparison.gain import FEWEST_NUMBERS, FEWEST_OF_A_CLASS
from site_agent.trainer.disk import Json

FEWEST_ROWS = 10
MOST_VALUES = 20
_RESAMPLES = 500
_MODEL = "model"


@dataclass(frozen=True, kw_only=True)
class Subgroup:
    """A model's result for one group of the test rows, such as women.

    Attributes:
        group, value: the declared group and its value in the table.
        rows: test rows with this value.
        positive: the number of these rows with the outcome; None unless the outcome is yes or no.
        fewest: patients of the rarest class in it, or all its patients if there are no classes. Without a patient
            column each row is a patient.
        metric: the name of the headline metric.
        figure: the value of the headline metric; None if it is undefined or the rows are too few.
        interval: the metric's 95% interval.
        predicted: the mean predicted probability; only for a yes-or-no outcome.
    """

    group: str
    value: str
    rows: int
    positive: int | None
    fewest: int
    metric: str
    figure: float | None
    interval: Interval | None
    predicted: float | None

    @property
    def is_small(self) -> bool:
        """Whether this group has too few patients to draw conclusions."""
        return self.fewest < (FEWEST_OF_A_CLASS if self.metric == "auroc" else FEWEST_NUMBERS)

    def to_json(self) -> dict[str, Json]:
        """Return plain values for `json.dumps`."""
        return {
            "group": self.group,
            "value": self.value,
            "rows": self.rows,
            "positive": self.positive,
            "fewest": self.fewest,
            self.metric: self.figure,
            "interval": self.interval.to_json() if self.interval else None,
            "predicted": self.predicted,
            "is_small": self.is_small,
        }


def subgroups(
    rows: HeldOutRows, scores: Scores, groups: Mapping[str, Sequence[str]], seed: int
) -> tuple[Subgroup, ...]:
    """Return a model's result in each group of patients. Each group column has up to MOST_VALUES groups.

    Args:
        groups: for each group its value in each row, of length rows.
    """
    found: list[Subgroup] = []
    for group, values in groups.items():
        cells = np.array(values, dtype=np.str_)
        names, counts = np.unique(cells, return_counts=True)
        commonest = sorted(names[np.argsort(-counts, kind="stable")][:MOST_VALUES])
        members = {str(value): np.flatnonzero(cells == value) for value in commonest}
        found.extend(_subgroup(rows, scores, (group, value), inside, seed) for value, inside in members.items())
    return tuple(found)


def _subgroup(
    rows: HeldOutRows, scores: Scores, name: tuple[str, str], members: npt.NDArray[np.int64], seed: int
) -> Subgroup:
    metric, is_binary = headline_metric(rows.task), rows.task == "binary"
    part = rows.part(members)
    figure: float | None = None
    interval: Interval | None = None
    predicted: float | None = None
    if len(members) >= FEWEST_ROWS:
        compared = compare(part, {_MODEL: scores[members]}, seed, _RESAMPLES)
        figure, interval = compared.metrics[_MODEL][metric], compared.interval(_MODEL, metric)
        if is_binary:
            predicted = float(scores[members].mean())
    return Subgroup(
        group=name[0],
        value=name[1],
        rows=len(members),
        positive=int(part.labels.sum()) if is_binary else None,
        fewest=min(part.class_counts, default=len(np.unique(part.owners))),
        metric=metric,
        figure=figure,
        interval=interval,
        predicted=predicted,
    )
