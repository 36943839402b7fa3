"""Splits many lines of a simple text file into columns at once, which is faster than Python's csv module.

pyarrow's reader is fast, but Python's reader is the reference. Both read a file alike under these conditions: no NUL,
no lone carriage return, no blank line and no undecodable byte. Each row has as many cells as the table has columns, and
no cell is too long. Quotation marks are only around whole cells, and doubled inside. For all other files the result is
None, and Python's reader reads them.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as arrow
import pyarrow.csv as arrow_csv

# Python's reader accepts cells of up to 131,072 characters. The test below allows cells that are as long as two
# windows.
_WINDOW: Final = 50_000
_QUOTE: Final = ord('"')


def plain_columns(
    raw: bytes, width: int, places: Sequence[int], delimiter: str
) -> tuple[int, Mapping[int, arrow.StringArray]] | None:
    """Split complete lines of UTF-8 text into columns. Return None if only Python's csv module can read them.

    Return the number of rows, and the columns at the wanted places as texts without nulls.
    """
    # pyarrow would remove a byte order mark from the first cell. Python's reader keeps it.
    if b"\0" in raw or raw.startswith(codecs.BOM_UTF8) or not _is_decodable(raw):
        return None
    if b"\r" in raw and raw.count(b"\r") != raw.count(b"\r\n"):
        return None
    has_quotes = b'"' in raw
    ends = _ends_outside_quotes(raw, delimiter) if has_quotes else raw.count(b"\n")
    if ends is None or _may_have_long_cell(raw, delimiter.encode()):
        return None
    lines = ends + (not raw.endswith(b"\n"))
    try:
        table = _read(raw, width, places, delimiter, has_quotes=has_quotes)
    except arrow.ArrowInvalid:
        return None
    if table.num_rows != lines:  # a blank line, because only one of the two readers counts blank lines
        return None
    return lines, {place: _whole(table.column(str(place))) for place in places}


def _read(raw: bytes, width: int, places: Sequence[int], delimiter: str, *, has_quotes: bool) -> arrow.Table:
    names = [str(place) for place in range(width)]
    wanted = [str(place) for place in places]
    return arrow_csv.read_csv(
        arrow.BufferReader(raw),
        arrow_csv.ReadOptions(use_threads=False, block_size=len(raw) + 1, column_names=names),
        arrow_csv.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if has_quotes else False,
            double_quote=has_quotes,
            newlines_in_values=has_quotes,
        ),
        arrow_csv.ConvertOptions(
            check_utf8=False,  # it was checked above
            include_columns=wanted or names[:1],
            column_types=dict.fromkeys(wanted, arrow.string()),
            null_values=[],
            strings_can_be_null=False,
        ),
    )


def _whole(column: arrow.ChunkedArray) -> arrow.StringArray:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_decodable(raw: bytes) -> bool:
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _ends_outside_quotes(raw: bytes, delimiter: str) -> int | None:
    """Count line ends outside of quotation marks, or return None if only the csv module can read these marks."""
    characters = np.frombuffer(raw, dtype=np.uint8)
    quotes = np.flatnonzero(characters == _QUOTE)
    if len(quotes) % 2:
        return None
    opening, closing = quotes[0::2], quotes[1::2]
    # A closing quotation mark directly before an opening mark is a doubled mark inside a cell.
    is_doubled = closing[:-1] + 1 == opening[1:]
    first, last = opening[np.append(True, ~is_doubled)], closing[np.append(~is_doubled, True)]
    before, after = characters[first[first > 0] - 1], characters[last[last + 1 < len(raw)] + 1]
    between, end = ord(delimiter), ord("\n")
    if not (np.isin(before, (between, end)).all() and np.isin(after, (between, end, ord("\r"))).all()):
        return None
    if (last - first > 2 * _WINDOW).any():
        return None
    ends = np.flatnonzero(characters == end)
    return int(np.count_nonzero(np.searchsorted(quotes, ends) % 2 == 0))


def _may_have_long_cell(raw: bytes, delimiter: bytes) -> bool:
    """Return whether a cell may be too long: a window of half the limit has no delimiter and no line end."""
    windows = range(0, len(raw) - _WINDOW + 1, _WINDOW)
    return any(raw.find(delimiter, at, at + _WINDOW) < 0 and raw.find(b"\n", at, at + _WINDOW) < 0 for at in windows)
