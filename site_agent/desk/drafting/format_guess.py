"""Guesses the format of a table: its kind, and for a text file encoding, delimiter, decimal comma and header row."""

from __future__ import annotations

import csv
import re
from collections import Counter
from math import inf
from pathlib import Path
from typing import Final

from site_agent.trainer.data.cell_rules import GROUPED, MARKED
from site_agent.trainer.data.contract import ExcelFormat, Format, LabelledFormat, ParquetFormat, SqlFormat, TableFormat
from site_agent.trainer.data.file_kinds import another_kind, kind_of
from site_agent.trainer.data.mistakes import not_readable, refuse, unusable

_LOOKED_AT: Final = 1 << 18
_DELIMITERS: Final = ("\t", ";", "|", ",")
_NUMBER: Final = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
_FEW: Final = 2  # columns
_FEWEST_ROWS: Final = 10
_DATE: Final = re.compile(r"\d{4}-\d\d?-\d\d?|\d\d?[./-]\d\d?[./-]\d{2,4}")


def guess_format(path: Path, *, sheet: str | None, query: str | None) -> Format:
    """Guess a table's format from its first 256 KiB. Raise DataError if it cannot be read, or is such as an archive."""
    try:
        if query is not None:
            return SqlFormat(kind="sql", query=query)
        with path.open("rb") as file:
            start = file.read(_LOOKED_AT)
    except OSError as cause:
        raise not_readable(path, cause) from cause
    except ValueError as cause:
        remedy = "Write one query that begins with SELECT or WITH, without a semicolon inside."
        raise unusable(what="The file of --query has something else than one query.", remedy=remedy) from cause
    kind = kind_of(start)
    if kind is not None and kind.form == "excel":
        return ExcelFormat(kind="excel", sheet=sheet)
    if kind is not None and kind.form == "parquet":
        return ParquetFormat(kind="parquet")
    if kind is not None and kind.form == "sas-spss-stata":
        return LabelledFormat(kind="sas-spss-stata")
    if kind is not None:
        raise another_kind(path, kind)
    if b"\0" in start and _encoding(start) != "utf-16":
        raise unusable(
            what=f"The table {path} is not a text file of a known kind: it has zero bytes.",
            remedy="Export the table as CSV, with codes and not with labels, and with a blank for each zero byte.",
        )
    return _guess_text(start)


def _guess_text(start: bytes) -> TableFormat:
    encoding = _encoding(start)
    lines = _lines(start, encoding)
    delimiter = max(_DELIMITERS, key=lambda mark: _agreement(lines, mark))
    if len(lines) > 1 and not _agreement(lines, delimiter)[0] > 0.5:
        refuse(["no comma, semicolon, tab or | divides most lines into equally many cells; export it as CSV with one"])
    try:
        rows = list(csv.reader(lines[:200], delimiter=delimiter))
    except csv.Error:
        refuse(["a cell near the beginning has more than 131,072 characters: remove the column, or a quotation mark"])
    first, below, is_named = len(rows[0]) if rows else 0, {len(row) for row in rows[1:]}, has_header(rows)
    if is_named and max(below, default=first) < first:
        refuse(["the first row has more cells than any below; quote a name with a comma inside, and end it with none"])
    if is_named and below == {first + 1} and any(row[-1].strip() for row in rows[1:]):
        told = "each row has one cell more than the first row has names; export without the names of rows, with"
        refuse([f"{told} row.names = FALSE in R or index=False in pandas, or name the first column too"])
    return TableFormat(
        header=is_named,
        delimiter=delimiter,  # type: ignore[arg-type]  # one of the four
        encoding=encoding,  # type: ignore[arg-type]  # one of the encodings that _encoding returns
        decimal="," if _has_commas(rows) else ".",
    )


def _lines(start: bytes, encoding: str) -> list[str]:
    is_big = encoding == "utf-16" and not start[0]  # without a mark the library reads little ends
    text = start.decode("utf-16-be" if is_big else encoding, errors="replace").removeprefix("\ufeff")
    lines = [line for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n") if line.strip()]
    return lines[:-1] if len(start) == _LOOKED_AT and len(lines) > 1 else lines  # the last one may be cut


def _encoding(start: bytes) -> str:
    is_wide = len(start) > 1 and not (any(start[1:64:2]) and any(start[:64:2]))
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) or is_wide:
        return "utf-16"
    try:
        # Cut off after the last line end, because the last character may be incomplete.
        start[: start.rfind(b"\n") + 1 or None].decode("utf-8")
    except UnicodeDecodeError:
        text = start.decode("utf-8", "replace")  # of a text that is UTF-8 but for a few lines, reading names the first
        return "utf-8" if sum(one > "\x7f" for one in text) > 2 * text.count("\ufffd") else "windows-1252"
    return "utf-8"


