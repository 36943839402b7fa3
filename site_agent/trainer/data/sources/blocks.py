"""Groups the rows of a table file into blocks of some thousand rows, each with its columns as texts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as arrow

from site_agent.trainer.data.mistakes import refuse

# The number of a row and its cells; None for a value that no text file could contain.
Record: TypeAlias = tuple[int, Sequence[str | None]]
Names: TypeAlias = tuple[int, list[str]]


def text_of(value: object) -> str | None:
    """Return a cell's value as a text file would contain it. Return None for bytes, lists and other types.

    Missing values are empty; floats have all their digits; dates are written 2020-01-31, with a time if they have one,
    and with the distance from UTC if they have one.
    """
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case float():
            return "" if math.isnan(value) else repr(value)
        case int():
            return str(value)
        case Decimal():
            return "" if value.is_nan() else f"{value:f}"
        case datetime():
            is_day = value.tzinfo is None and value.time() == time()
            return value.date().isoformat() if is_day else value.isoformat(sep=" ", timespec="seconds")
        case date() | time():
            return value.isoformat()
        case _:
            return None


_BLOCK_CELLS: Final = 1 << 18  # the text of a block fits into a CPU's cache


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Block:
    """A number of consecutive rows of a table, without the `ragged` rows that have too many or too few cells.

    Rows have the numbers of a spreadsheet, int64 (rows,). `columns` has the cells of each requested column, by place in
    the table: an array of texts without nulls, or of whole or floating numbers, null if missing.
    """

    rows: npt.NDArray[np.int64]
    columns: Mapping[int, arrow.Array]
    ragged: Sequence[int] = ()

    def texts_at(self, place: int) -> list[str]:
        """Return the cells of one column as texts. Raise DataError if a value cannot be written as text."""
        texts = texts_of(self.columns[place])
        if texts is None:
            refuse([f"the column number {place + 1} has a value that cannot be written as text"])
        found: list[str] = texts.to_pylist()
        return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Opened:
    """A table that is being read: its first row, names or not, None if the table has no rows, and the following rows.

    `rest` returns them from the table's width and the places of the wanted columns.
    """

    first: Names | None
    rest: Callable[[int, Sequence[int]], Iterator[Block]]


def opened_records(records: Iterator[Record]) -> Opened:
    """Open a table whose rows are read one at a time."""
    first = next(records, None)
    names = None if first is None else (first[0], [name for name in first[1] if name is not None])
    if first is not None and names is not None and len(names[1]) < len(first[1]):
        refuse([f"row {first[0]}: the name of a column is not text, a number or a date"])
    return Opened(first=names, rest=lambda width, places: blocks_of(records, width, places))


def blocks_of(records: Iterator[Record], width: int, places: Sequence[int]) -> Iterator[Block]:
    """Group rows of texts into blocks. Raise DataError for half a character, as in a damaged workbook or database."""
    while some := list(itertools.islice(records, max(1, _BLOCK_CELLS // max(1, width)))):
        fitting = [record for record in some if len(record[1]) == width]
        yield Block(
            rows=np.array([row for row, _ in fitting], dtype=np.int64),
            columns={place: _texts([cells[place] for _, cells in fitting], fitting) for place in places},
            ragged=[row for row, cells in some if len(cells) != width],
        )


def texts_of(cells: arrow.Array) -> arrow.StringArray | None:
    """Convert a column's cells of any type to texts. Return None if a value cannot be written as text.

    Equal values are converted once, so the time depends on the number of different values.
    """
    if arrow.types.is_string(cells.type) and not cells.null_count:
        return cells
    try:
        encoded = cells if arrow.types.is_dictionary(cells.type) else cells.dictionary_encode()
        values, places = encoded.dictionary.to_pylist(), encoded.indices
    except arrow.ArrowNotImplementedError:  # such as lists
        return None if len(cells) > cells.null_count else arrow.array([""] * len(cells), arrow.string())
    except (arrow.ArrowException, ValueError, OverflowError):  # such as a time before the year 1
        return None
    texts = [text_of(value) for value in values]
    if None in texts:
        return None
    return arrow.array([*texts, ""], arrow.string()).take(places.fill_null(len(texts)))


def _texts(cells: list[str | None], records: Sequence[Record]) -> arrow.StringArray:
    if None in cells:
        wrong = [row for cell, (row, _) in zip(cells, records, strict=True) if cell is None]
        refuse([f"row {row}: a cell has a value that is not text, a number or a date" for row in wrong])
    try:
        return arrow.array(cells, arrow.string())
    except (UnicodeEncodeError, arrow.ArrowException):
        found = [row for cell, (row, _) in zip(cells, records, strict=True) if not _is_text(cell or "")]
    return refuse([f"row {row}: a cell is not text, as in a damaged file" for row in found])


def _is_text(cell: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in cell)
