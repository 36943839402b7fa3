"""Finds problems with the outcome: rare classes, unequal splits, small groups, columns that reveal the outcome.

A column that alone predicts the outcome very well was often recorded after the outcome. The test set is not used. Each
column predicts in three ways, and the best result is used: by its rank, by the outcome's rate in each of its codes or
tenths, and by whether a value is missing. Rates come from one half of the rows and are applied to the other half. So a
column with many codes gains nothing by chance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.examination.finding import Finding, Level, counted
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import UNKNOWN, CategoricalFeature
from site_agent.trainer.data.contract import RegressionTarget
from site_agent.trainer.data.dataset import SplitRows
from site_agent.trainer.data.mistakes import KEPT_ROWS
from site_agent.trainer.data.tables import Table

FEWEST_IN_GROUP: Final = 10
FEWEST_OF_CLASS: Final = 10
MOST_DROPPED: Final = 0.05
_UNLIKELY: Final = 3.29  # in standard deviations; chance alone exceeds this limit in one of a thousand cases
_SUSPICIOUS_AUROC: Final = 0.8
_SUSPICIOUS_CORRELATION: Final = 0.9
_FEWEST: Final = 10
_MOST_ROWS: Final = 100_000
_TENTHS: Final = 10

Truth = npt.NDArray[np.bool_]


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


def parts_of(table: Table, parts: SplitRows, patients: npt.NDArray[np.int64] | None) -> tuple[Part, ...]:
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
                patients=None if patients is None else len(np.unique(patients[rows])),
                by_class=dict(zip(classes, counts, strict=True)),
                mean=None if classes or not len(values) else float(values.mean()),
            )
        )
    return tuple(found)


def dropped_findings(table: Table) -> Iterator[Finding]:
    """Yield a finding about the number of rows that were skipped because they have no outcome."""
    count = len(table.dropped)
    if not count:
        return
    share = count / (count + table.rows)
    words = (
        f"{count} of {count + table.rows} rows ({share:.1%}) have no outcome and are not used, as the contract declares"
    )
    if share > MOST_DROPPED:
        words += f" (more than {MOST_DROPPED:.0%}: do these patients differ from the other patients?)"
    level: Level = "warning" if share > MOST_DROPPED else "note"
    yield Finding(level=level, key="without-outcome", words=words, rows=table.dropped[:KEPT_ROWS], count=count)


def part_findings(parts: tuple[Part, ...], classes: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding for each class that is rare in the test rows, or whose frequency differs between parts."""
    training, _, test = parts
    for name in classes:
        for part in parts:
            count = part.by_class[name]
            if not count and part is training:
                yield Finding(level="error", key=f"no-class:{name}", words=f"no training row has the outcome {name}")
            elif count < FEWEST_OF_CLASS and part is not training and part.name == "test":
                words = (
                    f"only {counted(count, 'test row')} with the outcome {name}; the metrics of this outcome will be "
                    "imprecise"
                )
                yield Finding(level="warning", key=f"few-of-class:{name}", words=words)
        one, other = training.by_class[name] / training.rows, test.by_class[name] / test.rows
        pooled = (training.by_class[name] + test.by_class[name]) / (training.rows + test.rows)
        deviation = math.sqrt(pooled * (1 - pooled) * (1 / training.rows + 1 / test.rows))
        if deviation > 0 and abs(one - other) > _UNLIKELY * deviation:
            words = f"the outcome {name} occurs in {one:.1%} of the training rows and in {other:.1%} of the test rows"
            yield Finding(level="warning", key=f"shares-differ:{name}", words=words)


def group_labels(table: Table) -> dict[str, tuple[str, ...]]:
    """Return for each group column the group of every row, as text. A row without a value has the group "unknown"."""
    found = {}
    for column in table.contract.groups:
        positions = table.features.get(column.name, table.group_positions.get(column.name))
        if positions is not None:
            names = np.array((*(column.labels or column.codes), UNKNOWN), dtype=object)
            found[column.name] = tuple(names[np.nan_to_num(positions, nan=-1.0).astype(np.int64)])
    return found


def group_findings(table: Table, test: npt.NDArray[np.int64]) -> Iterator[Finding]:
    """Yield a finding for each declared group with fewer than ten test rows."""
    for name, labels in group_labels(table).items():
        counts = Counter(labels[row] for row in test)
        small = [label for label in dict.fromkeys(labels) if counts[label] < FEWEST_IN_GROUP]
        if small:
            words = f"group column {name}: fewer than {FEWEST_IN_GROUP} test rows in the group {', '.join(small[:5])}"
            yield Finding(level="warning", key=f"small-group:{name}", words=words)


