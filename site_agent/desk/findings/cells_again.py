"""Reads dates, lists and notes again, for rows of a table that was read and checked before.

A table keeps intervals instead of dates and counts instead of lists and notes. Another hospital's model counts in its
own way, so it needs the cells. The rules:

* this hospital's contract decides what a cell means;
* intervals and counts of what was read must be those of the table. Otherwise the table changed, or its query returned
  rows in another order, and a cell could be another patient's;
* the cells stay in memory only as long as that model is tested.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence, Set
from datetime import date
from pathlib import Path

import numpy as np
import numpy.typing as npt

from protos.errors import DataError
from site_agent.trainer.data.cell_rules import Flaw, TermsRule
from site_agent.trainer.data.cells import Numbers, Parsed, Spelling, date_rule, interval_of
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.contract_columns import DateFeature
from site_agent.trainer.data.sources.blocks import blocks_of
from site_agent.trainer.data.sources.opening import open_blocks
from site_agent.trainer.data.splits import Rows
from site_agent.trainer.data.tables import Table
from site_agent.trainer.data.terms import Counts


def cells_again(path: Path, table: Table, rows: Rows, names: Set[str]) -> dict[str, list[float | str | None]]:
    """Return the dates as days since the year 1, and the lists and notes as text. A missing cell is None.

    Args:
        rows: int64 of shape (rows,), their places in the table; the cells are in this order.
        names: of columns. Those that are neither dates, lists nor notes are not returned.

    Raises:
        DataError: the file cannot be read, or is no longer the table.
    """
    contract = table.contract
    dates = contract.dates if contract.dates.keys() & names else {}
    terms = {column.name: column.rule(contract.missing_markers) for column in contract.terms if column.name in names}
    assert table.row_numbers is not None  # it was read from a file
    texts = _texts(path, contract, {*dates, *terms}, table.row_numbers[rows]) if dates or terms else {}
    empty = [""] * len(rows)  # if the table lacks an optional column
    spelling, today = Spelling(contract.format.decimal, contract.missing_markers), date.today()
    days = dict[str, Numbers]()
    for name, column in dates.items():
        rule = date_rule(column, spelling)
        read = [rule.read(cell, today) for cell in texts.get(name, empty)]
        days[name] = np.array([np.nan if isinstance(day, Flaw) else day for day in read])
    is_same = _same_intervals(table, rows, days)
    for name, terms_rule in terms.items():
        is_same = is_same and _same_counts(table.terms[name], rows, terms_rule, texts.get(name, empty))
    if not is_same:
        raise _changed()
    found: dict[str, list[float | str | None]] = {
        name: [None if np.isnan(day) else float(day) for day in values] for name, values in days.items()
    }
    for name, terms_rule in terms.items():
        found[name] = [None if cell.strip() in terms_rule.markers else cell for cell in texts.get(name, empty)]
    return found


def _same_intervals(table: Table, rows: Rows, days: Mapping[str, Numbers]) -> bool:
    parsed = {name: Parsed(values=values, flaws={}) for name, values in days.items()}
    for feature in table.contract.features:
        if isinstance(feature, DateFeature) and feature.name in days:
            read = interval_of(feature, parsed[feature.name], parsed).values
            if not np.array_equal(read, table.features[feature.name][rows], equal_nan=True):
                return False
    return True


def _same_counts(counts: Counts, rows: Rows, rule: TermsRule, cells: Sequence[str]) -> bool:
    for place, cell in zip(rows.tolist(), cells, strict=True):
        found, kept = rule.read(cell), np.flatnonzero(counts[place])
        if isinstance(found, Flaw) or dict(found) != dict(
            zip(kept.tolist(), counts[place][kept].tolist(), strict=True)
        ):
            return False
    return True


def _texts(path: Path, contract: Contract, names: Set[str], row_numbers: npt.NDArray[np.int64]) -> dict[str, list[str]]:
    """Return the cells of columns by name. Columns that the table lacks are skipped."""
    found: dict[str, dict[int, str]] = {}
    with open_blocks(path, contract.format) as opened:
        first = opened.first
        if first is None:
            raise _changed()
        has_header, width = contract.format.header, len(first[1])
        header = [cell.strip() for cell in first[1]] if has_header else [column.name for column in contract.columns]
        places = {name: place for place, name in enumerate(header) if name in names}
        own = iter(()) if has_header else blocks_of(iter([first]), width, sorted(places.values()))
        for block in itertools.chain(own, opened.rest(width, sorted(places.values()))):
            kept = np.flatnonzero(np.isin(block.rows, row_numbers)).tolist()
            numbers = block.rows.tolist()
            for name, place in places.items():
                cells = block.texts_at(place)
                found.setdefault(name, {}).update((numbers[row], cells[row]) for row in kept)
    if any(len(cells) != len(row_numbers) for cells in found.values()):
        raise _changed()
    return {name: [cells[number] for number in row_numbers.tolist()] for name, cells in found.items()}


def _changed() -> DataError:
    return DataError(
        what="This command read the table twice, and the table changed between the two readings.",
        consequence="No report was made, and nothing was sent.",
        remedy="Wait until no program writes to the table. If the table is the result of a database query, add ORDER "
        "BY to the query. Then start the command again.",
    )
