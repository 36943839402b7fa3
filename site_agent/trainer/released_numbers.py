"""Computes the counts and sums that this site sends, and records on disk which ones it sent before.

Two sums over tables that differ by one patient differ by that patient's value. So the disk has a record of every
release. The rules for statistics, for which rows of all parts of the split are counted:

* a cell with fewer rows than the larger of the plan's and the policy's limit is sent as 0, and so are its sums. For a
  numeric column, only rows within the declared range are counted;
* a column that this site lacks, or has as another kind, is sent as 0. So a missing column looks like few rows;
* a column's values are used for one run, however often that run requests them, and only while the values are the same;
* another run gets the column only if at least `smallest_cell` rows within the declared range are new since every
  earlier release of the column. For each code either no row or that many rows must have changed;
* the disk has no value. It has a keyed digest of each value under the site's secret, with the number of its rows;
* under a plan with privacy these rules do not apply. Each patient has one clipped term instead, the gate adds noise,
  and every further run spends again from the patients' budget.

Two row counts that decide this site's weight are equal, or differ by `smallest_cell` or more (docs/privacy.md,
"Integers"). Training and validation rows have separate records.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from blake3 import blake3

from host.record_store import Store
from protos.errors import RefusedError
from protos.plan.canonical import pack
from protos.plan.statistics_plan import LARGEST_COUNT, MOMENT_SCALE, CodedColumn, NumericColumn, StatisticsPlan
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import CategoricalFeature, NumericFeature
from site_agent.trainer.data.tables import Table
from site_agent.trainer.disk import recording, site_secret
from site_agent.trainer.prior.site_sums import Float64, Integers, summed_terms

TRAINING: Final = "training"
VALIDATION: Final = "validation"


def released_count(folder: Path, rows: int, smallest_cell: int, kind: str = TRAINING) -> int:
    """Return the row count that this site sends if it has `rows` rows. The count is stored on disk first.

    The records in `folder` have the counts of training and of validation rows that this site used, the newest last.
    `smallest_cell` is the least difference between two different counts. Raises StoreError.
    """
    with recording(folder) as store:
        used = [count for (count,) in store.read("SELECT rows FROM counts WHERE kind = ? ORDER BY place", kind)]
        near = [count for count in used if abs(count - rows) < smallest_cell]
        # The newest count is preferred. So if the number of rows rises and falls around a limit, only the first change
        # is visible.
        chosen = rows if not near else used[-1] if used[-1] in near else min(near, key=lambda count: abs(count - rows))
        if not used or used[-1] != chosen:
            store.write("DELETE FROM counts WHERE kind = ? AND rows = ?", kind, chosen)
            store.write("INSERT INTO counts (kind, rows) VALUES (?, ?)", kind, chosen)
    return chosen


# 64 bits; among a million values, two have the same digest with a probability below one in ten million.
_DIGITS: Final = 16
Rows: TypeAlias = dict[str, int]


class ReleasedBefore(RefusedError):
    """Raised if statistics of almost the same rows were sent for another run: differences would reveal patients."""

    def __init__(self, columns: list[str], smallest_cell: int) -> None:
        super().__init__(
            what=(
                f"Statistics of {', '.join(columns[:5])} were already sent for another study, and too few rows are new "
                "since then."
            ),
            consequence="Nothing was counted and nothing was sent.",
            remedy=(
                f"Use the sums of that study, or request the sums again when each column has at least {smallest_cell} "
                "new rows."
            ),
        )


def remember(folder: Path, plan: StatisticsPlan, table: Table, smallest_cell: int) -> None:
    """Store on disk, before any statistics are sent, which values of which columns a run uses.

    `smallest_cell` is the larger of the plan's and the policy's limit.

    Raises:
        ReleasedBefore: a column was sent for another run, and too few rows are new.
        OperatorError: the secret cannot be read, or the disk cannot be written.
    """
    columns = {column.name: column for column in plan.columns}
    name_value = _naming(site_secret(folder))
    now = {name: counted(column, table, name_value) for name, column in columns.items()}
    hiding = {name: counted(column, table, name_value, within_range=True) for name, column in columns.items()}
    with recording(folder) as store:
        again = [
            name
            for name, column in columns.items()
            if any(
                not _may_follow(column, rows, now[name], hiding[name], smallest_cell)
                if run != plan.run_name
                else rows != now[name]
                for run, rows in _released(store, name).items()
            )
        ]
        if again:
            raise ReleasedBefore(again, smallest_cell)
        store.write("DELETE FROM released WHERE run = ?", plan.run_name)
        for name, rows in now.items():
            for value, number in (rows or {"": 0}).items():
                store.write("INSERT INTO released VALUES (?, ?, ?, ?)", name, plan.run_name, value, number)


def _released(store: Store, column: str) -> dict[str, Rows]:
    """Return the values of a column that each run has used: the digest of a value, and its rows."""
    found: dict[str, Rows] = {}
    for run, value, rows in store.read("SELECT run, value, rows FROM released WHERE column = ?", column):
        found.setdefault(run, {}).update({value: rows} if value else {})
    return found


def counted(
    column: NumericColumn | CodedColumn,
    table: Table,
    name_value: Callable[[bytes], str],
    *,
    within_range: bool = False,
) -> Rows:
    """Count the rows of each different value in a column. The keys are digests of the values.

    With `within_range` only numbers within the declared range are counted, because a clipped number hides no other row.
    """
    feature = next((found for found in table.contract.features if found.name == column.name), None)
    if isinstance(column, CodedColumn):
        if not isinstance(feature, CategoricalFeature):
            return {}
        places = table.features[column.name]
        rows = {code: int(np.count_nonzero(places == feature.codes.index(code))) for code in feature.codes}
        return {name_value(code.encode()): rows[code] for code in column.codes if rows.get(code)}
    if not isinstance(feature, NumericFeature):
        return {}
    values = table.features[column.name].astype(np.float64)
    values = values[~np.isnan(values)]
    if within_range:
        values = values[(column.low <= values) & (values <= column.high)]
    found, counts = np.unique(values, return_counts=True)
    return {name_value(value.tobytes()): int(number) for value, number in zip(found, counts, strict=True)}


def _may_follow(
    column: NumericColumn | CodedColumn,
    before: Mapping[str, int],
    now: Mapping[str, int],
    hiding: Mapping[str, int],
    smallest_cell: int,
) -> bool:
    """Return whether enough rows of a column changed since statistics of the column were sent earlier."""
    if isinstance(column, CodedColumn):
        changes = [abs(now.get(code, 0) - before.get(code, 0)) for code in before.keys() | now.keys()]
        return any(changes) and all(change == 0 or change >= smallest_cell for change in changes)
    return sum(max(0, rows - before.get(value, 0)) for value, rows in hiding.items()) >= smallest_cell


def _naming(secret: bytes) -> Callable[[bytes], str]:
    key = hmac.digest(secret, pack("released columns"), "sha256")
    return lambda value: blake3(value, key=key).hexdigest()[:_DIGITS]


def numbers_of_table(plan: StatisticsPlan, table: Table, smallest_cell: int, folder: Path) -> tuple[int, ...]:
    """Return the numbers that this site sends in the round of statistics. With privacy, noise is added to them later.

    The table was checked, and its warnings accepted. Without privacy the request is recorded on disk first.

    Raises:
        OperatorError: the table was counted for another run, or the disk cannot be written.
    """
    if plan.privacy is not None:
        return private_numbers(plan, table)
    smallest_cell = max(plan.smallest_cell, smallest_cell)
    remember(folder, plan, table, smallest_cell)
    return count(plan, table, smallest_cell)


def count(plan: StatisticsPlan, table: Table, smallest_cell: int) -> tuple[int, ...]:
    """Return this site's statistics in the order of `plan.numbers`. Counts below `smallest_cell` rows are set to 0."""
    return tuple(number for column in plan.columns for number in _of_column(column, table, smallest_cell))


