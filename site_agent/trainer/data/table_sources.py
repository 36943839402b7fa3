"""Reads the rows of a table: a text file, a sheet of a workbook, a Parquet file, or one query (database.py).

All cells become texts, spelt as in a text file, and the contract decides what they mean. Rows have the numbers of a
spreadsheet, and only some thousands are in memory at a time. The rules:

* no error quotes a cell, the words of a library or a header;
* of a formula, the value that Excel saved is read. Nothing is computed and no macro runs.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO, Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from protos.errors import UnavailableError
from site_agent.trainer.data.contract import ExcelFormat, Format, ParquetFormat, SqlFormat, TableFormat
from site_agent.trainer.data.mistakes import refuse, unusable

LONGEST_LINE: Final = 1 << 24
_BLOCK_CELLS: Final = 1 << 18
_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")
_NO_TEXT: Final = "a value that is not text, a number or a date"


@dataclass(frozen=True)
class Unreadable:
    """A cell whose value cannot be read, and why. The words contain no value."""

    words: str


@dataclass(frozen=True)
class Doubt:
    """What a person must look at although every cell was read. `place` is its column, None for the whole table."""

    words: str
    place: int | None = None


Row: TypeAlias = tuple[int, Sequence[str | Unreadable]]  # its number, and its cells


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Block:
    """A number of consecutive rows of a table, without the `ragged` rows that have too many or too few cells.

    Rows have the numbers of a spreadsheet, int64 (rows,). `columns` has the cells of each requested column, by place in
    the table. An unreadable cell is an empty text there, and is listed in `unreadable` with its row and place.
    """

    rows: npt.NDArray[np.int64]
    columns: Mapping[int, list[str]]
    ragged: Sequence[int] = ()
    unreadable: Sequence[tuple[int, int, Unreadable]] = ()


@contextmanager
def open_rows(path: Path, form: Format, doubts: list[Doubt]) -> Iterator[Iterator[Row]]:
    """Open a table of any format, and return its rows that are not blank. The first has the names, if there are names.

    While the rows are read, what a person must look at is added to `doubts`.

    Raises:
        OperatorError: the source cannot be read, is damaged, or is not of the declared kind.
    """
    try:
        with path.open("rb") as file, closing(_rows(path, file, form, doubts)) as rows:
            yield rows
    except (PermissionError, IsADirectoryError) as cause:
        raise unusable(
            what=f"The table {path} cannot be read: {cause.strerror}.",
            remedy="Give the path of a file that the user account of the trainer may read.",
        ) from cause
    except OSError as cause:  # a disk or a network drive may be there later
        raise UnavailableError(
            what=f"The table {path} cannot be read now: {cause.strerror or type(cause).__name__}.",
            consequence="The table was not used and nothing was sent.",
            remedy="A service tries again by itself. If the file will not be there, correct its path in hospital.yaml.",
        ) from cause


def first_row(rows: Iterator[Row]) -> tuple[int, list[str]]:
    """Return the first row of a table, as texts. Raise DataError if there is none, or if a name cannot be text."""
    first = next(rows, None)
    if first is None:
        refuse(["the file has no rows"])
    names = [name for name in first[1] if isinstance(name, str)]
    if len(names) < len(first[1]):
        refuse([f"row {first[0]}: the name of a column is not text, a number or a date"])
    return first[0], names


def _rows(path: Path, file: BinaryIO, form: Format, doubts: list[Doubt]) -> Generator[Row, None, None]:
    match form:
        case TableFormat():
            return _text_rows(file, form, doubts)
        case ExcelFormat():
            from site_agent.trainer.data.workbook import sheet_rows

            return sheet_rows(path, form, doubts)
        case ParquetFormat():
            return _parquet_rows(file)
        case SqlFormat():
            from site_agent.trainer.data.database import lacks_its_log, query_records

            if lacks_its_log(path):
                words = "the SQLite file is in WAL mode, and a copy of it alone can lack the newest rows"
                doubts.append(Doubt(f"{words}; was it copied with `sqlite3 FILE \"VACUUM INTO 'COPY'\"`?"))
            return query_records(path, form)
        case _:
            assert_never(form)


def blocks_of(rows: Iterator[Row], width: int, places: Sequence[int]) -> Iterator[Block]:
    """Group rows into blocks, with the columns at these places."""
    while some := list(itertools.islice(rows, max(1, _BLOCK_CELLS // max(1, width)))):
        fitting = [row for row in some if len(row[1]) == width]
        unreadable = [
            (row, place, cell)
            for place in places
            for row, cells in fitting
            if isinstance(cell := cells[place], Unreadable)
        ]
        yield Block(
            rows=np.array([row for row, _ in fitting], dtype=np.int64),
            columns={place: [_plain(cells[place]) for _, cells in fitting] for place in places},
            ragged=[row for row, cells in some if len(cells) != width],
            unreadable=unreadable,
        )


def _plain(cell: str | Unreadable) -> str:
    return cell if isinstance(cell, str) else ""


def cell_of(value: object) -> str | Unreadable:
    """Return a cell's value as `text_of`, or why it has none."""
    text = text_of(value)
    return Unreadable(_NO_TEXT) if text is None else text


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
            return value if value.isascii() or not _HALF_CHARACTER.search(value) else None
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


