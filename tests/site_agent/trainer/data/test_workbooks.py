"""What a workbook holds is read right or named with its row and column, and nothing is lost in silence."""

from __future__ import annotations

import datetime
import re
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from openpyxl import Workbook
from openpyxl.worksheet.worksheet import Worksheet

from protos.errors import DataError
from site_agent.trainer.data.cell_rules import FAILED_FORMULA
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Survey, read_table, survey_table

from .conftest import contract_from

CONTRACT = """
format: {kind: excel}
columns:
  - {name: patient, role: patient}
  - {name: age, role: feature, type: numeric, missing: median}
  - {name: born, role: feature, type: date, until: "2020-01-01", unit: days, missing: median, pattern: PATTERNS}
  - {name: note, role: ignore}
  - {name: sick, role: target, task: binary, positive: [1]}
"""
ROWS = 12
Change = Callable[[Worksheet], None]


def _contract(patterns: str = '"%Y-%m-%d"') -> Contract:
    return contract_from(CONTRACT.replace("PATTERNS", patterns))


def _book(path: Path, change: Change = lambda sheet: None) -> Path:
    book = Workbook()
    sheet = book.create_sheet("Patients", 0)
    sheet.append(["patient", "age", "born", "note", "sick"])
    for row in range(ROWS):
        sheet.append([f"p{row}", 40 + row, datetime.date(1960, 3, 10 + row), "", row % 2])
    change(sheet)
    book.save(path)
    return path


def _edited(path: Path, part: str, pattern: bytes, replacement: bytes) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    changed = re.sub(pattern, replacement, parts[part])
    assert changed != parts[part]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in (parts | {part: changed}).items():
            archive.writestr(name, content)


def _mistakes(found: Survey) -> set[tuple[str | None, tuple[int, ...]]]:
    return {(one.column, one.rows) for one in found.mistakes}


@pytest.mark.parametrize(
    ("cells", "mistake"),
    [
        (dict.fromkeys(("B3", "B7", "D4"), "=1+1"), ("age", (3, 7))),
        ({f"{column}{ROWS + 2}": f"=Old!{column}{ROWS + 2}" for column in "ABCDE"}, ("patient", (ROWS + 2,))),
        (dict.fromkeys(("E5", "D6"), "#N/A"), ("sick", (5,))),  # all outcomes but the declared ones are negative
    ],
)
def test_a_formula_without_a_saved_value_is_no_missing_value(
    tmp_path: Path, cells: dict[str, str], mistake: tuple[str, tuple[int, ...]]
) -> None:
    """As after a program that does not compute, also in a whole row. Nor is a formula's error a missing value."""

    def change(sheet: Worksheet) -> None:
        for place, cell in cells.items():
            sheet[place] = cell

    found = survey_table(_book(tmp_path / "table.xlsx", change), _contract())
    assert mistake in _mistakes(found)
    assert len(found.mistakes) == 1 or mistake[0] == "patient"
    assert (FAILED_FORMULA.words in [one.flaw for one in found.mistakes]) == ("E5" in cells)


def test_cells_without_their_places_are_read_in_their_order(tmp_path: Path) -> None:
    """Programs may leave out the places, and formulas and hidden rows are found nevertheless."""

    def change(sheet: Worksheet) -> None:
        sheet["B3"] = "=1+1"
        sheet.row_dimensions[4].hidden = True

    path = _book(tmp_path / "table.xlsx", change)
    _edited(path, "xl/worksheets/sheet1.xml", rb'<(row|c) r="\w+"', rb"<\1")
    found = survey_table(path, _contract())
    assert _mistakes(found) == {("age", (3,))}
    assert len(found.doubts) == 1


@pytest.mark.parametrize(("pattern", "again"), [(rb'<row r="7"', b'<row r="6"'), (rb'<c r="C7"', b'<c r="A7"')])
def test_a_row_or_cell_that_is_not_behind_the_one_before_is_damage(
    tmp_path: Path, pattern: bytes, again: bytes
) -> None:
    """The library would drop the row, and put the cell over another."""
    path = _book(tmp_path / "table.xlsx")
    _edited(path, "xl/worksheets/sheet1.xml", pattern, again)
    with pytest.raises(DataError):
        survey_table(path, _contract())


