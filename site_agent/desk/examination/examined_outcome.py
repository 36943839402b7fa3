"""Finds problems with the outcome: rare classes, and columns that reveal the outcome.

A column that alone predicts the outcome very well was often recorded after the outcome. It is measured by its order,
and by a small decision tree on this column, whose predictions are for rows that the tree has not seen. Test rows are
not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.examination.finding import Finding, counted
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.contract import RegressionTarget
from site_agent.trainer.data.dataset import SplitRows
from site_agent.trainer.data.run_table import is_missing
from site_agent.trainer.data.tables import Table

FEWEST_OF_CLASS: Final = 10
_SUSPICIOUS_AUROC: Final = 0.8
_SUSPICIOUS_CORRELATION: Final = 0.9
_FEWEST: Final = 10
_MOST_ROWS: Final = 20_000
_LEAVES: Final = 16
_SMALLEST_LEAF: Final = 5
_FOLDS: Final = 3


@dataclass(frozen=True, kw_only=True)
class Part:
    """The size of one part of the split: rows, patients, and rows of each class, or the mean of a numeric outcome."""

    name: str
    rows: int
    patients: int | None
    by_class: Mapping[str, int]
    mean: float | None


def named_parts(parts: SplitRows) -> list[tuple[str, npt.NDArray[np.int64]]]:
    """Return the training, validation and test rows, each with its name for a reader."""
    return [("training", parts.training), ("validation", parts.validation), ("test", parts.test)]


def parts_of(table: Table, parts: SplitRows) -> tuple[Part, ...]:
    """Return how many rows and patients of each class are in the training, validation and test parts."""
    target, classes = table.target, table.contract.target.classes
    found = []
    for name, rows in named_parts(parts):
        values = np.empty(0) if target is None else target[rows]
        values = values[~np.isnan(values)]
        counts = np.bincount(values.astype(np.int64), minlength=len(classes)).tolist() if classes else []
        found.append(
            Part(
                name=name,
                rows=len(rows),
                patients=None if table.patients is None else len({table.patients[row] for row in rows}),
                by_class=dict(zip(classes, counts, strict=True)),
                mean=None if classes or not len(values) else float(values.mean()),
            )
        )
    return tuple(found)


def part_findings(parts: tuple[Part, ...]) -> Iterator[Finding]:
    """Yield a finding for each class that is rare in the test rows."""
    for name, count in parts[-1].by_class.items():
        if count < FEWEST_OF_CLASS:
            words = (
                f"only {counted(count, 'test row')} with the outcome {name}; the metrics of this outcome will be "
                "imprecise"
            )
            yield Finding(level="warning", key=f"few-of-class:{name}", words=words)


def alone(table: Table, rows: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return by column name how well each column alone predicts the outcome.

    The measure is an area under the ROC curve, or a rank correlation if the outcome is a number. A list or a note has
    the area of its best single term. If the outcome is a number, lists and notes are skipped.
    """
    target = table.target
    if target is None:
        return {}
    rows = rows[~np.isnan(target[rows])]
    if len(rows) > _MOST_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_ROWS, replace=False))
    outcome, declared, found = target[rows], table.contract.target, dict[str, float]()
    is_number = isinstance(declared, RegressionTarget)
    if len(rows) < 2 * _FEWEST:
        return {}
    places = range(1 if len(declared.classes) == 2 else 0, len(declared.classes))
    happened = [(outcome == place) for place in places]
    happened = [one for one in happened if min(one.sum(), (~one).sum()) >= _FEWEST]
    for feature in table.contract.features:
        values = table.features[feature.name][rows]
        values = np.where(is_missing(feature, values), -1e12, values)  # a value of its own for the tree
        if is_number:
            found[feature.name] = _correlation(values, outcome)
        elif happened:
            found[feature.name] = max(_auroc(values, one) for one in happened)
    for name, counts in table.terms.items() if happened else ():
        has_term = counts[rows] > 0
        # A column of two values has one corner in its ROC curve.
        found[name] = max(
            float(0.5 + np.abs(has_term[one].mean(axis=0) - has_term[~one].mean(axis=0)).max() / 2) for one in happened
        )
    return found


def _auroc(values: Numbers, happened: npt.NDArray[np.bool_]) -> float:
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.tree import DecisionTreeClassifier

    tree = DecisionTreeClassifier(max_leaf_nodes=_LEAVES, min_samples_leaf=_SMALLEST_LEAF, random_state=0)
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=0)  # a table can be sorted by this column
    said = cross_val_predict(tree, values[:, None], happened, cv=folds, method="predict_proba")
    ranked = float(roc_auc_score(happened, values))  # a code has no order, so this is about one half for it
    return max(float(roc_auc_score(happened, said[:, 1])), ranked, 1 - ranked)


def _correlation(values: Numbers, target: Numbers) -> float:
    from scipy.stats import spearmanr
    from sklearn.model_selection import KFold, cross_val_predict
    from sklearn.tree import DecisionTreeRegressor

    tree = DecisionTreeRegressor(max_leaf_nodes=_LEAVES, min_samples_leaf=_SMALLEST_LEAF, random_state=0)
    said = cross_val_predict(tree, values[:, None], target, cv=KFold(_FOLDS, shuffle=True, random_state=0))
    if min(np.ptp(target), np.ptp(values)) == 0:
        return 0.0
    return max(float(abs(spearmanr(one, target).statistic)) for one in (said, values) if one.min() < one.max())


def alone_findings(table: Table, measured: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a finding for each column that alone predicts the outcome suspiciously well."""
    is_number = isinstance(table.contract.target, RegressionTarget)
    limit = _SUSPICIOUS_CORRELATION if is_number else _SUSPICIOUS_AUROC
    what = "a rank correlation" if is_number else "an area under the ROC curve"
    for name, value in sorted(measured.items(), key=lambda pair: -pair[1]):
        if value >= limit:
            words = (
                f"column {name}: this column alone predicts the outcome with {what} of {value:.2f} (limit {limit:g}); "
                "is its value known before the outcome?"
            )
            yield Finding(level="warning", key=f"predicts-alone:{name}", words=words)
