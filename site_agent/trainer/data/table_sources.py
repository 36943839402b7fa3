"""Reads the rows of a table: a text file, a sheet of a workbook, a Parquet file, or one query (database.py).

Cells become texts, spelt as in a text file, or stay numbers, and the contract decides what they mean. Rows have the
numbers of a spreadsheet, and only some thousands are in memory at a time. The rules:

* no error quotes a cell, the words of a library or a header;
* of a formula, the value that Excel saved is read. Nothing is computed and no macro runs.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import math
import re
from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as arrow
import pyarrow.compute as compute
import pyarrow.csv as csv_reader

from protos.errors import UnavailableError
from site_agent.trainer.data.contract import ExcelFormat, Format, LabelledFormat, ParquetFormat, SqlFormat, TableFormat
from site_agent.trainer.data.mistakes import not_readable, refuse

LONGEST_LINE: Final = 1 << 24
_BLOCK_CELLS: Final = 1 << 20
_PART: Final = 1 << 22  # bytes of a text file that are read at once
_INNER_ENDS: Final = "\x1e\x1f"  # for carriage returns and line ends inside a cell, while a library reads a part
_QUOTE, _LINE_END, _BLANK = ord('"'), ord("\n"), ord(" ")
_END_OF_DOS: Final = "\x1a"
_UNUSUAL: Final = tuple(map(str.encode, ("\0", "\ufeff", _END_OF_DOS, *_INNER_ENDS)))
_HALF_CHARACTER: Final = re.compile("[\ud800-\udfff]")
_WRONG_COLUMN: Final = re.compile(r"In CSV column #(\d+):")  # as pyarrow names the place of a text that is no number
_TEXTS: Final = (arrow.string(), arrow.large_string(), arrow.date32(), arrow.binary(), arrow.large_binary())
_TYPED: Final = re.compile(r"(?:\bcast\s*\([^()]*\)|[\w.\"]+::\w+)(?:\s+as\s+([\w\"]+))?", re.I)
# Where a query compares: the last argument, a list, or a column beside a number in marks.
_COMPARED: Final = re.compile(
    r"""\b(?:arg_)?(?:min|max)(?:_by)?\s*\((?:[^()]*,)?([^(),]*)\)|'[-+]?\d[\d.]*'\s*[<>]=?\s*([\w."]+)"""
    r"""|(?<!\w)([\w."]+)\s*(?:[<>]=?|between)\s*'[-+]?\d[\d.]*'"""
    r"""|\border\s+by\s+([^()]*?)\s*(?:\)|\b(?:limit|rows|range|fetch)\b)""",
    re.I,
)
_PART_NAME: Final = re.compile(r"(?<![a-z])(part|chunk|split)(-\d{5}-|[-_. ]?\d{1,5}(?![-_.]?\d))", re.I)  # and no date
_NO_TEXT: Final = "a value that is not text, a number or a date; export it as one, or declare role: ignore"


@dataclass(frozen=True)
class Unreadable:
    """A cell whose value cannot be read, and why. The words contain no value."""

    words: str


@dataclass(frozen=True)
class Doubt:
    """What a person must look at although every cell was read. `place` is its column, None for the whole table.

    A contract has answered it that declares all `markers` as missing or as codes, or a range that ends at `largest`.
    """

    words: str
    place: int | None = None
    markers: frozenset[str] = frozenset()
    largest: float | None = None


Row: TypeAlias = tuple[int, Sequence[object]]  # its number, and its cells as the source has them
Cells: TypeAlias = Any  # an arrow array of texts without nulls, or of numbers, whose nulls are empty cells


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Block:
    """A number of consecutive rows of a table, without the `ragged` rows that have too many or too few cells.

    Rows have the numbers of a spreadsheet, int64 (rows,). `columns` has the cells of each requested column, by place in
    the table. An unreadable cell is an empty text there, and is listed in `unreadable` with its row and place.
    """

    rows: npt.NDArray[np.int64]
    columns: Mapping[int, Cells]
    ragged: Sequence[int] = ()
    unreadable: Sequence[tuple[int, int, Unreadable]] = ()


@dataclass
class Wanted:
    """How rows are read. In a text file and a workbook, rows before `start` are not.

    Attributes:
        keeps_blank: whether a text file's rows of delimiters alone are returned too.
        one_by_one: whether a text file's rows are never returned in blocks.
        numbers: the places of columns that a text file's reader may return as numbers, in which `words` are missing. A
            place with another text is returned as text from there on, and is removed here.
    """

    start: int = 1
    keeps_blank: bool = False
    one_by_one: bool = False
    words: Sequence[str] = ()
    numbers: set[int] = field(default_factory=set)


@contextmanager
def open_rows(
    path: Path, form: Format, doubts: list[Doubt], wanted: Wanted | None = None
) -> Iterator[Iterator[Row | Block]]:
    """Open a table of any format, and return its rows that are not blank. The first has the names, if there are names.

    Behind it a source may return whole blocks of rows. While they are read, what a person must look at is added to
    `doubts`.

    Raises:
        OperatorError: the source cannot be read, is damaged, or is not of the declared kind.
    """
    try:
        with path.open("rb") as file, closing(_rows(path, file, form, doubts, wanted or Wanted())) as rows:
            yield rows
    except (PermissionError, IsADirectoryError) as cause:
        raise not_readable(path, cause) from cause
    except OSError as cause:  # a disk or a network drive may be there later
        raise UnavailableError(
            what=f"The table {path} cannot be read now: {cause.strerror or type(cause).__name__}.",
            consequence="The table was not used and nothing was sent.",
            remedy="A service tries again by itself. If the file will not be there, correct its path in hospital.yaml.",
        ) from cause


def first_rows(path: Path, form: Format) -> list[tuple[int, list[str]]]:
    """Return the first rows of a table, among which its header is, with their numbers."""
    with open_rows(path, form, [], Wanted(one_by_one=True)) as rows:
        first = [row for row in itertools.islice(rows, 30) if isinstance(row, tuple)]
    return [(row, [cell if isinstance(cell, str) else "" for cell in map(cell_of, cells)]) for row, cells in first]


def first_row(rows: Iterator[Row | Block]) -> tuple[int, list[str]]:
    """Return the first row of a table, as texts. Raise DataError if there is none, or if a name cannot be text."""
    if (first := next(rows, None)) is None:
        refuse(["the file has no rows"])
    assert isinstance(first, tuple)
    cells = list(map(cell_of, first[1]))
    names = [name for name in cells if isinstance(name, str)]
    if len(names) < len(cells):
        refuse([f"row {first[0]}: the name of a column is not text, a number or a date"])
    return first[0], names


def _rows(
    path: Path, file: BinaryIO, form: Format, doubts: list[Doubt], wanted: Wanted
) -> Generator[Row | Block, None, None]:
    from site_agent.trainer.data.file_kinds import check_kind

    if form.kind != "sql":  # which may be the URL of a server
        check_kind(path, file, form.kind)
        beside = [one.name for one in path.parent.glob(f"*{path.suffix}")] if _PART_NAME.search(path.name) else []
        if sum(map(bool, map(_PART_NAME.search, beside))) > 1:
            doubts.append(Doubt("the folder has several parts, as of one table; does this file have all its rows?"))
    match form:
        case TableFormat():
            return _text_rows(file, form, doubts, wanted)
        case ExcelFormat():
            from site_agent.trainer.data.workbook import sheet_rows

            return sheet_rows(path, form, doubts, wanted.start)
        case ParquetFormat():
            return _parquet_rows(file)
        case LabelledFormat():
            from site_agent.trainer.data.labelled_files import labelled_rows

            return labelled_rows(path, form, doubts)
        case SqlFormat():
            from site_agent.trainer.data.database import lacks_its_log, query_records

            if lacks_its_log(path):
                words = "the SQLite file is in WAL mode, and a copy of it alone can lack the newest rows"
                doubts.append(Doubt(f"{words}; was it copied with `sqlite3 FILE \"VACUUM INTO 'COPY'\"`?"))
            if path.suffix.lower() == ".csv" and _compares_texts(form.query):
                words = "the query compares or orders cells of CSV files as texts: 95 is above 140"
                doubts.append(Doubt(f"{words}; write CAST(... AS DOUBLE) for numbers, and AS DATE for days"))
            return query_records(path, form)
        case _:
            assert_never(form)


def _compares_texts(query: str) -> bool:
    """Return whether a query compares columns that it does not convert, as `min(x)` or `order by x limit 1` do."""
    names = set(_TYPED.findall(query))
    lists = ",".join(map("".join, _COMPARED.findall(_TYPED.sub("0", query)))).split(",")
    compared = {one.split()[0].rpartition(".")[2] for one in lists if one.strip()}
    return any(name.strip('"').isidentifier() for name in compared - names)


def blocks_of(rows: Iterator[Row | Block], width: int, places: Sequence[int]) -> Iterator[Block]:
    """Group rows into blocks, with the columns at these places as texts or numbers."""
    most = max(1, _BLOCK_CELLS // max(1, width))
    some: list[Row] = []
    for one in rows:
        if isinstance(one, tuple):
            some.append(one)
        if some and (len(some) == most or isinstance(one, Block)):
            yield _block(some, width, places)
            some = []
        if isinstance(one, Block):
            yield _converted(one, width, places)
    if some:
        yield _block(some, width, places)


def _converted(block: Block, width: int, places: Sequence[int]) -> Block:
    if len(block.columns) != width:  # a text file without names can have rows of another width than its first
        nothing = arrow.array([], arrow.string())  # not made before it is needed, because pyarrow then loads pandas
        return Block(rows=block.rows[:0], columns=dict.fromkeys(places, nothing), ragged=block.rows.tolist())
    found = {place: _converted_column(block.columns[place]) for place in places}
    flaws = [(int(block.rows[row]), place, flaw) for place, (_, some) in found.items() for row, flaw in some]
    flaws += [one for one in block.unreadable if one[1] in found]
    return Block(rows=block.rows, columns={place: cells for place, (cells, _) in found.items()}, unreadable=flaws)


def _converted_column(column: Cells) -> tuple[Cells, list[tuple[int, Unreadable]]]:
    if arrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if arrow.types.is_float16(column.type) or arrow.types.is_float32(column.type):
        column = arrow.array(shortest(column.to_numpy(zero_copy_only=False)), mask=np.asarray(column.is_null()))
    kind = column.type
    if arrow.types.is_float64(kind) or arrow.types.is_integer(kind):
        return column, []
    try:
        if kind in _TEXTS:  # also bytes, as Spark and Impala write texts
            return compute.fill_null(column.cast(arrow.string()), ""), []
    except arrow.ArrowInvalid:
        pass
    try:
        return _column(column.to_pylist())
    except (arrow.ArrowException, OverflowError, ValueError):  # such as a time after the year 9999
        return _column([_value(cell) for cell in column])


def shortest(values: npt.NDArray[np.floating[Any]]) -> npt.NDArray[np.float64]:
    """Return the numbers with the fewest digits that these are, so that 99.9 of 32 bits equals the contract's 99.9."""
    return values.astype(str).astype(np.float64)


def _value(cell: arrow.Scalar) -> object:
    try:
        return cell.as_py()
    except (arrow.ArrowException, OverflowError, ValueError):
        return Unreadable("a time beyond the years 1 to 9999, or in an unknown zone")


def _block(some: Sequence[Row], width: int, places: Sequence[int]) -> Block:
    fitting = [row for row in some if len(row[1]) == width]
    cells = list(zip(*(row[1] for row in fitting), strict=True)) or [()] * width
    columns, unreadable = dict[int, Cells](), list[tuple[int, int, Unreadable]]()
    for place in places:
        columns[place], flaws = _column(cells[place])
        unreadable += [(fitting[row][0], place, flaw) for row, flaw in flaws]
    numbers = np.array([row for row, _ in fitting], dtype=np.int64)
    return Block(
        rows=numbers, columns=columns, ragged=[row for row, cells in some if len(cells) != width], unreadable=unreadable
    )


def _column(values: Sequence[object]) -> tuple[Cells, list[tuple[int, Unreadable]]]:
    """Return the cells of a column, and those that cannot be read with their places."""
    try:
        found = arrow.array(values)
    except (arrow.ArrowException, UnicodeError, OverflowError, ValueError, TypeError):
        found = None  # several types, or half a character
    if found is not None and (arrow.types.is_float64(found.type) or arrow.types.is_int64(found.type)):
        return found, []
    if found is not None and arrow.types.is_string(found.type):
        return compute.fill_null(found, ""), []
    if found is not None and arrow.types.is_decimal(found.type) and found.type.precision <= 15 and found.type.scale > 0:
        return arrow.array(found.to_numpy(zero_copy_only=False).astype(np.float64), from_pandas=True), []  # exact
    read = [cell_of(value) for value in values]
    flaws = [(place, cell) for place, cell in enumerate(read) if isinstance(cell, Unreadable)]
    return arrow.array([cell if isinstance(cell, str) else "" for cell in read], arrow.string()), flaws


def texts_of(cells: Cells) -> list[str]:
    """Return the cells of a column as a text file would contain them."""
    if arrow.types.is_string(cells.type):
        return cells.to_pylist()  # type: ignore[no-any-return]
    return [text_of(value) or "" for value in cells.to_pylist()]


def cell_of(value: object) -> str | Unreadable:
    """Return a cell's value as `text_of`, or why it has none."""
    if isinstance(value, Unreadable):
        return value
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


def _text_rows(
    file: BinaryIO, form: TableFormat, doubts: list[Doubt], wanted: Wanted
) -> Generator[Row | Block, None, None]:
    is_wide = form.encoding == "utf-16"
    marks, _, encoding = file.read(2), file.seek(0), str(form.encoding)
    if is_wide and marks not in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        encoding = "utf-16-le" if marks[:1] != b"\0" else "utf-16-be"

    def decoded(content: BinaryIO) -> io.TextIOWrapper:
        # An undecodable byte becomes half a character, so that its line can be reported without its bytes.
        return io.TextIOWrapper(content, encoding, errors="strict" if is_wide else "surrogateescape", newline="")

    text, read = decoded(file), _Text(form, wanted)
    if by_row := is_wide or wanted.one_by_one:
        yield from read.rows(text)

    def following() -> tuple[bytes, Block | None]:
        # The first part is the first line, whose cells every other part must have.
        part = file.read(_PART if read.width else 0) + file.readline(LONGEST_LINE + 1)
        # A quotation mark is open at the end: a cell goes on behind this part, or a mark is missing.
        for _ in range(1000 if b'"' in part else 0):
            if part.count(b'"') % 2 == 0 or not (line := file.readline(LONGEST_LINE + 1)):
                break
            part += line
        return part, read.block(part) if part else None

    with ThreadPoolExecutor(1) as worker:  # it reads the next part while the caller checks this one
        part, block = (b"", None) if by_row else following()
        while part:
            if block is None:
                # After a mark that is alone in its line, the end of a part can be inside a cell.
                is_open = b'"' in part and any(line.count(b'"') % 2 for line in part.split(b"\n"))
                yield from read.rows(decoded(io.BytesIO(part)), *([text] if is_open else []))
            coming = worker.submit(following)
            if block is not None:
                yield block
            part, block = coming.result()
    if read.swallowed:
        words = f"{read.swallowed} cells in quotation marks have a line that looks like a row of the table"
        doubts.append(Doubt(f"{words}; is a quotation mark missing, so that rows are read as text?"))


class _Text:
    """Reads the parts of a text file one after another: at once by a library, or row by row where rows are unusual."""

    def __init__(self, form: TableFormat, wanted: Wanted) -> None:
        self._form, self._wanted, self._delimiter = form, wanted, form.delimiter
        self._row, self._line = 0, 0
        self._first_blank = wanted.start + form.header if wanted.keeps_blank else math.inf
        self.width, self.swallowed = 0, 0

    def block(self, part: bytes) -> Block | None:
        """Return a part whose lines are rows of the usual width. Return None if one is unusual."""
        ends, is_quoted = part.count(b"\n"), b'"' in part
        is_plain = part.isascii() and np.count_nonzero(np.frombuffer(part, np.uint8) < _BLANK) == ends
        if not is_plain:  # then line ends and marks can be of another kind
            is_plain = part.count(b"\r") == part.count(b"\r\n") and not any(mark in part for mark in _UNUSUAL)
        if not self.width or not is_plain:
            return None
        lines = ends + (not part.endswith(b"\n"))
        try:
            text = part if self._form.encoding == "utf-8" else part.decode(self._form.encoding).encode()
            text, broken, swallowed = self._joined(text) if is_quoted else (text, set[int](), 0)
        except (UnicodeError, csv.Error):
            return None
        table = self._table(text, is_quoted, self._wanted.numbers & set(range(self.width)))
        if table is None or len(table) != (text.count(b"\n") + (not text.endswith(b"\n")) if is_quoted else lines):
            return None
        blank = rf'\n[{self._delimiter}" \t]*\r?(\n|\Z)'.encode()
        first = compute.utf8_trim_whitespace(table.column(0).cast(arrow.string()).fill_null(""))
        if compute.any(compute.equal(first, "")).as_py() and re.search(blank, b"\n" + part.removesuffix(b"\n")):
            return None
        rows = np.arange(self._row + 1, self._row + 1 + len(table), dtype=np.int64)
        self._row, self._line = self._row + len(table), self._line + lines
        self.swallowed += swallowed
        columns = {place: column.chunk(0) for place, column in enumerate(table.columns)}
        for place in broken:
            for inner, end in zip(_INNER_ENDS, "\r\n", strict=True):
                columns[place] = compute.replace_substring(columns[place], inner, end)
        return Block(rows=rows, columns=columns)

    def _table(self, part: bytes, is_quoted: bool, numbers: Set[int]) -> arrow.Table | None:
        """Return the cells of lines, as numbers where that loses nothing. Return None if a line has another width."""
        kinds = {str(place): arrow.float64() if place in numbers else arrow.string() for place in range(self.width)}
        try:
            mark, words, decimal = '"' if is_quoted else False, ["", *self._wanted.words], self._form.decimal
            table = csv_reader.read_csv(
                arrow.BufferReader(part),
                csv_reader.ReadOptions(column_names=list(kinds), block_size=len(part) + 1),
                csv_reader.ParseOptions(delimiter=self._delimiter, quote_char=mark, ignore_empty_lines=False),
                csv_reader.ConvertOptions(
                    column_types=kinds, null_values=words, strings_can_be_null=False, decimal_point=decimal
                ),
            )
        except arrow.ArrowException as error:
            found, table = _WRONG_COLUMN.match(str(error)), None
            texts = {int(found[1])} & numbers if found else set[int]()
        else:  # the library reads nan and inf as numbers, and 1e400 as inf
            sums = {place: compute.sum(table.column(place)).as_py() for place in numbers}
            texts = {place for place, total in sums.items() if not math.isfinite(total or 0.0)}
        self._wanted.numbers -= texts
        return self._table(part, is_quoted, set()) if texts else table

    def _joined(self, part: bytes) -> tuple[bytes, set[int], int]:
        """Return a part with a line for each row, the places of cells with line ends, and how many hold rows."""
        rows, places, swallowed = list[str](), set[int](), 0
        content = np.frombuffer(part + b"\n", np.uint8)
        marks = np.searchsorted(np.flatnonzero(content == _QUOTE), np.flatnonzero(content == _LINE_END))
        lines = iter(part.decode().split("\n") if (np.diff(marks, prepend=0) % 2).any() else ())
        for line in lines:
            rows.append(line)
            if line.count('"') % 2:
                for other in lines:
                    rows[-1] += "\n" + other
                    if other.count('"') % 2:
                        break
                first, *others = csv.reader(io.StringIO(rows[-1], newline=""), delimiter=self._delimiter, strict=True)
                if others:
                    raise csv.Error
                places |= {place for place, cell in enumerate(first) if "\n" in cell}
                swallowed += sum(self._holds_a_row(place, cell) for place, cell in enumerate(first))
                inner, end = rows[-1][:-1], rows[-1][-1]
                rows[-1] = inner.translate(str.maketrans("\r\n", _INNER_ENDS)) + end
        part = "\n".join(rows).encode() if rows else part
        content = np.frombuffer(b"\n\n" + part + b"\n", np.uint8)
        quotes, starts = np.flatnonzero(content == _QUOTE), (ord(self._delimiter), _LINE_END)
        earlier, before, after = (content[quotes + step] for step in (-2, -1, 1))
        is_inner = ~np.isin(before, (*starts, _QUOTE)) | ((before == _QUOTE) & np.isin(earlier, starts))
        if (is_inner & ~np.isin(after, (*starts, _QUOTE, ord("\r")))).any():
            raise csv.Error
        return part, places, swallowed

    def rows(self, *texts: io.TextIOBase) -> Iterator[Row]:
        """Yield the rows of these texts one by one. Raise DataError if a line is damaged."""
        reader = csv.reader(self._lines(texts), delimiter=self._delimiter, strict=True)
        line = 0
        try:
            for cells in reader:
                self._row += 1
                if self._row < self._wanted.start:
                    continue
                self.width = self.width or len(cells)
                is_kept = self._row >= self._first_blank and len(cells) >= self.width > 1
                if is_kept or any(cell.strip() for cell in cells):  # some write a delimiter behind a row's last cell
                    yield self._row, cells if any(cells[self.width :]) else cells[: self.width]
                if reader.line_num > line + 1:
                    self.swallowed += sum(self._holds_a_row(place, cell) for place, cell in enumerate(cells))
                line = reader.line_num
            return
        except csv.Error:
            pass
        told = "a quotation mark is not closed, or a cell is far too long; a mark inside a cell is written twice"
        refuse([f"row {self._row + 1}: {told}"])

    def _holds_a_row(self, place: int, cell: str) -> bool:
        first, *others = (line.count(self._delimiter) for line in cell.splitlines() or [""])
        most = self.width - 1
        return most > 0 and bool(others) and (most in others or (first == most - place and others[-1] == place))

    def _lines(self, texts: Sequence[io.TextIOBase]) -> Iterator[str]:
        for text in texts:
            while True:
                self._line += 1
                try:
                    line: str | None = text.readline(LONGEST_LINE + 1)
                except UnicodeError:
                    line = None
                if line is None or (not line.isascii() and _HALF_CHARACTER.search(line)):
                    refuse([f"line {self._line}: it is not text in the declared encoding, {self._form.encoding}"])
                if not line:
                    self._line -= 1
                    break
                # Otherwise a damaged file without line ends would be read into memory completely.
                if len(line) > LONGEST_LINE:
                    refuse([f"line {self._line}: it has more than {LONGEST_LINE} characters; a line end is missing"])
                if "\0" in line:
                    refuse([f"line {self._line}: it has a NUL byte: the file is damaged, binary or in UTF-16"])
                # A file that was joined from several has the mark of a beginning in its middle.
                yield line.removeprefix("\ufeff").removesuffix(_END_OF_DOS)


def _parquet_rows(file: BinaryIO) -> Generator[Row | Block, None, None]:
    import pyarrow.parquet as parquet

    try:
        table = parquet.ParquetFile(file, page_checksum_verification=True)
        names = list(table.schema_arrow.names)
        yield 1, names
        row = 2
        for batch in table.iter_batches(batch_size=max(1, _BLOCK_CELLS // max(1, len(names))), use_threads=False):
            batch.validate(full=True)  # a file can declare bytes as text although they are not text
            rows = np.arange(row, row + batch.num_rows, dtype=np.int64)
            yield Block(rows=rows, columns=dict(enumerate(batch.columns)))
            row += batch.num_rows
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as cause:  # such as a time before the year 1
        is_encrypted = "crypt" in str(cause)
        if getattr(cause, "errno", None) is not None:  # the disk's error, and not the library's about the content
            raise
    else:
        return
    told = "has encrypted columns; write it without encryption" if is_encrypted else "is not Parquet, or it is damaged"
    refuse([f"the file {told}"])
