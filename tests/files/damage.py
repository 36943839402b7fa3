"""Damages good tables as programs and people do, reads them as `data check` does, and counts what nobody was told.

    python -m tests.files.damage

Each outcome is one of three: the values are those of the good table, the check or a refusal tells about the damage, or
neither. The last is silent, and the command fails if there is one. The good tables themselves have no finding.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import sqlite3
import sys
import tempfile
import unicodedata
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import Final, Literal

import numpy as np
import pandas as pd
from openpyxl import Workbook, load_workbook
from openpyxl.utils.datetime import CALENDAR_MAC_1904
from openpyxl.worksheet.worksheet import Worksheet

from protos.errors import OperatorError
from protos.plan.documents import parse_document
from site_agent.desk.examination.examine import examine
from site_agent.hospital import Split
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import Survey, survey_table

HEADER: Final = ["patient", "age", "sex", "crp", "excess", "born", "ward", "icd", "outcome"]
CONTRACT: Final = """
format: {format}
columns:
  - {{name: patient, role: patient}}
  - {{name: age, role: feature, type: numeric, missing: median}}
  - {{name: sex, role: feature, type: binary, codes: ["f", "m"]}}
  - {{name: crp, role: feature, type: numeric, missing: median}}
  - {{name: excess, role: feature, type: numeric, missing: median}}
  - {{name: born, role: feature, type: date, until: "2024-01-01", unit: years, missing: median, future: allow}}
  - {{name: ward, role: feature, type: categorical, codes: ["01", "02", "1E5"]}}
  - {{name: icd, role: feature, type: categorical, codes: ["1E50", "BA00", "2E60", "männlich"]}}
  - {{name: outcome, role: target, task: binary, positive: ["dead"], negative: ["none"]}}
"""
FORMATS: Final = {
    "csv": "{header: true}",
    "xlsx": "{kind: excel}",
    "parquet": "{kind: parquet}",
    "sqlite": "{kind: sql, query: SELECT * FROM visits}",
}
Rows = list[list[str]]
Do = Callable[[Path, Rows], object]
Outcome = Literal["read_right", "named", "silent"]
_NUMBER: Final = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
# Findings that a table of so few made-up rows can have by chance.
_BY_CHANCE: Final = ("predicts-alone", "few-of-class")


def good_rows(seed: int, count: int = 240) -> Rows:
    """Made-up patients, some of them twice. No value is missing."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        day = date(1930, 1, 1) + timedelta(days=int(random.integers(20_000)))
        rows.append(
            [
                f"Ä-{number * 5 // 6:04d}",
                str(random.integers(20, 95)),
                str(random.choice(["f", "m"])),
                f"{random.gamma(2.0, 15.0) + 0.1:.1f}",
                f"{random.normal(0.0, 4.0):.2f}",
                day.isoformat(),
                str(random.choice(["01", "02", "1E5"])),
                str(random.choice(["1E50", "BA00", "2E60", "männlich"])),
                str(random.choice(["dead", "none"])),
            ]
        )
    return rows


def text_of(rows: Rows) -> str:
    """The rows as a text file."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([HEADER, *rows])
    return file.getvalue()


def typed(row: list[str]) -> list[object]:
    """A row as a workbook or a database has it, with numbers and dates where they are some."""
    found: list[object] = []
    for name, cell in zip(HEADER, row, strict=False):
        try:
            is_number = name in ("age", "crp", "excess") and _NUMBER.fullmatch(cell)
            found.append(float(cell) if is_number else date.fromisoformat(cell) if name == "born" else cell)
        except ValueError:
            found.append(cell)
    return [*found, *row[len(HEADER) :]]


def write(path: Path, rows: Rows, header: list[str] = HEADER) -> None:
    """Write rows as the file's ending says."""
    match path.suffix:
        case ".csv":
            path.write_text(text_of(rows), "utf-8")
        case ".xlsx":
            book = Workbook()
            for row in [header, *map(typed, rows)]:
                _sheet(book).append(row)
            book.save(path)
        case ".parquet":
            frame = pd.DataFrame(rows, columns=header)
            for name in ("age", "crp", "excess"):
                if all(map(_NUMBER.fullmatch, frame[name])):
                    frame[name] = frame[name].astype(float)
            frame.to_parquet(path)
        case _:
            with sqlite3.connect(path) as base:
                base.execute(f"CREATE TABLE visits ({', '.join(header)})")
                marks = ", ".join("?" * len(header))
                values = [[str(cell) if isinstance(cell, date) else cell for cell in typed(row)] for row in rows]
                base.executemany(f"INSERT INTO visits VALUES ({marks})", values)
            base.close()