def _agreement(lines: list[str], delimiter: str) -> tuple[float, int]:
    """Return which share of rows has the most common number of cells, and this number. If it is 1, return two zeros."""
    try:
        widths = Counter(len(row) for row in csv.reader(lines[:200], delimiter=delimiter))
    except csv.Error:
        return (0, 0)
    width, count = max(widths.items(), key=lambda pair: (pair[1], pair[0]), default=(0, 0))
    return (count / widths.total(), width) if width > 1 else (0, 0)


def _like(cell: str, column: list[str]) -> int:
    """Return how many cells have letters, digits and marks at the same places."""
    shape = re.sub(r"[^\W\d]", "a", re.sub(r"\d", "9", cell))
    alike = re.compile(re.escape(shape).replace("9", r"\d").replace("a", r"[^\W\d]"))
    return sum(map(bool, map(alike.fullmatch, column)))


def has_header(rows: list[list[str]]) -> bool:
    """Return whether the first row is a header: all its cells are words, and none is like a value below it.

    The first cell can be empty, because pandas and R write row numbers there. The last cells can be empty, because some
    programs end each row with a separator. Numbers and days can be names if words beside them prove it.
    """
    if not rows:
        return True
    first = [cell.strip() for cell in rows[0]]
    while first and not first[-1]:
        first.pop()
    pairs = [(cell, [row[place].strip() for row in rows[1:] if place < len(row)]) for place, cell in enumerate(first)]
    pairs = pairs[1:] if first and not first[0] else pairs
    others = [pair for pair in pairs if len(rows) <= _FEWEST_ROWS or not _names_a_column(*pair)]
    numbers = [int(cell[:18]) for cell, _ in pairs if cell.isdecimal()] if not others else []
    is_counted = len(numbers) == len(pairs) > _FEW and numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    counted, index = [*map(str, range(len(rows)))], ["".join(row[:1]).strip() for row in rows[1:]]
    is_index, is_sure = len(pairs) < len(first) and index in (counted[1:], counted[:-1]), len(others) == len(pairs)
    unsure = others if is_index or not is_sure else []
    words = {one for one, below in unsure if not _NUMBER.fullmatch(one) and _are_numbers(below)}
    is_proved, is_index = is_sure or is_counted or len(words) >= _FEW, is_index and len(words) >= _FEW  # no patient's
    are_names = (cell and not _is_value(cell, [] if is_index and len(cell) == 1 else below) for cell, below in others)
    return bool(pairs) and is_proved and all(are_names)


def may_be_patient(pairs: list[tuple[str, list[str]]]) -> bool:
    """Return whether names above their columns can be a patient: one is like a value, or none is unlike them all."""
    others = [pair for pair in pairs if len(pair[1]) < _FEWEST_ROWS or not _names_a_column(*pair)]
    unsure = [pair for pair in others if not _is_unlike(*pair)]
    return len(unsure) == len(others) or any(_is_value(*pair) for pair in unsure)


def _is_unlike(cell: str, below: list[str]) -> bool:
    """Return whether a cell is a word unlike all values, which are numbers, or codes that come again: t1 above T1."""
    is_again = _are_numbers(below) or 2 * len({*below}) <= len(below)
    is_word = is_again and not (_NUMBER.fullmatch(cell) or _DATE.match(cell))
    return is_word and re.sub(r"\d+", "9", cell) not in (re.sub(r"\d+", "9", one) for one in below)


def _are_numbers(column: list[str]) -> bool:
    return sum(map(bool, map(_NUMBER.fullmatch, column))) > 0.9 * sum(map(bool, column))


def _names_a_column(cell: str, below: list[str]) -> bool:
    """Return whether a number or day is a column's name: no value has as many digits, or is around it, or is a day."""
    if not cell.isdecimal():
        return bool(_DATE.fullmatch(cell)) and _are_numbers(below)
    values = [float(one.replace(",", ".")) for one in below if _NUMBER.fullmatch(one)]
    return not min(values, default=inf) <= float(cell) <= max(values, default=-inf) and not _like(cell, below)


def _is_value(cell: str, column: list[str]) -> bool:
    """Return whether a cell of the first row is one of its column's values, so that no patient is taken for names."""
    if _NUMBER.fullmatch(cell) or _DATE.match(cell) or cell == "?":
        return True
    return column.count(cell) > 1 or (any(map(str.isdecimal, cell)) and _like(cell, column) > len(column) / 2)


def _has_commas(rows: list[list[str]]) -> bool:
    """Return whether more numbers prove a decimal comma than a decimal point, without those of the first row."""
    cells = [cell.strip() for row in rows[1:] for cell in row]
    marks = Counter(found[1] for cell in cells if (found := MARKED.fullmatch(cell)) and not GROUPED.fullmatch(cell))
    return marks[","] > marks["."]
