"""The trainer's record of released columns: for each column the run that received its statistics, and the rows.

Two sums of a column over tables that differ by one patient differ by that patient's value. So the record is kept for
each column, whatever else the contract has, and by the counted values. The rules:

* a column's values are used for one run, however often that run requests them, and only while the values are the same;
* another run gets an answer only if at least `smallest_cell` rows within the declared range are new since every earlier
  release of the column. For each code either no row or that many rows must have changed. A person agrees by approving
  the plan;
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
_OLDER_FILE: Final = "statistics.json"
_DIGITS: Final = 16  # 64 bits: two of a million values share a digest in one of ten million tables
Rows: TypeAlias = dict[str, int]
Released: TypeAlias = dict[str, dict[str, Rows]]  # column -> run -> digest of a value -> its rows


class ReleasedBefore(RefusedError):
    """These rows have answered for another run; the difference of two sums would reveal a few patients."""

    def __init__(self, columns: list[str], smallest_cell: int) -> None:
        super().__init__(
            what=f"Statistics of {', '.join(columns[:5])} were sent for another study, and too few rows are new "
            "since then.",
            consequence="Nothing was counted and nothing left this site.",
            remedy=f"Use the sums of that study, or request them again with at least {smallest_cell} new rows of each.",
        )


def remember(folder: Path, plan: Plan, table: Table, smallest_cell: int) -> None:
    """Record on disk, before anything is sent, which values of which columns a run uses.

    Args:
        folder: the trainer's own.
        plan: with statistics.
        table: as it is now.
        smallest_cell: the larger of the plan's and the policy's.

    Raises:
        ReleasedBefore: a column has answered for another run, and too few rows differ.
        OperatorError: the secret cannot be read, or the disk does not take the memory.
    """
    assert plan.statistics is not None
    columns = {column.name: column for column in plan.statistics.columns}
    name_value = _naming(site_secret(folder))
    now = {name: counted(column, table, name_value) for name, column in columns.items()}
    hiding = {name: counted(column, table, name_value, within_range=True) for name, column in columns.items()}
    known: Released = json.loads((folder / FILE).read_bytes()) if (folder / FILE).exists() else {}
    unknown = _released_by_an_earlier_version(folder)
    again = [
        name
        for name, column in columns.items()
        if name in unknown
        or any(
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
    """Count the rows of each value of a column, by the values' digests. Only counted values are included.

    With `within_range` only numbers that the declared range does not clip: a clipped one hides no other.
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
    """Whether the difference of two sums of these rows is about enough of them."""
    if isinstance(column, CodedColumn):
        changes = [abs(now.get(code, 0) - before.get(code, 0)) for code in before.keys() | now.keys()]
        return any(changes) and all(change == 0 or change >= smallest_cell for change in changes)
    return sum(max(0, rows - before.get(value, 0)) for value, rows in hiding.items()) >= smallest_cell


def _naming(secret: bytes) -> Callable[[bytes], str]:
    key = hmac.digest(secret, pack("released columns"), "sha256")
    return lambda value: blake3(value, key=key).hexdigest()[:_DIGITS]


def _released_by_an_earlier_version(folder: Path) -> set[str]:
    """Columns of which an earlier version has not kept the rows, so that no difference can be counted."""
    path = folder / _OLDER_FILE
    known: dict[str, dict[str, str]] = json.loads(path.read_bytes()) if path.exists() else {}
    return {column for columns in known.values() for column in columns}
