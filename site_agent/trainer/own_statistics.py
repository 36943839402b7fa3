"""Computes the counts and sums that a plan of statistics requests, from this site's own table, without training.

Rows of all parts of the split are counted. The rules:

* a cell with fewer rows than the larger of the plan's and the policy's limit is sent as 0, and so are its sums;
* for a numeric column, only rows within the declared range count towards the smallest cell;
* a column that this site lacks, or has as another kind, is sent as 0. So a missing column looks like few rows;
* only a table that is fit for training is counted: it has no errors, and its warnings are accepted as this hospital
  requires;
* a column's rows are used for one run, however often that run requests them (released_columns.py);
* under a plan with privacy the two rules about few rows do not apply. Each patient has one clipped term instead, the
  gate adds noise, and every further run spends again from the patients' budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from protos.plan.federated_statistics import LARGEST_COUNT, MOMENT_SCALE, CodedColumn, NumericColumn, Statistics
from protos.plan.plan import Plan
from protos.plan.private_statistics import PrivateStatistics
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.contract_columns import CategoricalFeature, NumericFeature
from site_agent.trainer.data.tables import Table
from site_agent.trainer.prior.private_terms import Float64, Integers, summed_terms
from site_agent.trainer.released_columns import remember


def numbers_of_table(plan: Plan, table: Table, smallest_cell: int, folder: Path) -> tuple[int, ...]:
    """Return the numbers that this site sends in the round of statistics. With privacy, noise is added to them later.

    The table was checked, and its warnings accepted. Without privacy the request is recorded on disk first.

    Raises:
        OperatorError: the table was counted for another run, or the disk cannot be written.
    """
    assert plan.statistics is not None
    if plan.private_statistics is not None:
        return private_numbers(plan.private_statistics, table)
    smallest_cell = max(plan.statistics.smallest_cell, smallest_cell)
    remember(folder, plan, table, smallest_cell)
    return count(plan.statistics, table, smallest_cell)


def count(statistics: Statistics, table: Table, smallest_cell: int) -> tuple[int, ...]:
    """Return this site's statistics in the order of `numbers_of`. Counts below `smallest_cell` rows are set to 0."""
    return tuple(number for column in statistics.columns for number in _of_column(column, table, smallest_cell))


def private_numbers(private: PrivateStatistics, table: Table) -> tuple[int, ...]:
    """Return the sums over patients, each with limited influence (clipped), in the order of `private.names`."""

    def terms_of(rows: Integers) -> Float64:
        columns = private.statistics.columns
        return np.column_stack([term for column in columns for term in _terms_of_column(column, table, rows)])

    patients = None
    if table.patients is not None:
        patients = np.unique(table.patients, return_inverse=True)[1].astype(np.int64)
    return summed_terms(terms_of, table.rows, len(private.names), patients, unit=private.unit, largest=private.bound)


def _terms_of_column(column: NumericColumn | CodedColumn, table: Table, rows: Integers) -> Iterator[Float64]:
    """Yield one column's part of each row's term: float64 of shape (rows,). See protos/plan/private_statistics.py."""
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