def _sheet(book: Workbook) -> Worksheet:
    assert isinstance(book.active, Worksheet)
    return book.active


@dataclass(frozen=True)
class Damage:
    """One way to damage a table. `do` gets the path of a file with the good table, and its rows, and changes it."""

    name: str
    kind: str
    do: Do


def _cells(column: str, change: Callable[[str, int], str], every: int = 10) -> Callable[[Rows], Rows]:
    place = HEADER.index(column)

    def changed(rows: Rows) -> Rows:
        return [
            [*row[:place], change(row[place], number), *row[place + 1 :]] if number % every == 0 else row
            for number, row in enumerate(rows)
        ]

    return changed


def _day(cell: str, pattern: str) -> str:
    return date.fromisoformat(cell).strftime(pattern)


# Damages of cells and rows, in every kind of file.
CELLS: Final[dict[str, Callable[[Rows], Rows]]] = {
    "a detection limit": _cells("crp", lambda cell, _: f"<{cell}"),
    "an upper detection limit": _cells("crp", lambda cell, _: f"≥ {cell}"),
    "a comment behind a number": _cells("crp", lambda cell, _: f"{cell} (hemolytic)"),
    "about": _cells("crp", lambda cell, _: f"ca. {cell}"),
    "a unit behind a number": _cells("crp", lambda cell, _: f"{cell} mg/l"),
    "per cent": _cells("crp", lambda cell, _: f"{cell}%"),
    "thousands": _cells("crp", lambda cell, _: f"1,{float(cell):05.1f}"),
    "apostrophes": _cells("crp", lambda cell, _: f"1'{float(cell):05.1f}"),
    "decimal commas": _cells("crp", lambda cell, _: cell.replace(".", ",")),
    "another minus": _cells("excess", lambda cell, _: cell.replace("-", "−"), 1),
    "numbers of another script": _cells("age", lambda cell, _: "".join(chr(ord(one) + 0xFEE0) for one in cell)),
    "words": _cells("crp", lambda cell, _: "positive"),
    "not a number": _cells("crp", lambda cell, _: "NaN"),
    "infinity": _cells("crp", lambda cell, _: "inf"),
    "-99": _cells("age", lambda cell, _: "-99"),
    "999.9": _cells("crp", lambda cell, _: "999.9"),
    "99 for not known": _cells("age", lambda cell, _: "99"),
    "96 to 98": _cells("age", lambda cell, number: str(96 + number % 3), 4),
    "500 in an excess": _cells("excess", lambda cell, _: "500", 100),
    "another unit": _cells("age", lambda cell, _: str(int(cell) * 12)),
    "a lost decimal point": _cells("crp", lambda cell, _: cell.replace(".", "") + "000", 60),
    "#N/A": _cells("outcome", lambda cell, _: "#N/A"),
    "k.A.": _cells("crp", lambda cell, _: "k.A."),
    "a date of 1900": _cells("born", lambda cell, _: "1900-01-01"),
    "a date of 9999": _cells("born", lambda cell, _: "9999-12-31"),
    "dates of another country": _cells("born", lambda cell, _: _day(cell, "%d.%m.%Y")),
    "two-digit years": _cells("born", lambda cell, _: _day(cell, "%d.%m.%y")),
    "names of months": _cells("born", lambda cell, _: _day(cell, "%d %b %Y")),
    "zoned times": _cells("born", lambda cell, _: f"{cell}T23:30:00Z"),
    "serial numbers of dates": _cells("born", lambda cell, _: "25569"),
    "impossible days": _cells("born", lambda cell, _: f"{cell[:4]}-02-30"),
    "times behind dates": _cells("born", lambda cell, _: f"{cell} 00:00:00"),
    "lost zeros of codes": _cells("ward", lambda cell, _: cell.lstrip("0")),
    "codes in scientific notation": _cells("icd", lambda cell, _: "1.00E+50" if cell == "1E50" else cell, 1),
    "codes as numbers": _cells("ward", lambda cell, _: "100000.0" if cell == "1E5" else cell, 1),
    "codes read in another encoding": _cells("icd", lambda cell, _: cell.encode().decode("latin-1"), 1),
    "codes decomposed": _cells("icd", lambda cell, _: unicodedata.normalize("NFD", cell), 1),
    "blanks in codes": _cells("sex", lambda cell, _: f" {cell}\u00a0"),
    "hidden signs in codes": _cells("sex", lambda cell, _: f"{cell}\u200b"),
    "capital codes": _cells("sex", lambda cell, _: cell.upper()),
    "an outcome in other words": _cells("outcome", lambda cell, _: "died" if cell == "dead" else cell),
    "empty identifiers": _cells("patient", lambda cell, _: ""),
    "one identifier for unknown": _cells("patient", lambda cell, _: "unknown"),
    "hidden signs in identifiers": _cells("patient", lambda cell, _: f"{cell}\u200b", 7),
    "soft hyphens in identifiers": _cells("patient", lambda cell, _: cell.replace("-", "-\u00ad"), 7),
    "dashes in identifiers": _cells("patient", lambda cell, _: cell.replace("-", "–"), 7),
    "decomposed identifiers": _cells("patient", lambda cell, _: unicodedata.normalize("NFD", cell), 7),
    "small identifiers": _cells("patient", lambda cell, _: cell.lower(), 7),
    "rounded identifiers": _cells("patient", lambda cell, number: f"1.{number:04d}E+11"),
    "rows in another order": lambda rows: rows[::-1],
    "twins": lambda rows: [*rows, *([f"B-{place}", *row[1:]] for place, row in enumerate(rows[:20]))],
    "rows twice": lambda rows: [*rows, *rows[:20]],
    "the header again": lambda rows: [*rows[:100], HEADER, *rows[100:]],
    "a total": lambda rows: [*rows, ["Total", str(len(rows)), *[""] * 7]],
    "notes below": lambda rows: [*rows, ["exported by A", *[""] * 8]],
    "cells moved to the left": lambda rows: [[row[0], *row[2:], ""] if row in rows[::50] else row for row in rows],
    "cells moved to the right": lambda rows: [[*row[:3], "", *row[3:8]] if row in rows[::50] else row for row in rows],
}  # fmt: skip


