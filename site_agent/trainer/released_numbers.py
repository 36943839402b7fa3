"""Computes the counts and sums that this site sends, and records on disk which ones it sent before.

The rules for statistics, for which rows of all parts of the split are counted:

* a cell with fewer rows than the larger of the plan's and the policy's limit is sent as 0, and so are its sums. For a
  numeric column, only rows within the declared range are counted;
* a column that this site lacks, or has as another kind, is sent as 0. So a missing column looks like few rows;
* another run gets a column only if its values are the same, or enough of them are new (answered_values.py);
* under a plan with privacy these rules do not apply. Each patient has one clipped term instead, the gate adds noise,
  and every further run spends again from the patients' budget.

Two row counts that decide this site's weight are equal, or differ by `smallest_cell` or more (docs/privacy.md,
"Integers"). Training and validation rows have separate records.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from protos.plan.statistics_plan import LARGEST_COUNT, MOMENT_SCALE, CodedColumn, NumericColumn, StatisticsPlan
from site_agent.trainer.answered_values import Values, codes_of, extend, numbers_of, remember
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
            extend(store, site_secret(folder), "", {kind: str(chosen)})
    return chosen


def used_values(plan: StatisticsPlan, table: Table) -> dict[str, Values]:
    """Return the values of the plan's columns, as the table has them and as the plan maps them, by name."""
    found: dict[str, Values] = {}
    for column in plan.columns:
        feature = next((found for found in table.contract.features if found.name == column.name), None)
        if isinstance(column, CodedColumn) and isinstance(feature, CategoricalFeature):
            codes = codes_of(column.name, table.features[column.name], feature.codes)
            found |= {name: codes[name] for code in column.codes if (name := f"{column.name}={code}") in codes}
        elif isinstance(column, NumericColumn) and isinstance(feature, NumericFeature):
            found |= numbers_of(column.name, table.features[column.name], column.low, column.high)
    return found


def numbers_of_table(plan: StatisticsPlan, table: Table, smallest_cell: int, folder: Path) -> tuple[int, ...]:
    """Return the numbers that this site sends in the round of statistics. With privacy, noise is added to them later.

    The table was checked, and its warnings accepted. Without privacy the request is recorded on disk first.

    Raises:
        OperatorError: the table was counted for another run, or the disk cannot be written.
    """
    if plan.privacy is not None:
        return private_numbers(plan, table)
    smallest_cell = max(plan.smallest_cell, smallest_cell)
    remember(folder, plan.run_name, used_values(plan, table), smallest_cell)
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