def private_numbers(plan: StatisticsPlan, table: Table) -> tuple[int, ...]:
    """Return the sums over patients, each with limited influence (clipped), in the order of `plan.numbers`."""

    def terms_of(rows: Integers) -> Float64:
        return np.column_stack([term for column in plan.columns for term in _terms_of_column(column, table, rows)])

    patients = None
    if table.patients is not None:
        patients = np.unique(table.patients, return_inverse=True)[1].astype(np.int64)
    size, largest = len(plan.numbers), plan.largest_private_number
    return summed_terms(terms_of, table.rows, size, patients, unit=plan.unit, largest=largest)


def _terms_of_column(column: NumericColumn | CodedColumn, table: Table, rows: Integers) -> Iterator[Float64]:
    """Yield one column's part of each row's term: float64 of shape (rows,). See protos/plan/statistics_plan.py."""
    feature = next((found for found in table.contract.features if found.name == column.name), None)
    if isinstance(column, CodedColumn):
        codes = feature.codes if isinstance(feature, CategoricalFeature) else ()
        for code in column.codes:
            is_code = table.features[column.name][rows] == codes.index(code) if code in codes else np.zeros(len(rows))
            yield is_code.astype(np.float64)
        return
    if not isinstance(feature, NumericFeature):
        yield from np.zeros((3, len(rows)))
        return
    values = table.features[column.name][rows]
    present = ~np.isnan(values)
    scaled = np.where(present, 2.0 * _scaled(values, column) - 1.0, 0.0)
    yield from (present.astype(np.float64), scaled, scaled * scaled)


def _scaled(values: Numbers, column: NumericColumn) -> Numbers:
    """Return values scaled from the declared range to 0..1, and clipped to this range."""
    return np.clip((values - column.low) / (column.high - column.low), 0.0, 1.0)


def _of_column(column: NumericColumn | CodedColumn, table: Table, smallest_cell: int) -> Iterator[int]:
    feature = next((found for found in table.contract.features if found.name == column.name), None)
    if isinstance(column, CodedColumn):
        codes = feature.codes if isinstance(feature, CategoricalFeature) else ()
        for code in column.codes:
            rows = int(np.count_nonzero(table.features[column.name] == codes.index(code))) if code in codes else 0
            yield _if_enough(rows, smallest_cell)
        return
    values = table.features[column.name] if isinstance(feature, NumericFeature) else np.empty(0)
    present = values[~np.isnan(values)][:LARGEST_COUNT]
    # Only rows within the range are counted. Otherwise the sum could consist of a single row.
    if _if_enough(within(present, column).size, smallest_cell) == 0:
        yield from (0, 0, 0)
        return
    scaled = _scaled(present, column)
    yield from (present.size, _integer(scaled), _integer(scaled * scaled))


def within(values: Numbers, column: NumericColumn) -> Numbers:
    """Return the values of a column that are inside the range declared in the plan."""
    return values[(column.low <= values) & (values <= column.high)]


def _integer(values: Numbers) -> int:
    # Each value is rounded separately, so that neither the row order nor the processor's way of adding changes a bit.
    return int(np.rint(values * MOMENT_SCALE).astype(np.int64).sum())


def _if_enough(rows: int, smallest_cell: int) -> int:
    return min(rows, LARGEST_COUNT) if rows >= smallest_cell else 0
