"""The reading of tables as it was before columns were read at once: every cell separately.

The fast way is compared with it.

Rows come from Python's own csv reader over the whole file, and only a cell's own text decides.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path

import numpy as np

from protos.errors import DataError
from site_agent.trainer.data.cell_rules import (
    IN_THE_FUTURE,
    MISSING,
    NOT_A_DATE,
    NOT_A_NUMBER,
    TOO_LARGE,
    UNDECLARED,
    canonical_code,
)
from site_agent.trainer.data.columns import CategoricalFeature, DateFeature, DayColumn, NumericFeature, patterns_of
from site_agent.trainer.data.contract import BinaryTarget, Contract, TableFormat

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
TIME = re.compile(r"[ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?", re.ASCII)
Judge = Callable[[str], "float | str"]


@dataclass
class Read:
    """By name the values, and by kind of mistake the rows, as text; `refused` where the file is damaged."""

    values: dict[str, list[float]] = field(default_factory=dict)
    mistakes: dict[str, list[int]] = field(default_factory=dict)
    patients: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    refused: str = ""


def _wide(raw: bytes) -> str:
    """UTF-16 with a surrogate where it is damaged: it has no mark of its order of bytes, or half a character."""
    if raw and not raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "\udc80"
    try:
        return raw.decode("utf-16", "surrogatepass")
    except UnicodeDecodeError as cut:
        return raw[: cut.start].decode("utf-16", "surrogatepass") + "\udc80"


def rows_of(path: Path, form: TableFormat) -> list[tuple[int, list[str]]]:
    """The rows that are not blank.

    Raises:
        DataError: with the words of the program, where a line is damaged.
    """
    encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
    raw = path.read_bytes()
    text = _wide(raw) if encoding == "utf-16" else raw.decode(encoding, "surrogateescape")
    found, row = [], 0

    def lines() -> object:
        for number, line in enumerate(io.StringIO(text, newline=""), start=1):
            if "\0" in line:
                raise _told(f"line {number}: it has a NUL byte: the file is damaged, binary or in UTF-16")
            if re.search("[\ud800-\udfff]", line):
                raise _told(f"line {number}: it is not text in the declared encoding")
            yield line

    try:
        for row, cells in enumerate(csv.reader(lines(), delimiter=form.delimiter, strict=True), start=1):  # type: ignore[arg-type]  # lines of text
            if cells:
                found.append((row, cells))
    except csv.Error:
        raise _told(f"row {row + 1}: a quotation mark is not closed, or a cell is far too long") from None
    return found


def read(path: Path, contract: Contract, today: date) -> Read:
    """A table with a header that names the contract's columns."""
    assert isinstance(contract.format, TableFormat)
    try:
        rows = rows_of(path, contract.format)
    except DataError as error:
        return Read(refused=error.what)
    done, (_, header) = Read(), rows[0]
    places = {name.strip(): place for place, name in enumerate(header)}
    if places.keys() != {column.name for column in contract.columns} or len(header) > len(places):
        return Read(refused="another header")
    for row, cells in rows[1:]:
        if len(cells) != len(header):
            words = f"not the expected {len(header)} columns; is the delimiter the declared one?"
            done.mistakes.setdefault(words, []).append(row)
            continue
        done.rows.append(row)
        days = {column.name: _date(column, contract, today)(cells[places[column.name]])
                for column in contract.dates.values()}  # fmt: skip
        for column in contract.columns:
            if column.role == "patient":
                done.patients.append(cells[places[column.name]].strip())
            elif isinstance(column, DateFeature):
                _note(done, column.name, row, _interval(column, days))
            elif isinstance(column, DayColumn):
                if isinstance(days[column.name], str):
                    _note(done, column.name, row, days[column.name])
            elif column.role != "ignore":
                _note(done, column.name, row, _judge(column, contract)(cells[places[column.name]]))
    return done