def _text(change: Callable[[str], str | bytes]) -> Do:
    def damaged(path: Path, rows: Rows) -> None:
        found = change(text_of(rows))
        path.write_bytes(found if isinstance(found, bytes) else found.encode())

    return damaged


def _in_line(number: int, change: Callable[[str], str]) -> Callable[[str], str]:
    def changed(text: str) -> str:
        lines = text.splitlines()
        lines[number] = change(lines[number])
        return "\n".join(lines) + "\n"

    return changed


def _swallowed(text: str) -> str:
    lines = text.splitlines()
    for at, change in ((50, (",f,", ',"f,')), (50, (",m,", ',"m,')), (51, (",f,", ',f",')), (51, (",m,", ',m",'))):
        lines[at] = lines[at].replace(*change)
    return "\n".join(lines) + "\n"


def _lines(change: Callable[[str], str]) -> Callable[[str], str]:
    return lambda text: "".join(change(line) + "\n" for line in text.splitlines())


def _half(path: Path, rows: Rows) -> None:
    write(path, rows)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


TEXTS: Final[dict[str, Callable[[str], str | bytes]]] = {
    "a mark at the beginning": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "a mark in the middle": lambda text: text.replace("\nÄ-0100", "\n\ufeffÄ-0100"),
    "UTF-16": lambda text: text.encode("utf-16"),
    "latin-1": lambda text: text.encode("latin-1"),
    "cp437": lambda text: text.encode("cp437"),
    "a NUL byte": lambda text: text.replace("Ä-0100", "Ä-01\x0000", 1),
    "line ends of Windows": lambda text: text.replace("\n", "\r\n"),
    "line ends of a Mac": lambda text: text.replace("\n", "\r"),
    "mixed line ends": lambda text: text.replace("\n", "\r\n", 100),
    "delimiters at the end of rows": lambda text: text.replace("\n", ",\n").replace(",\n", "\n", 1),
    "delimiters at the end of all lines": lambda text: text.replace("\n", ",,\n"),
    "blank lines": lambda text: text.replace("\nÄ-0050", "\n\nÄ-0050"),
    "blank lines at the end": lambda text: text + "\n\n\n",
    "no line end at the end": lambda text: text.removesuffix("\n"),
    "a quotation mark too much": _in_line(50, lambda line: line.replace(",", ',"', 1)),
    "two marks swallow rows": lambda text: text.replace("Ä-0050", '"Ä-0050', 1).replace("Ä-0060,", 'Ä-0060",', 1),
    "two marks swallow one row": _swallowed,
    "all cells quoted": _lines(lambda line: '"' + line.replace(",", '","') + '"'),
    "quoted with apostrophes": _lines(lambda line: "'" + line.replace(",", "','") + "'"),
    "cut in a row": lambda text: text[: text.index("Ä-0100") + 9],
    "cut in a cell": lambda text: text[: text.index("\nÄ-0100") - 2],
    "semicolons": lambda text: text.replace(",", ";"),
    "blanks around delimiters": lambda text: text.replace(",", " , "),
    "sep=": lambda text: "sep=,\n" + text,
    "comments above": lambda text: "# exported by A\n# two lines\n" + text,
    "comments in the middle": lambda text: text.replace("\nÄ-0050", "\n# page 2\nÄ-0050"),
    "a title above": lambda text: "Patients of the ward\n\n" + text,
    "a wide title above": lambda text: "Patients,,,,,,,,\n,person,,blood,,,,,\n" + text,
    "no header": lambda text: text[text.index("\n") + 1 :],
    "a footer": lambda text: text + "240 rows\n",
    "a part joined with its header": lambda text: text + text[: text.index("\n") + 1],
    "columns in another order": _lines(lambda line: ",".join(line.split(",")[::-1])),
    "a column twice": _lines(lambda line: f"{line},{line.split(',')[1]}"),
    "a column that nobody declared": _lines(lambda line: f"{line},x"),
    "a column that is not there": _lines(lambda line: ",".join(line.split(",")[1:])),
    "a name in capitals": lambda text: text.replace("crp", "CRP", 1),
    "blanks around a name": lambda text: text.replace("crp", " crp ", 1),
    "hidden signs in a name": lambda text: text.replace("crp", "c\u200brp", 1),
    "blanks at the end": lambda text: text + "  \t \n",
    "the mark of DOS at the end": lambda text: text + "\x1a",
    "empty rows at the end": lambda text: text + ",,,,,,,,\n" * 5,
    "a line break in a name": lambda text: text.replace("crp", '"crp\n"', 1),
    "a no-break space in a name": lambda text: text.replace("crp", "\u00a0crp", 1),
    "units below the names": lambda text: text.replace("outcome\n", "outcome\n,years,,mg/l,,,,,\n", 1),
    "groups above the names": lambda text: ",person,,blood,,,,,outcome\n" + text,
    "UTF-16 without a mark": lambda text: text.encode("utf-16-le"),
    "blanks for delimiters": lambda text: text.replace(",", "  "),
    "marks behind backslashes": lambda text: text.replace("Ä-0100", '"Ä-\\"0100"'),
    "\\N for missing": lambda text: text.replace("Ä-0100", "\\N"),
    "rows of a dump": lambda text: "-- dump\nINSERT INTO t VALUES\n" + text,
    "a compressed file": lambda text: gzip.compress(text.encode()),
    "a page of the web": lambda text: f"<html><table><tr><td>{text}</td></tr></table></html>",
    "an empty file": lambda text: "",
    "only a header": lambda text: text[: text.index("\n") + 1],
    "a line with far too many cells": _in_line(80, lambda line: line + ",1" * 300),
    "tabs for blanks": lambda text: text.replace(",", "\t"),
}  # fmt: skip


