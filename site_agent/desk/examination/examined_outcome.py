"""Finds problems with the outcome: rare classes, columns that reveal it, and doubts about a time of follow-up.

A column that alone predicts the outcome very well was often recorded after the outcome. It is measured by its order,
and by the mean outcome of its values in bins of equal size, each row by the bins of other rows. Test rows are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.examination.examined_columns import suspicious
from site_agent.desk.examination.finding import Finding, counted
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.contract import BinaryTarget, RegressionTarget
from site_agent.trainer.data.dataset import SplitRows
from site_agent.trainer.data.run_table import is_missing
from site_agent.trainer.data.tables import Table

FEWEST_OF_CLASS: Final = 10
_SUSPICIOUS_AUROC: Final = 0.8
_SUSPICIOUS_CORRELATION: Final = 0.9
_MOST_ROWS: Final = 20_000
_MOST_BINS: Final = 32
_ROWS_OF_A_BIN: Final = 12
_FOLDS: Final = 3
# Names of a time of follow-up: futime, survival_days, t, d.time, os_months, days_to_death. Not a time of day, or an age
_WHAT: Final = r"(os|[pder]fs|tt[a-z]{1,6}|t2e|fup?|obs|surv|deaths?|dead|rec|last|event|censor\w*|[dfrs])"
_UNIT: Final = r"(time|days?|weeks?|months?|years?|yrs?|(?<=[ ._-])mo)"
FOLLOW_UP: Final = re.compile(
    r"(.*(follow.?up|surviv|time.?to|futime|überleb|ueberleb|beobachtungs).*|t|t?stop|os|[pder]fs|tt[defpr]|t2e|fup?"
    rf"|duration|dauer|zeit|({_WHAT}[ ._-]?|time[ ._-]){{0,3}}{_UNIT}\d?|{_UNIT}[ ._-]?(to[ ._-]?)?{_WHAT})",
    re.I,
)
# Names of a time at which a patient came under observation: start, tstart, entry_age, time at entry, left_truncation.
_ENTRY: Final = re.compile(r"(t|(time|day|age)[ ._-]?(at)?)?.?(start|entry)(.?(time|day|age))?|(left.?)?trunc\w*", re.I)
_CELLS_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Part:
    """The size of one part of the split: rows, patients, and rows of each class."""

    name: str
    rows: int
    patients: int | None
    by_class: Mapping[str, int]


def parts_of(table: Table, parts: SplitRows) -> tuple[Part, ...]:
    """Return how many rows and patients of each class are in the training, validation and test parts."""
    target, classes = table.target, table.contract.target.classes
    found = []
    for name, rows in (("training", parts.training), ("validation", parts.validation), ("test", parts.test)):
        values = np.empty(0) if target is None else target[rows]
        values = values[~np.isnan(values)]
        counts = np.bincount(values.astype(np.int64), minlength=len(classes)).tolist() if classes else []
        found.append(
            Part(
                name=name,
                rows=len(rows),
                patients=None if table.patients is None else len({table.patients[row] for row in rows}),
                by_class=dict(zip(classes, counts, strict=True)),
            )
        )
    return tuple(found)


def part_findings(parts: tuple[Part, ...]) -> Iterator[Finding]:
    """Yield a finding for each class that is rare in the test rows."""
    for name, count in parts[-1].by_class.items():
        if count < FEWEST_OF_CLASS:
            words = f"only {counted(count, 'test row')} with the outcome {name}; the metrics of this outcome"
            yield Finding(level="warning", key=f"few-of-class:{name}", words=f"{words} will be imprecise")


def alone(table: Table, rows: npt.NDArray[np.int64]) -> dict[str, float]:
    """Return by column name how well each column alone predicts the outcome.

    The measure is an area under the ROC curve, or a rank correlation if the outcome is a number.
    """
    target = table.target
    if target is None:
        return {}
    rows = rows[~np.isnan(target[rows])]
    if len(rows) > _MOST_ROWS:
        rows = np.sort(np.random.default_rng(0).choice(rows, _MOST_ROWS, replace=False))
    outcome, declared, found = target[rows], table.contract.target, dict[str, float]()
    is_number = isinstance(declared, RegressionTarget)
    if len(rows) < 2 * FEWEST_OF_CLASS:
        return {}
    happened = [(outcome == place) for place in range(1 if len(declared.classes) == 2 else 0, len(declared.classes))]
    happened = [one for one in happened if min(one.sum(), (~one).sum()) >= FEWEST_OF_CLASS]
    wanted = [outcome] if is_number else [one.astype(np.float64) for one in happened]
    at_once = max(1, _CELLS_AT_ONCE // len(rows))
    features = table.contract.features if wanted else ()
    for first in range(0, len(features), at_once):
        some = features[first : first + at_once]
        values = np.stack([table.features[one.name][rows] for one in some])
        for place, one in enumerate(some):
            values[place, is_missing(one, values[place])] = -1e12  # a value of its own
        shares = np.max([_shares(values, one, is_number=is_number) for one in wanted], axis=0)
        found |= {one.name: float(share) for one, share in zip(some, shares, strict=True)}
    return found


def _shares(values: Numbers, outcome: Numbers, *, is_number: bool) -> Numbers:
    """Return how well each row of `values`, float64 (columns, rows), predicts the outcome, float64 (columns,).

    The area under the ROC curve is a linear function of the ranks (Mann and Whitney 1947).
    """
    from scipy.stats import rankdata

    columns, rows = values.shape
    ranks, bins = rankdata(values, axis=1), min(_MOST_BINS, max(2, rows // _ROWS_OF_A_BIN))
    order, folds = np.random.default_rng(0).permutation(rows), np.empty(rows, dtype=np.int64)
    folds[order[np.argsort(outcome[order], kind="stable")]] = np.arange(rows) % _FOLDS  # each with its share of events
    places = np.minimum(((ranks - 0.5) * bins / rows).astype(np.int64), bins - 1) + np.arange(columns)[:, None] * bins
    inside, size = places + folds * bins * columns, _FOLDS * columns * bins
    counts = np.bincount(inside.ravel(), minlength=size).reshape(_FOLDS, -1)
    sums = np.bincount(inside.ravel(), np.tile(outcome, columns), size).reshape(_FOLDS, -1)
    others = counts.sum(axis=0) - counts, sums.sum(axis=0) - sums
    predicted = rankdata(((others[1] + outcome.mean()) / (others[0] + 1.0)).ravel()[inside], axis=1)
    if is_number:
        return np.asarray(np.max([np.abs(_correlations(one, rankdata(outcome))) for one in (ranks, predicted)], axis=0))
    events = outcome.sum()
    areas = [(one @ outcome - events * (events + 1) / 2) / (events * (rows - events)) for one in (ranks, predicted)]
    return np.asarray(np.max([areas[0], 1 - areas[0], areas[1]], axis=0))


def _correlations(ranks: Numbers, target: Numbers) -> Numbers:
    """Return the correlation of each row of `ranks`, float64 (columns, rows), with `target`; 0 if one is constant."""
    ranks, target = ranks - ranks.mean(axis=1, keepdims=True), target - target.mean()
    size = np.sqrt((ranks**2).sum(axis=1) * (target**2).sum())
    return np.asarray(np.divide(ranks @ target, size, out=np.zeros(len(ranks)), where=size > 0))


def alone_findings(table: Table, measured: Mapping[str, float]) -> Iterator[Finding]:
    """Yield a finding for each column that alone predicts the outcome suspiciously well."""
    is_number = isinstance(table.contract.target, RegressionTarget)
    limit = _SUSPICIOUS_CORRELATION if is_number else _SUSPICIOUS_AUROC
    what = "a rank correlation" if is_number else "an area under the ROC curve"
    for name, value in sorted(measured.items(), key=lambda pair: -pair[1]):
        if value >= limit:
            words = f"column {name}: this column alone predicts the outcome with {what} of {value:.2f}"
            words += f" (limit {limit:g}); is its value known before the outcome?"
            yield Finding(level="warning", key=f"predicts-alone:{name}", words=words)


def follow_up_findings(table: Table) -> Iterator[Finding]:
    """Yield warnings that a person must accept or correct, and notes."""
    contract, target = table.contract, table.contract.target
    if isinstance(target, RegressionTarget) and table.target is not None:
        yield from suspicious(table, target.name, table.target)
    if not isinstance(target, BinaryTarget):
        return
    if contract.follow_up is None or table.follow_up is None:
        for feature in contract.features:
            if FOLLOW_UP.fullmatch(feature.name):
                words = f"column {feature.name}: its name is that of a time of follow-up to {target.name}, which is"
                words += " known only afterwards; if so, give it role: follow-up"
                yield Finding(level="warning", key=f"follow-up:{feature.name}", words=words)
        return
    name, competing = contract.follow_up.name, contract.follow_up.competing
    yield from suspicious(table, name, table.follow_up)
    for feature in contract.features:
        if _ENTRY.fullmatch(feature.name) and not (table.features[feature.name] > table.follow_up).any():
            words = f"column {feature.name}: its name is that of a time of entry, and no value is above {name}; delayed"
            words += " entry is not offered: Cox models and curves count patients from time 0, before observation"
            yield Finding(level="warning", key=f"entry:{feature.name}", words=words)
    if table.patients is not None and (more := table.rows - len(set(table.patients))):
        words = f"column {name}: {more} rows are of a patient with another row, so Cox models and curves are void here"
        yield Finding(level="warning", key=f"rows:{name}", words=f"{words}; make one row for each patient")
    censored = [code for code in target.negative or () if code not in competing]
    if len(censored) > 1:
        words = f"column {target.name}: {', '.join(censored)} all count as censored; is one of them another event, such"
        words += f" as death from another cause? If so, list it under competing of {name}"
        yield Finding(level="warning", key=f"competing:{target.name}", words=words)
    if competing:
        words = f"column {target.name}: {', '.join(competing)} count as censored, although another event ended"
        words += " follow-up; hazard ratios are for this event alone, and a survival curve shows it as if the other"
        yield Finding(level="note", key=f"competing:{target.name}", words=f"{words} could not happen")
