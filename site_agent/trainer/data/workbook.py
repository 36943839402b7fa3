"""Reads the rows of a sheet in an Excel workbook one by one.

For a formula, the value that Excel saved is read. Nothing is computed and no macro runs. openpyxl returns the values.
What it does not say, because it reads row by row, is looked up in the sheet's own XML before: formulas without a saved
value, merged cells and hidden rows. The size that a sheet states for itself is not used, because programs write it
wrong.
"""

from __future__ import annotations

import itertools
import re
import warnings
import zipfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final
from xml.etree.ElementTree import Element, ParseError

from defusedxml.ElementTree import iterparse
from openpyxl import load_workbook
from openpyxl.utils import range_boundaries
from openpyxl.utils.cell import coordinate_to_tuple
from openpyxl.utils.exceptions import CellCoordinatesException, InvalidFileException
from openpyxl.workbook import Workbook

from site_agent.trainer.data.cell_rules import LIMIT_SIGNS
from site_agent.trainer.data.contract import ExcelFormat
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.table_sources import Doubt, Row, Unreadable, cell_of

# A workbook is a compressed archive. A small file can unpack to more than any memory.
_LARGEST_UNPACKED_BYTES: Final = 1 << 32
_DAMAGED: Final = (
    *(zipfile.BadZipFile, zlib.error, InvalidFileException, ParseError, EOFError, RuntimeError),
    *(CellCoordinatesException, KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError),
)
_STRICT: Final = b"http://purl.oclc.org/ooxml/spreadsheetml/main"
_WRITTEN_DATE: Final = re.compile(r"(\d{1,2})[./-](\d{1,2})[./-](\d{4}|\d{2})")
_CONDITION: Final = re.compile(r"\[[^]]*\]")
_SHOWN: Final = {
    "%": "are shown in percent, and 45% is read as 0.45; declare the range of a share",
    "<": "have a format that shows < or >, and what is shown as <5 is read as 5; write such cells as text",
}
_LAST_MONTH: Final = 12
_NO_VALUE: Final = Unreadable("a formula without a saved value; open the workbook, let it compute, and save it")
_MERGED: Final = Unreadable("a cell that is merged with another; unmerge the cells and write the value into each")


@dataclass(eq=False)
class _Sheet:
    """What the XML of a sheet says beside the values: cells by row and column, both from 1."""

    unreadable: dict[int, dict[int, Unreadable]] = field(default_factory=lambda: defaultdict(dict))
    merged: int = 0  # cells that are merged with another
    hidden: set[int] = field(default_factory=set)
    zeros: Counter[int] = field(default_factory=Counter)  # by column, formulas whose saved value is 0
    others: Counter[int] = field(default_factory=Counter)  # by column, other cells with a number
    shown: Counter[tuple[int, str]] = field(default_factory=Counter)  # by column, cells that are shown with a sign
    width: int = 0  # of the rows, where none has names


def sheet_rows(path: Path, form: ExcelFormat, doubts: list[Doubt], start: int) -> Generator[Row, None, None]:
    """Yield the header and all rows that are not blank, each with its number. A damaged file raises DataError."""
    if (refused := _why_not(path)) is not None:
        refuse([refused])
    with path.open("rb") as file:
        try:
            with _silence():
                workbook = load_workbook(file, read_only=True, data_only=True)
        except _DAMAGED:
            workbook = None
        if workbook is None:
            refuse(["the workbook is damaged"])
        with closing(workbook):
            yield from _rows_of(path, workbook, form, doubts, start)


