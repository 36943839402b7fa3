"""Records on disk which run received statistics of which columns, and from which rows they were computed.

Two sums of a column over tables that differ by one patient differ by that patient's value. So the record has an entry
for each column, and depends only on the counted values. The rules:

* a column's values are used for one run, however often that run requests them, and only while the values are the same;
* another run gets the column only if at least `smallest_cell` rows within the declared range are new since every
  earlier release of the column. For each code either no row or that many rows must have changed. A person agrees by
  approving the plan;
* the disk has no value. It has a keyed digest of each value under the site's secret, with the number of its rows.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from blake3 import blake3

from protos.errors import RefusedError
from protos.plan.canonical import pack
from protos.plan.federated_statistics import CodedColumn, NumericColumn
from protos.plan.plan import Plan
from site_agent.trainer.data.contract_columns import CategoricalFeature, NumericFeature
from site_agent.trainer.data.tables import Table
from site_agent.trainer.trainer_files import site_secret, write_whole

FILE: Final = "released_columns.json"
# 64 bits; among a million values, two have the same digest with a probability below one in ten million.
_DIGITS: Final = 16
Rows: TypeAlias = dict[str, int]
Released: TypeAlias = dict[str, dict[str, Rows]]  # column -> run -> digest of a value -> its rows


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


def remember(folder: Path, plan: Plan, table: Table, smallest_cell: int) -> None:
    """Store on disk, before any statistics are sent, which values of which columns a run uses.

    `smallest_cell` is the larger of the plan's and the policy's limit.

    Raises:
        ReleasedBefore: a column was sent for another run, and too few rows are new.
        OperatorError: the secret cannot be read, or the disk cannot be written.
    """
    assert plan.statistics is not None
    columns = {column.name: column for column in plan.statistics.columns}
    name_value = _naming(site_secret(folder))
    now = {name: counted(column, table, name_value) for name, column in columns.items()}
    hiding = {name: counted(column, table, name_value, within_range=True) for name, column in columns.items()}
    known: Released = json.loads((folder / FILE).read_bytes()) if (folder / FILE).exists() else {}
    again = [
        name
        for name, column in columns.items()
        if any(
            not _may_follow(column, rows, now[name], hiding[name], smallest_cell)
            if run != plan.run_name
            else rows != now[name]
            for run, rows in known.get(name, {}).items()
        )
    ]
    if again:
        raise ReleasedBefore(again, smallest_cell)
    for name, rows in now.items():
        known.setdefault(name, {})[plan.run_name] = rows
    write_whole(folder / FILE, json.dumps(known, sort_keys=True).encode())


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