def _book(change: Callable[[Workbook, Worksheet], object]) -> Do:
    def damaged(path: Path, rows: Rows) -> None:
        write(path, rows)
        book = load_workbook(path)
        change(book, _sheet(book))
        book.save(path)

    return damaged


def _xml(pattern: str, new: str, count: int = 0) -> Do:
    def damaged(path: Path, rows: Rows) -> None:
        write(path, rows)
        with zipfile.ZipFile(path) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        sheet = "xl/worksheets/sheet1.xml"
        parts[sheet] = re.sub(pattern, new, parts[sheet].decode(), count=count).encode()
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in parts.items():
                archive.writestr(name, content)

    return damaged


def _set(column: int, value: object, every: int = 10) -> Callable[[Workbook, Worksheet], None]:
    def changed(_: Workbook, sheet: Worksheet) -> None:
        for row in range(2, sheet.max_row + 1, every):
            cell = sheet.cell(row, column)
            cell.value = value(cell.value) if callable(value) else value  # type: ignore[assignment]

    return changed


def _percent(_: Workbook, sheet: Worksheet) -> None:
    for row in range(2, sheet.max_row + 1, 10):
        sheet.cell(row, 4).value, sheet.cell(row, 4).number_format = float(sheet.cell(row, 4).value or 0) / 100, "0%"  # type: ignore[arg-type]


