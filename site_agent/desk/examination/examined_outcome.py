"""Finds problems with the outcome: rare classes, unequal splits, small groups, columns that reveal the outcome."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.examination.columns_alone import (
    SUSPICIOUS_AUROC,
    SUSPICIOUS_CORRELATION,
    auroc_alone,
    best_term,
    correlation_alone,
    sampled,
)
from site_agent.desk.examination.finding import Finding, Level, counted
from site_agent.trainer.data.contract import RegressionTarget
from site_agent.trainer.data.contract_columns import CategoricalFeature
from site_agent.trainer.data.mistakes import KEPT_ROWS
from site_agent.trainer.data.splits import SplitRows
from site_agent.trainer.data.tables import Table

FEWEST_IN_GROUP: Final = 10
FEWEST_OF_CLASS: Final = 10
MOST_DROPPED: Final = 0.05
_UNLIKELY: Final = 3.29  # in standard deviations; chance alone exceeds this limit in one of a thousand cases


@dataclass(frozen=True, kw_only=True)
class Part:
    """The size of one part of the split: rows, patients, and rows of each class, or the mean of a numeric outcome."""

    name: str
    rows: int
    patients: int | None
    by_class: Mapping[str, int]
    mean: float | None


def parts_of(table: Table, parts: SplitRows, patients: npt.NDArray[np.int64] | None) -> tuple[Part, ...]:
    """Return the sizes of the training, validation and test parts."""
    named = (("training", parts.training), ("validation", parts.validation), ("test", parts.test))
    target, classes = table.target, table.contract.target.classes
    found = []
    for name, rows in named:
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
        f"{count} of {count + table.rows} rows ({share:.1%}) have no outcome and are left out, as the contract declares"
    )
    if share > MOST_DROPPED:
        words += f" (more than {MOST_DROPPED:.0%}: do these patients differ from the others?)"
    level: Level = "warning" if share > MOST_DROPPED else "note"
    yield Finding(level=level, key="without-outcome", words=words, rows=table.dropped[:KEPT_ROWS], count=count)


def part_findings(parts: tuple[Part, ...], classes: tuple[str, ...]) -> Iterator[Finding]:
    """Yield a finding for each class that is rare in a part of the split, or whose frequency differs between parts."""
    training, _, test = parts
    for name in classes:
        for part in parts:
            count = part.by_class[name]
            if not count and part is training:
                yield Finding(level="error", key=f"no-class:{name}", words=f"no training row is of the class {name}")
            elif count < FEWEST_OF_CLASS and part is not training and part.name == "test":
                words = f"only {counted(count, 'test row')} of the class {name}; its figures will be imprecise"
                yield Finding(level="warning", key=f"few-of-class:{name}", words=words)
        one, other = training.by_class[name] / training.rows, test.by_class[name] / test.rows
        pooled = (training.by_class[name] + test.by_class[name]) / (training.rows + test.rows)
        deviation = math.sqrt(pooled * (1 - pooled) * (1 / training.rows + 1 / test.rows))
        if deviation > 0 and abs(one - other) > _UNLIKELY * deviation:
            words = f"the class {name} is {one:.1%} of the training rows and {other:.1%} of the test rows"
            yield Finding(level="warning", key=f"shares-differ:{name}", words=words)


def group_findings(table: Table, test: npt.NDArray[np.int64]) -> Iterator[Finding]:
    """Yield a finding for each declared group with fewer than ten test rows."""
    for name, labels in table.groups.items():
        counts = Counter(labels[row] for row in test)
        small = [label for label in dict.fromkeys(labels) if counts[label] < FEWEST_IN_GROUP]
        if small:
            words = f"group {name}: fewer than {FEWEST_IN_GROUP} test rows in {', '.join(small[:5])}"
            yield Finding(level="warning", key=f"small-group:{name}", words=words)


def alone(table: Table, rows: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return how well each column alone predicts the outcome, by the column's name.

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
    limit = SUSPICIOUS_CORRELATION if is_number else SUSPICIOUS_AUROC
    what = "a rank correlation" if is_number else "an area under the ROC curve"
    for name, value in sorted(measured.items(), key=lambda pair: -pair[1]):
        if value >= limit:
            words = (
                f"column {name}: on its own it predicts the outcome with {what} of {value:.2f} (limit {limit:g}); "
                "is it known before the outcome?"
            )
            yield Finding(level="warning", key=f"predicts-alone:{name}", words=words)