def _text_rows(file: BinaryIO, form: TableFormat, doubts: list[Doubt]) -> Generator[Row, None, None]:
    # An undecodable byte becomes half a character, so that its line can be reported without its bytes.
    is_wide = form.encoding == "utf-16"
    text = io.TextIOWrapper(
        file,
        "utf-8-sig" if form.encoding == "utf-8" else form.encoding,
        errors="strict" if is_wide else "surrogateescape",
        newline="",
    )
    reader = csv.reader(_lines(text), delimiter=form.delimiter, strict=True)
    row = width = line = swallowed = 0
    try:
        for row, cells in enumerate(reader, start=1):
            width = width or len(cells)
            if cells:  # some programs write a delimiter behind the last cell of a row
                yield row, cells if any(cells[width:]) else cells[:width]
            if reader.line_num > line + 1:
                swallowed += sum(_holds_a_row(cell, width, form.delimiter) for cell in cells)
            line = reader.line_num
    except csv.Error:
        pass
    else:
        if swallowed:
            words = f"{swallowed} cells in quotation marks have a line that looks like a row of the table"
            doubts.append(Doubt(f"{words}; is a quotation mark missing, so that rows are read as text?"))
        return
    refuse([f"row {row + 1}: a quotation mark is not closed, or a cell is far too long"])


def _holds_a_row(cell: str, width: int, delimiter: str) -> bool:
    """Return whether a line after the first one in a cell has as many delimiters as a row."""
    return any(line.count(delimiter) == width - 1 > 0 for line in cell.splitlines()[1:])


def _lines(text: io.TextIOWrapper) -> Iterator[str]:
    for number in itertools.count(1):
        try:
            line: str | None = text.readline(LONGEST_LINE + 1)
        except UnicodeError:
            line = None
        if line is None or (not line.isascii() and _HALF_CHARACTER.search(line)):
            refuse([f"line {number}: it is not text in the declared encoding"])
        if not line:
            return
        # Otherwise a damaged file without line ends would be read into memory completely.
        if len(line) > LONGEST_LINE:
            refuse([f"line {number}: it has more than {LONGEST_LINE} characters; a line end is missing"])
        if "\0" in line:
            refuse([f"line {number}: it has a NUL byte: the file is damaged, binary or in UTF-16"])
        # A file that was joined from several has the mark of a beginning in its middle.
        yield line.removeprefix("\ufeff")


def _parquet_rows(file: BinaryIO) -> Generator[Row, None, None]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file, page_checksum_verification=True)
        names = list(table.schema_arrow.names)
        yield 1, names
        row = 2
        batch_rows = max(1, _BLOCK_CELLS // max(1, len(names)))
        for batch in table.iter_batches(batch_size=batch_rows, use_threads=False):
            batch.validate(full=True)  # a file can declare bytes as text although they are not text
            columns = [[cell_of(value) for value in column.to_pylist()] for column in batch.columns]
            yield from enumerate(zip(*columns, strict=True), start=row)
            row += batch.num_rows
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as cause:  # such as a time before the year 1
        if getattr(cause, "errno", None) is not None:  # the disk's error, and not the library's about the content
            raise
    else:
        return
    refuse(["the file is not a Parquet file, or it is damaged"])