def _swapped(value: object) -> object:
    assert isinstance(value, datetime)
    return value.replace(month=value.day, day=value.month) if value.day <= 12 else value.strftime("%d/%m/%Y")


def _other_sheet(book: Workbook, sheet: Worksheet) -> None:
    other = book.create_sheet("2025")
    for row in list(sheet.iter_rows(values_only=True))[:1] + list(sheet.iter_rows(values_only=True))[100:]:
        other.append(row)
    sheet.delete_rows(101, 1000)


def _above(sheet: Worksheet, row: int, count: int, cells: dict[int, str]) -> None:
    sheet.insert_rows(row, count)
    for column, words in cells.items():
        sheet.cell(row, column, words)
    sheet.merge_cells(start_row=row, end_row=row, start_column=8, end_column=9)


def _hidden_first(book: Workbook, sheet: Worksheet) -> None:
    old = book.create_sheet("old", 0)
    for row in list(sheet.iter_rows(values_only=True))[:50]:
        old.append(row)
    old.sheet_state, book.active = "hidden", 1


def _epoch_1904(book: Workbook, _: Worksheet) -> None:
    book.epoch = CALENDAR_MAC_1904


BOOKS: Final[dict[str, Do]] = {
    "a stored size that lacks rows": _xml(r'<dimension ref="[^"]*"', '<dimension ref="A1:I100"'),
    "a stored size that lacks columns": _xml(r'<dimension ref="[^"]*"', '<dimension ref="A1:D241"'),
    "cells without their place": _xml(r'<c r="[A-Z]+\d+"', "<c"),
    "rows in a wrong order": _xml(r'<row r="100"', '<row r="20"'),
    "formulas without a value": _book(_set(4, "=A1*2")),
    "formulas whose value is 0": _xml(r'(<c r="D\d+"[^>]*>)<v>[^<]*</v>', r"\1<f>B2*2</f><v>0</v>"),
    "formulas with a value": _xml(r'(<c r="D\d+"[^>]*>)(<v>[^<]*</v>)', r"\1<f>B2*2</f>\2"),
    "error values": _xml(r'<c r="D(\d*5)"[^>]*><v>[^<]*</v>', r'<c r="D\1" t="e"><v>#DIV/0!</v>'),
    "merged ages": _book(lambda _, sheet: [sheet.merge_cells(f"B{row}:B{row + 3}") for row in range(2, 200, 10)]),
    "merged rows": _book(lambda _, sheet: [sheet.merge_cells(f"{one}10:{one}11") for one in "ABCDEFGHI"]),
    "hidden rows": _book(lambda _, sheet: [setattr(sheet.row_dimensions[row], "hidden", True) for row in range(2, 40)]),
    "hidden columns": _book(lambda _, sheet: setattr(sheet.column_dimensions["D"], "hidden", True)),
    "a filter": _book(lambda _, sheet: setattr(sheet.auto_filter, "ref", "A1:I241")),
    "a hidden first sheet": _book(_hidden_first),
    "a second sheet with more rows": _book(_other_sheet),
    "a title above": _book(lambda _, sheet: _above(sheet, 1, 3, {1: "Patients"})),
    "groups above": _book(lambda _, sheet: _above(sheet, 1, 1, {2: "person", 4: "blood"})),
    "units below the header": _book(lambda _, sheet: _above(sheet, 2, 1, {2: "years", 4: "mg/l"})),
    "a sum below": _book(lambda _, sheet: sheet.append(["", "=SUM(B2:B241)"])),
    "a second table below": _book(lambda _, sheet: [sheet.append(row) for row in ([], ["ward", "beds"], ["01", 12])]),
    "a second table beside": _book(lambda _, sheet: [sheet.cell(row, 12, "x") for row in range(1, 9)]),
    "dates swapped": _book(_set(6, _swapped, 1)),
    "dates since 1904": _book(_epoch_1904),
    "numbers as dates": _book(_set(4, datetime(2024, 5, 3))),
    "numbers in percent": _book(_percent),
    "numbers as times": _book(_set(4, time(3, 30))),
    "durations": _book(_set(4, timedelta(hours=30))),
    "truths for codes": _book(_set(3, True)),
    "numbers as texts": _book(_set(4, str)),
    "serial numbers for dates": _book(_set(6, 25569)),
    "dates beyond the calendar": _xml(r'(<c r="F1\d"[^>]*>)<v>[^<]*</v>', r"\1<v>99999999</v>"),
    "long numbers for identifiers": _book(_set(1, 1234567890123456700)),
    "blank rows": _book(lambda _, sheet: sheet.insert_rows(50, 3)),
    "empty columns": _book(lambda _, sheet: sheet.insert_cols(3)),
    "a strict workbook": lambda path, rows: (write(path, rows), _strict(path)),
    "a password": lambda path, rows: path.write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(2000)),
    "half of the file": _half,
    "a text file": lambda path, rows: path.write_text(text_of(rows)),
}  # fmt: skip