def alone(table: Table, rows: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return by column name how well each column alone predicts the outcome.

    The measure is an area under the ROC curve, or a correlation if the outcome is a number. A list or a note has the
    area of its best single term; if the outcome is a number, lists and notes are skipped.
    """
    rows = sampled(rows)
    target = table.target
    if target is None:
        return {}
    rows = rows[~np.isnan(target[rows])]
    outcome, found = target[rows], {}
    declared = table.contract.target  # stored in a variable, because the contract searches all columns each time
    is_number = isinstance(declared, RegressionTarget)
    classes = range(1 if len(declared.classes) == 2 else 0, len(declared.classes))
    for feature in table.contract.features:
        values = table.features[feature.name][rows]
        is_code = isinstance(feature, CategoricalFeature)
        if is_number:
            measured = [None if is_code else correlation_alone(values, outcome)]
        else:
            measured = [auroc_alone(values, outcome == place, is_code=is_code) for place in classes]
        known = [value for value in measured if value is not None]
        if known:
            found[feature.name] = max(known)
    for name, counts in table.terms.items() if not is_number else ():
        has_term = counts[rows] > 0
        areas = [area for place in classes if (area := best_term(has_term, outcome == place)) is not None]
        if areas:
            found[name] = max(areas)
    return found


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


def sampled(rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the given row numbers. If there are more than 100,000, return always the same random sample of 100,000."""
    if len(rows) <= _MOST_ROWS:
        return rows
    return np.sort(np.random.default_rng(0).choice(rows, _MOST_ROWS, replace=False))


def auroc(values: Numbers, truth: Truth) -> float:
    """Return the area under the ROC curve. Equal scores count half. Both outcomes must occur, without NaN."""
    places, inverse = np.unique(values, return_inverse=True)
    positives = np.bincount(inverse[truth], minlength=len(places)).astype(np.float64)
    negatives = np.bincount(inverse[~truth], minlength=len(places)).astype(np.float64)
    below = np.cumsum(negatives) - negatives
    return float((positives * (below + negatives / 2)).sum() / (positives.sum() * negatives.sum()))


def auroc_alone(values: Numbers, truth: Truth, *, is_code: bool) -> float | None:
    """Return the area under the ROC curve of one column alone. Return None if an outcome has fewer than ten rows.

    `values` are float64 (rows,), missing as NaN, or as -1 for a code, whose order has no meaning.
    """
    if min(truth.sum(), (~truth).sum()) < _FEWEST:
        return None
    absent = values < 0 if is_code else np.isnan(values)
    areas = [auroc(absent.astype(np.float64), truth), _by_rates(_cells(values, absent, is_code=is_code), truth)]
    there, known = values[~absent], truth[~absent]
    if not is_code and min(known.sum(), (~known).sum()) >= _FEWEST:
        areas.append(auroc(there, known))
    return max(max(area, 1 - area) for area in areas)


def best_term(has_term: Truth, truth: Truth) -> float | None:
    """Return the area under the ROC curve of the best term. Return None if an outcome has fewer than ten rows."""
    if min(truth.sum(), (~truth).sum()) < _FEWEST:
        return None
    # A column of two values has one corner in its ROC curve.
    return float(0.5 + np.abs(has_term[truth].mean(axis=0) - has_term[~truth].mean(axis=0)).max() / 2)


def correlation_alone(values: Numbers, target: Numbers) -> float | None:
    """Return Spearman's correlation without its sign. Return None if fewer than ten values exist or all are equal."""
    there = ~np.isnan(values)
    if there.sum() < _FEWEST:
        return None
    one, other = _ranks(values[there]), _ranks(target[there])
    spread = one.std() * other.std()
    return float(abs(((one - one.mean()) * (other - other.mean())).mean() / spread)) if spread > 0 else None


def _ranks(values: Numbers) -> Numbers:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse].astype(np.float64)


def _cells(values: Numbers, absent: Truth, *, is_code: bool) -> npt.NDArray[np.int64]:
    """Return a group number for each row: of its code, or of the decile of its value. Missing values have number 0."""
    if is_code:
        return np.where(absent, 0, values + 1).astype(np.int64)
    there = values[~absent]
    if not len(there):
        return np.zeros(len(values), dtype=np.int64)
    edges = np.unique(np.quantile(there, np.linspace(0, 1, _TENTHS + 1)[1:-1]))
    return np.where(absent, 0, np.searchsorted(edges, np.where(absent, 0.0, values)) + 1).astype(np.int64)


def _by_rates(cells: npt.NDArray[np.int64], truth: Truth) -> float:
    halves = np.arange(len(cells)) % 2 == 0
    areas = []
    for learnt, used in ((halves, ~halves), (~halves, halves)):
        if min(truth[used].sum(), (~truth[used]).sum()) == 0:
            return 0.5
        size = int(cells.max()) + 1
        counts = np.bincount(cells[learnt], minlength=size)
        positives = np.bincount(cells[learnt], weights=truth[learnt], minlength=size)
        rate = (positives + truth[learnt].mean()) / (counts + 1.0)  # the mean rate is added as if it were one more row
        areas.append(auroc(rate[cells[used]], truth[used]))
    return float(np.mean(areas))