def test_formulas_that_are_all_zero_are_asked_about(tmp_path: Path) -> None:
    """Some programs save 0 for what they do not compute."""
    path = _book(tmp_path / "table.xlsx")
    _edited(path, "xl/worksheets/sheet1.xml", rb'(<c r="B(?!1")\d+"[^>]*>)<v>\d+</v>', rb"\1<f>1+1</f><v>0</v>")
    assert [column for _, column in survey_table(path, _contract()).doubts] == ["age"]
    assert not survey_table(_book(tmp_path / "other.xlsx"), _contract()).doubts


@pytest.mark.parametrize(("form", "asked"), [('"<"0', 1), ('[<5]"<5";0', 1), (r"\>0", 1), ("[<1]0.0;0", 0), ("0%", 1)])
def test_a_sign_that_only_the_screen_shows_is_asked_about(tmp_path: Path, form: str, asked: int) -> None:
    """Everybody sees <5, and the cell has 5."""
    path = _book(tmp_path / "table.xlsx", lambda sheet: setattr(sheet["B3"], "number_format", form))
    assert len(survey_table(path, _contract()).doubts) == asked


def test_a_hidden_sheet_is_not_the_table_unless_it_is_declared(tmp_path: Path) -> None:
    """An older copy is often hidden before the newer one; hidden and filtered rows are told."""

    def change(sheet: Worksheet) -> None:
        old = sheet.parent.create_sheet("Old", 0)
        old.append(["patient", "age", "born", "note", "sick"])
        old.sheet_state = "hidden"
        sheet.row_dimensions[4].hidden = True
        for row in range(100):  # a larger sheet behind the first is asked about
            sheet.parent["Sheet"].append([row, 1])

    path = _book(tmp_path / "table.xlsx", change)
    found = survey_table(path, _contract())
    assert found.table.rows == ROWS
    assert len(found.doubts) == 2
    old = contract_from(CONTRACT.replace("PATTERNS", '"%Y-%m-%d"').replace("excel}", "excel, sheet: Old}"))
    assert len(survey_table(path, old).doubts) == 1


def test_a_date_beyond_the_calendar_is_named_without_a_warning_that_shows_it(tmp_path: Path) -> None:
    """The library's own warning has the value of the cell."""
    path = _book(tmp_path / "table.xlsx")
    _edited(path, "xl/worksheets/sheet1.xml", rb'(<c r="C5"[^>]*>)<v>\d+</v>', rb"\1<v>99999999</v>")
    with warnings.catch_warnings(record=True) as caught:
        found = survey_table(path, _contract())

    assert ("born", (5,)) in _mistakes(found)
    assert not caught


OTHERS = {
    "a password or an old file": lambda path: path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(600)),
    "a binary workbook": lambda path: _archive(path, {"xl/workbook.bin": b""}),
    "an OpenDocument sheet": lambda path: _archive(path, {"mimetype": b"application/vnd.oasis.opendocument.text"}),
    "a strict workbook": lambda path: _edited(
        _book(path), "xl/workbook.xml", b"http://schemas.openxmlformats.org/spreadsheetml/2006/main",
        b"http://purl.oclc.org/ooxml/spreadsheetml/main",
    ),
    "too many merged cells": lambda path: _edited(
        _book(path, lambda sheet: sheet.merge_cells("A3:B4")), "xl/worksheets/sheet1.xml", b"A3:B4", b"A3:ZZ90000"
    ),
}  # fmt: skip


def _archive(path: Path, parts: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def test_other_kinds_of_workbooks_are_told_apart(tmp_path: Path) -> None:
    """Each has its own sentence, because each has another remedy or name."""
    told = set()
    for make in OTHERS.values():
        make(tmp_path / "table.xlsx")
        with pytest.raises(DataError) as error:
            read_table(tmp_path / "table.xlsx", _contract())
        told.add(error.value.what)

    assert len(told) == len(OTHERS)