def _strict(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            old, new = (
                b"http://schemas.openxmlformats.org/spreadsheetml/2006/main",
                b"http://purl.oclc.org/ooxml/spreadsheetml/main",
            )
            archive.writestr(name, content.replace(old, new))


def _frame(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Do:
    def damaged(path: Path, rows: Rows) -> None:
        write(path, rows)
        change(pd.read_parquet(path)).to_parquet(path)

    return damaged


FRAMES: Final[dict[str, Do]] = {
    "categories": _frame(lambda frame: frame.assign(sex=frame.sex.astype("category"))),
    "days": _frame(lambda frame: frame.assign(born=pd.to_datetime(frame.born))),
    "nanoseconds in UTC": _frame(lambda frame: frame.assign(born=pd.to_datetime(frame.born).dt.tz_localize("UTC"))),
    "half precision": _frame(lambda frame: frame.assign(age=frame.age.astype("float32"))),
    "whole numbers with gaps": _frame(lambda frame: frame.assign(age=frame.age.astype("Int64"))),
    "durations": _frame(lambda frame: frame.assign(crp=pd.to_timedelta(frame.crp, unit="s"))),
    "texts that are no UTF-8": _frame(lambda frame: frame.assign(sex=[one.encode("utf-16") for one in frame.sex])),
    "parts": _frame(lambda frame: frame.assign(crp=[{"value": one} for one in frame.crp])),
    "a name twice": _frame(lambda frame: frame.rename(columns={"excess": " crp"})),
    "lists": _frame(lambda frame: frame.assign(crp=[[one] for one in frame.crp])),
    "bytes": _frame(lambda frame: frame.assign(sex=[one.encode() for one in frame.sex])),
    "truths": _frame(lambda frame: frame.assign(sex=frame.sex == "f")),
    "an index": _frame(lambda frame: frame.set_index(frame.index * 2)),
    "half of the file": _half,
}  # fmt: skip


def _base(*statements: str, wal: bool = False) -> Do:
    def damaged(path: Path, rows: Rows) -> None:
        write(path, rows)
        base = sqlite3.connect(path)
        for statement in statements:
            base.execute(statement)
        base.commit()
        if wal:  # the newest rows are only in the log, which was not copied
            base.execute("PRAGMA journal_mode=WAL")
            base.execute("DELETE FROM visits WHERE rowid % 2 = 0")
            base.commit()
            content = path.read_bytes()
            base.close()
            path.write_bytes(content)
        base.close()

    return damaged


BASES: Final[dict[str, Do]] = {
    "a log that was not copied": _base(wal=True),
    "numbers as texts": _base("UPDATE visits SET crp = CAST(crp AS TEXT)"),
    "bytes": _base("UPDATE visits SET sex = CAST(sex AS BLOB) WHERE rowid % 9 = 0"),
    "seconds for dates": _base("UPDATE visits SET born = strftime('%s', born) WHERE rowid % 9 = 0"),
    "days of Julius": _base("UPDATE visits SET born = julianday(born) WHERE rowid % 9 = 0"),
    "rows written again": _base(
        *("CREATE TABLE copy AS SELECT * FROM visits ORDER BY crp", "DROP TABLE visits"),
        "ALTER TABLE copy RENAME TO visits",
    ),
    "another name of the table": _base("ALTER TABLE visits RENAME TO v"),
    "another column": _base("ALTER TABLE visits ADD COLUMN x"),
    "half of the file": _half,
}  # fmt: skip


def _rows(change: Callable[[Rows], Rows]) -> Do:
    return lambda path, rows: write(path, change(rows))


DAMAGES: Final = (
    *(Damage(name, kind, _rows(change)) for name, change in CELLS.items() for kind in FORMATS),
    *(Damage(name, "csv", _text(change)) for name, change in TEXTS.items()),
    *(Damage(name, "xlsx", do) for name, do in BOOKS.items()),
    *(Damage(name, "parquet", do) for name, do in FRAMES.items()),
    *(Damage(name, "sqlite", do) for name, do in BASES.items()),
)


def _contract_of(kind: str) -> Contract:
    text = CONTRACT.format(format=FORMATS[kind])
    return parse_document(text.encode(), Contract, source="contract.yaml", consequence="Nothing was sent.")


def told(survey: Survey) -> set[str]:
    """The kinds of errors and warnings about a table, without those that chance makes."""
    found = examine(survey, Split(seed=0)).findings
    return {one.key for one in found if one.level != "note" and not one.key.startswith(_BY_CHANCE)}


def values_of(survey: Survey) -> list[list[object]]:
    """The values of a table, in an order that does not depend on that of its rows."""
    table = survey.table
    columns = [table.features[name] for name in sorted(table.features)]
    assert table.patients is not None
    assert table.target is not None
    lines = zip(table.patients, table.target.tolist(), *(one.tolist() for one in columns), strict=True)
    return sorted(([one, *("" if value != value else value for value in rest)] for one, *rest in lines), key=repr)


def outcome_of(damage: Damage, rows: Rows, wanted: list[list[object]], folder: Path) -> Outcome:
    """Damage a table, read it, and say what became of it."""
    path = folder / f"table.{damage.kind}"
    write(path, rows)
    if damage.kind == "sqlite":
        path.unlink()
    damage.do(path, rows)
    try:
        survey = survey_table(path, _contract_of(damage.kind))
        if not survey.mistakes and values_of(survey) == wanted:
            return "read_right"
        return "named" if told(survey) else "silent"
    except OperatorError:
        return "named"


def tried(seeds: range, damages: tuple[Damage, ...] = DAMAGES) -> Counter[Outcome]:
    """Count the outcomes of all damages to all tables. Each silent one is printed."""
    counts = Counter[Outcome]()
    for seed in seeds:
        rows = good_rows(seed)
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / "good.csv", rows)
            good = survey_table(Path(folder) / "good.csv", _contract_of("csv"))
            assert not told(good), told(good)
        for damage in damages:
            with tempfile.TemporaryDirectory() as folder:
                found = outcome_of(damage, rows, values_of(good), Path(folder))
            counts[found] += 1
            if found == "silent":
                print(f"silent: {damage.name} ({damage.kind}), table {seed}")
    return counts


if __name__ == "__main__":
    TABLES = int(sys.argv[1]) if sys.argv[1:] else 3
    COUNTS = tried(range(TABLES))
    shown = " ".join(f"{name}={COUNTS[name]}" for name in ("read_right", "named", "silent"))
    print(f"tables={TABLES} damages={len(DAMAGES)} {shown}")
    sys.exit(1 if COUNTS["silent"] else 0)