def _note(done: Read, name: str, row: int, judged: float | str) -> None:
    done.values.setdefault(name, []).append(math.nan if isinstance(judged, str) else judged)
    if isinstance(judged, str):
        done.mistakes.setdefault(f"column {name}: {judged}", []).append(row)


def _judge(column: object, contract: Contract) -> Judge:
    decimal, markers = contract.format.decimal, {"", *contract.missing_markers}
    match column:
        case NumericFeature():
            return _number(column, decimal, {*markers, *column.missing_markers})
        case CategoricalFeature():
            absent: float | str = MISSING.words if column.missing == "refuse" else -1.0
            known: dict[str, float | str] = {code: float(place) for place, code in enumerate(column.codes)}
            known |= dict.fromkeys({*markers, *column.missing_markers}, absent)
            return lambda cell: known.get(canonical_code(cell, decimal), UNDECLARED.words)
        case BinaryTarget():
            codes: dict[str, float | str] = dict.fromkeys(markers, MISSING.words)
            codes |= dict.fromkeys(column.negative or (), 0.0) | dict.fromkeys(column.positive, 1.0)
            return lambda cell: codes.get(canonical_code(cell, decimal), UNDECLARED.words)
        case _:
            raise ValueError("another column than the tests have")


def _number(column: NumericFeature, decimal: str, markers: set[str]) -> Judge:
    words = {marker for marker in markers if not NUMBER.fullmatch(marker)}
    numbers = {float(marker) for marker in markers if marker not in words}
    low, high = column.range or (-math.inf, math.inf)
    missing: float | str = MISSING.words if column.missing == "refuse" else math.nan

    def judge(cell: str) -> float | str:
        text = cell.strip()
        if text in words:
            return missing
        if decimal != ".":
            text = text.replace(".", " ").replace(decimal, ".")
        if len(text) > 400 or not NUMBER.fullmatch(text):
            return NOT_A_NUMBER.words
        value = float(text)
        if value in numbers:
            return missing
        if abs(value) > 1e100:
            return TOO_LARGE.words
        return value if low <= value <= high else f"a number outside the declared range {low:g} to {high:g}"

    return judge


def _written(text: str, pattern: str) -> date | None:
    is_plain = pattern == "%Y-%m-%d"
    if is_plain and not (len(text) == 10 or TIME.fullmatch(text[10:])):
        return None
    try:
        return date.fromisoformat(text[:10]) if is_plain else datetime.strptime(text, pattern).date()
    except ValueError:
        return None


def _date(column: DateFeature | DayColumn, contract: Contract, today: date) -> Judge:
    markers = {"", *contract.missing_markers, *column.missing_markers}

    def judge(cell: str) -> float | str:
        text = cell.strip()
        if text in markers:
            return math.nan
        read = [day for pattern in patterns_of(column.pattern) if (day := _written(text, pattern)) is not None]
        if not read:
            return NOT_A_DATE.words
        (day,) = set(read)
        return IN_THE_FUTURE.words if day > today and column.future == "refuse" else float(day.toordinal())

    return judge


def _interval(column: DateFeature, days: dict[str, float | str]) -> float | str:
    own = days[column.name]
    other = days.get(column.other)
    if isinstance(own, str):
        return own
    if isinstance(other, str):
        return math.nan
    end = float(date.fromisoformat(column.other).toordinal()) if other is None else other
    value = own - end if column.since is not None else end - own
    value = float(np.float64(value) / 365.25) if column.unit == "years" else value
    if column.range is not None and not math.isnan(value) and not column.range[0] <= value <= column.range[1]:
        low, high = column.range
        return f"an interval outside the declared range {low:g} to {high:g} {column.unit}"
    return MISSING.words if math.isnan(value) and column.missing == "refuse" else value


def _told(line: str) -> DataError:
    words = f"The table does not satisfy its contract:\n    {line}"
    return DataError(what=words, consequence="Nothing left.", remedy="Correct it.")