@contextmanager
def _silence() -> Iterator[None]:
    """The library warns about styles, and about dates beyond the calendar with the value of the cell."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _why_not(path: Path) -> str | None:
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            if sum(entry.file_size for entry in archive.infolist()) > _LARGEST_UNPACKED_BYTES:
                return f"the workbook unpacks to more than {_LARGEST_UNPACKED_BYTES} bytes; export the sheet as CSV"
            if "xl/workbook.bin" in names:
                return "the file is a binary workbook (xlsb); save it as xlsx"
            if "xl/workbook.xml" in names and _STRICT in archive.open("xl/workbook.xml").read(1 << 16):
                return "the file is a Strict Open XML workbook; save it as an Excel workbook (xlsx) that is not strict"
    except _DAMAGED:
        return "the file is not an Excel workbook (xlsx)"
    return None


def _rows_of(
    path: Path, workbook: Workbook, form: ExcelFormat, doubts: list[Doubt], start: int
) -> Generator[Row, None, None]:
    sheets = {sheet.title: sheet for sheet in workbook.worksheets}
    if form.sheet is not None and form.sheet not in sheets:
        refuse([f"the workbook has no sheet of the declared name, but {len(sheets)} others"])
    visible = [sheet for sheet in sheets.values() if sheet.sheet_state == "visible"]
    if form.sheet is None and not visible:
        refuse(["the workbook has no visible sheet; declare the name of a hidden one if it is the table"])
    sheet: Any = sheets[form.sheet] if form.sheet is not None else visible[0]
    if sheet not in visible:
        doubts.append(Doubt("the declared sheet of the workbook is hidden"))
    known = _looked_up(path, sheet._worksheet_path, _signs(workbook), is_header=form.header)
    if known.hidden:
        doubts.append(Doubt(f"{len(known.hidden)} hidden or filtered rows of the sheet are read like all others"))
    for column, count in known.zeros.items():
        if not known.others[column] and count > 1:
            words = f"all {count} formulas have the saved value 0, as programs save that do not compute"
            doubts.append(Doubt(words, column - 1))
    for (column, sign), count in known.shown.items():
        doubts.append(Doubt(f"{count} cells {_SHOWN[sign]}", column - 1, largest=2.0 if sign == "%" else None))
    sheet.reset_dimensions()
    rows = _rows(sheet.iter_rows(values_only=True), known, doubts, start, form.decimal)
    if (header := next(rows, None)) is None:
        return
    yield header
    last = yield from rows
    for other in visible[1:] if form.sheet is None else ():
        other.reset_dimensions()
        more = _rows(other.iter_rows(values_only=True), _Sheet(), [], 1, form.decimal)
        is_same = form.header and {*next(more, (0, ()))[1]} >= {cell for cell in header[1] if cell}
        if is_same or sum(1 for _ in itertools.islice(more, 2 * last + 9)) > 2 * last + 8:
            doubts.append(Doubt("another visible sheet has this header, or more rows: is it the table (--sheet NAME)?"))


def _signs(workbook: Any) -> dict[str, str]:
    """Return the sign that each style shows and its cells do not have."""
    own = {9: "%", 10: "%"} | {164 + place: form for place, form in enumerate(workbook._number_formats)}
    forms = {str(place): own.get(style.numFmtId, "") for place, style in enumerate(workbook._cell_styles)}
    limits = {place: "<" for place, form in forms.items() if set(LIMIT_SIGNS) & set(_CONDITION.sub("", form))}
    return limits | {place: "%" for place, form in forms.items() if "%" in re.sub(r'"[^"]*"|\\.', "", form)}


def _looked_up(path: Path, part: str, signs: Mapping[str, str], *, is_header: bool) -> _Sheet:
    found, has_names, row = _Sheet(), is_header, 0
    try:
        with zipfile.ZipFile(path) as archive, archive.open(part.removeprefix("/")) as xml:
            for _, element in iterparse(xml):
                match element.tag.rpartition("}")[2]:
                    case "row":
                        row, column = _number(element.get("r"), after=row), 0
                        cells = [cell for cell in element if cell.tag.endswith("}c")]
                        for cell in cells:
                            name = cell.get("r")
                            column = _number(name and coordinate_to_tuple(name)[1], after=column)
                            if not is_header:
                                _look_at(cell, row, column, found)
                                found.width = 0 if has_names else max(found.width, column * bool(len(cell)))
                                if (sign := signs.get(cell.get("s") or "")) and len(cell):
                                    found.shown[column, sign] += 1
                        if element.get("hidden") in ("1", "true") and cells:
                            found.hidden.add(row)
                        is_header = is_header and not cells
                        element.clear()
                    case "mergeCell":
                        _merge(range_boundaries(element.get("ref") or ""), found)
        return found
    except _DAMAGED:
        pass  # the error's text quotes the content
    return refuse(["the sheet is damaged"])


def _number(stated: str | int | None, *, after: int) -> int:
    """Return the number of a row or column. Programs may leave it out. The reader would lose one that is not later."""
    number = int(stated or after + 1)
    if number <= after:
        raise ValueError
    return number


def _look_at(cell: Element, row: int, column: int, found: _Sheet) -> None:
    parts = {part.tag.rpartition("}")[2]: part.text for part in cell}
    if "f" not in parts:
        found.others[column] += "v" in parts
    elif not parts.get("v"):
        if cell.get("t") != "str":  # an empty text is a value
            found.unreadable[row][column] = _NO_VALUE
    elif parts["v"] == "0":
        found.zeros[column] += 1
    else:
        found.others[column] += 1


def _merge(place: tuple[int | None, ...], found: _Sheet) -> None:
    left, top, right, bottom = (part or 0 for part in place)
    found.merged += (right - left + 1) * (bottom - top + 1)
    if not (left and top and right and bottom) or found.merged > 1 << 20:
        raise ValueError
    for row, column in itertools.product(range(top, bottom + 1), range(left, right + 1)):
        if (row, column) != (top, left):
            found.unreadable[row][column] = _MERGED


def _rows(
    rows: Iterator[tuple[object, ...]], known: _Sheet, doubts: list[Doubt], start: int, mark: str
) -> Generator[Row, None, Any]:
    width, dates = known.width, _Dates()
    for row in itertools.count(1):
        if (values := _next(rows)) is None:
            doubts += dates.doubts
            return row
        if row < start:
            continue
        # A number is written like the numbers that were typed as text beside it.
        cells = [repr(one).replace(".", mark) if isinstance(one, float) else cell_of(one) for one in values]
        while cells and cells[-1] == "":
            cells.pop()  # a row can have empty cells at its end, depending on how the sheet was edited
        flaws = known.unreadable.get(row, {}) if width else {}
        if not cells and not any(column <= width for column in flaws):
            continue
        cells += [""] * (width - len(cells))
        if width:
            dates.look_at(values)
        for column, unreadable in flaws.items():
            if column <= len(cells):
                cells[column - 1] = unreadable
        width = width or len(cells)
        yield row, cells


def _next(rows: Iterator[tuple[object, ...]]) -> tuple[object, ...] | None:
    try:
        with _silence():
            return next(rows, None)
    except _DAMAGED:
        pass  # the error's text quotes the content
    return refuse(["the sheet is damaged"])


class _Dates:
    """Sees columns whose days and months another program has swapped where it could, and left as text elsewhere."""

    def __init__(self) -> None:
        self._early, self._late, self._text = Counter[int](), Counter[int](), Counter[int]()

    def look_at(self, values: tuple[object, ...]) -> None:
        for place, value in enumerate(values):
            if isinstance(value, date):
                (self._early if value.day <= _LAST_MONTH else self._late)[place] += 1
            elif isinstance(value, str) and (found := _WRITTEN_DATE.fullmatch(value.strip())):
                self._text[place] += max(int(found[1]), int(found[2])) > _LAST_MONTH

    @property
    def doubts(self) -> list[Doubt]:
        return [
            Doubt(
                f"{count} dates are dates up to the 12th day of a month, and {self._text[place]} later ones are text: "
                "another program has probably swapped day and month; import the original file again as text",
                place,
            )
            for place, count in self._early.items()
            if self._text[place] and not self._late[place]
        ]
