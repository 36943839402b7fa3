"""Reads tables and guesses their formats. If a table has errors, suggests which column or setting to correct.

The guess of a text file's format has encoding, delimiter, decimal comma and header row.
"""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from protos.errors import DataError
from site_agent.desk.examination.suspicious_numbers import unit_hint
from site_agent.trainer.data.cell_rules import MISSING, NOT_A_NUMBER
from site_agent.trainer.data.contract import (
    Contract,
    ExcelFormat,
    Format,
    MaskTarget,
    ParquetFormat,
    SqlFormat,
    TableFormat,
)
from site_agent.trainer.data.mistakes import refuse, unusable
from site_agent.trainer.data.tables import DELIMITER, Survey, Table, survey_new_rows, survey_table

_LOOKED_AT: Final = 1 << 18
_DELIMITERS: Final = ("\t", ";", "|", ",")
_COMMA_NUMBER: Final = re.compile(r"[+-]?\d+,\d+")
_POINT_NUMBER: Final = re.compile(r"[+-]?\d+\.\d+")
_THOUSANDS: Final = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
_NUMBER: Final = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")

_DATE: Final = re.compile(r"\d{4}-\d\d?-\d\d?|\d\d?[./-]\d\d?[./-]\d{2,4}")
_IN_ITS_PROGRAM: Final = "Export the table as CSV in the program that wrote it, with codes and not with labels."
_KINDS: Final = {
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": ("an old Excel workbook (xls)", "Save it as xlsx or as CSV."),
    b"PAR1": (
        "a Parquet file",
        "Rename the file so that its name ends with .parquet, and use `format: {kind: parquet}` in the contract.",
    ),
    b"\x1f\x8b": ("a compressed file (gzip)", "Decompress the file, for example with gunzip."),
    b"SQLite format 3\x00": (
        "an SQLite database",
        "Give a file with a query: `site-agent data describe --query FILE`.",
    ),
    b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\xc2\xea\x81\x60": ("a SAS data set", _IN_ITS_PROGRAM),
    b"HEADER RECORD*******LIB": ("a SAS transport file", _IN_ITS_PROGRAM),
    b"$FL2@(#)": ("an SPSS file", _IN_ITS_PROGRAM),
    b"$FL3@(#)": ("an SPSS file", _IN_ITS_PROGRAM),
    b"<stata_dta>": ("a Stata file", _IN_ITS_PROGRAM),
    b"\x00\x01\x00\x00Standard ": ("an Access database", "Open it in Access and export the table as CSV."),
    b"RDX": ("an R workspace", "In R, write the table with write.csv."),
    b"{\\rtf": ("a text document (rtf)", "Export the table as CSV or as an Excel workbook (xlsx)."),
    b"{": ("a JSON file, such as a FHIR export", "Export the table as CSV, with one row for each patient."),
    b"<?xml": ("an XML file", "Export the table as CSV or as an Excel workbook (xlsx)."),
    b"%PDF": ("a PDF document", "Export the table as CSV or as an Excel workbook (xlsx)."),
}


def read_with_hints(path: Path, contract: Contract, scratch: Path | None) -> Table:
    """Read a table and check it against its contract. Raises DataError with all errors and suggestions."""
    survey = survey_with_hints(path, contract, scratch=scratch)
    if survey.mistakes:
        refuse([mistake.line for mistake in survey.mistakes], survey.hints)
    return survey.table


def survey_with_hints(
    path: Path, contract: Contract, *, scratch: Path | None = None, is_new: bool = False, has_outcome: bool = False
) -> Survey:
    """Read a table and list its errors like `survey_table`, with suggestions for correcting them.

    Args:
        scratch: the folder for files with the pixels of images; None keeps pixels in memory.
        is_new: whether the rows are new patients for a trained model. They are read like `survey_new_rows`.
        has_outcome: whether the outcome of new rows is known and read.
    """
    try:
        if is_new:
            survey = survey_new_rows(path, contract, has_outcome=has_outcome, scratch=scratch)
        else:
            survey = survey_table(path, contract, scratch=scratch)
    except DataError as error:
        if hint := format_hint(path, contract.format, is_new=is_new):
            raise DataError(what=error.what, consequence=error.consequence, remedy=hint) from None
        raise
    may_differ = any(one.flaw == NOT_A_NUMBER.words or one.flaw.endswith(DELIMITER) for one in survey.mistakes)
    hint = format_hint(path, contract.format, is_new=is_new) if may_differ else None
    own = () if is_new else (*_missing_outcome(survey, contract), *_units(survey))
    return replace(survey, hints=(*([] if hint is None else [hint]), *own))


def _missing_outcome(survey: Survey, contract: Contract) -> Iterator[str]:
    target = contract.target
    is_missing = any(one.column == target.name and one.flaw == MISSING.words for one in survey.mistakes)
    if is_missing and not isinstance(target, MaskTarget):
        yield (
            f"Complete the missing values of {target.name} in the table. Or write `missing: drop` for this column in "
            "the contract, so that rows without this value are not used."
        )


def _units(survey: Survey) -> Iterator[str]:
    for name, outside in survey.outside.items():
        values = survey.table.features.get(name, survey.table.target)
        if values is not None and (hint := unit_hint(name, values, outside)) is not None:
            yield hint


def guess_format(path: Path, *, sheet: str | None, query: str | None) -> Format:
    """Guess a table's format from its name and its first 256 KiB.

    Raises:
        OSError: the file cannot be read.
        DataError: the file is of another kind, such as an archive.
    """
    if query is not None:
        return SqlFormat(kind="sql", query=query)
    suffix = path.suffix.lower()
    if suffix in (".xlsx", ".xlsm"):
        return ExcelFormat(kind="excel", sheet=sheet)
    if suffix in (".parquet", ".pq"):
        return ParquetFormat(kind="parquet")
    with path.open("rb") as file:
        start = file.read(_LOOKED_AT)
    if (kind := _other_kind(path, start)) is not None:
        what, remedy = kind
        raise unusable(what=f"The table {path} is {what}, and not a text file.", remedy=remedy)
    return guess_text(start)


def _other_kind(path: Path, start: bytes) -> tuple[str, str] | None:
    """Return what a file is that is no text, by its first bytes, and the remedy. Return None for a text file."""
    if start.startswith(b"PK\x03\x04"):
        try:
            with zipfile.ZipFile(path) as archive:
                is_workbook = any(name.startswith("xl/") for name in archive.namelist())
        except zipfile.BadZipFile:
            is_workbook = False
        if is_workbook:
            return "an Excel workbook", (
                "Rename the file so that its name ends with .xlsx, and use `format: {kind: excel}` in the contract. Or "
                "save it as CSV."
            )
        return "a zip archive", "Unpack the archive, and name the file of the table in it."
    return next((kind for mark, kind in _KINDS.items() if start.startswith(mark)), None)


def format_hint(path: Path, declared: Format, *, is_new: bool = False) -> str | None:
    """Return advice about the contract's setting that makes a text file readable. Return None if there is no advice.

    Args:
        is_new: whether the file has new patients for a trained model; its contract no longer changes.
    """
    if not isinstance(declared, TableFormat):
        return None
    try:
        with path.open("rb") as file:
            start = file.read(_LOOKED_AT)
        if (kind := _other_kind(path, start)) is not None:
            return f"The file of the table is {kind[0]}. {kind[1]}"
        if not start.strip():
            return None
        seems = guess_text(start)
    except (OSError, csv.Error):  # the reader of tables reports such damage
        return None
    # Every file is valid text in both one-byte encodings, so a guess cannot show that the declared encoding is wrong.
    is_other = seems.encoding != declared.encoding and "utf-16" in (seems.encoding, declared.encoding)
    is_other = is_other or (declared.encoding == "utf-8" and seems.encoding != "utf-8")
    wrong = {
        "delimiter": seems.delimiter != declared.delimiter,
        "encoding": is_other,
        "decimal": seems.decimal != declared.decimal and (seems.decimal == "," or _has_points(start, seems)),
    }
    keys = [f"{key}: {json.dumps(getattr(seems, key))}" for key, is_wrong in wrong.items() if is_wrong]
    was = [f"{key}: {json.dumps(getattr(declared, key))}" for key, is_wrong in wrong.items() if is_wrong]
    if not keys:
        return None
    seen, said = ", ".join(keys), ", ".join(was)
    if is_new:
        return f"The file seems to have {seen}. Save the file with {said}, like the table that trained the model."
    return (
        f"The file seems to have {seen}, but the contract declares {said}. Write {seen} under `format` in the contract."
    )


def guess_text(start: bytes) -> TableFormat:
    """Guess the format of a text file from its first bytes. A person must check this guess."""
    encoding = _encoding(start)
    lines = _lines(start, encoding)
    delimiter = max(_DELIMITERS, key=lambda mark: _agreement(lines, mark))
    rows = list(csv.reader(lines[:200], delimiter=delimiter))
    return TableFormat(
        header=_has_header(rows),
        delimiter=delimiter,  # type: ignore[arg-type]  # one of the four
        encoding=encoding,  # type: ignore[arg-type]  # one of the encodings that _encoding returns
        decimal="," if delimiter != "," and _has_commas(rows) else ".",
    )


def _lines(start: bytes, encoding: str) -> list[str]:
    text = start.decode(encoding, errors="replace").removeprefix("\ufeff")
    lines = [line for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n") if line.strip()]
    return lines[:-1] if len(start) == _LOOKED_AT and len(lines) > 1 else lines  # the last one may be cut


def _encoding(start: bytes) -> str:
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "utf-16"
    try:
        # Cut off after the last line end, because the last character may be incomplete.
        start[: start.rfind(b"\n") + 1 or None].decode("utf-8")
    except UnicodeDecodeError:
        return "windows-1252"
    return "utf-8"


def _agreement(lines: list[str], delimiter: str) -> tuple[int, int]:
    """Return how many rows have the most common number of cells, and this number. If it is 1, return two zeros."""
    try:
        widths = Counter(len(row) for row in csv.reader(lines[:200], delimiter=delimiter))
    except csv.Error:
        return (0, 0)
    width, count = max(widths.items(), key=lambda pair: (pair[1], pair[0]), default=(0, 0))
    return (count, width) if width > 1 else (0, 0)


def _shape(cell: str) -> str:
    return re.sub(r"[^\W\d]", "a", re.sub(r"\d", "9", cell))


def _has_header(rows: list[list[str]]) -> bool:
    """Return whether the first row is a header: all its cells are different words, and none is like a value below it.

    The first cell can be empty, because pandas and R write row numbers there. The last cells can be empty, because some
    programs end each row with a separator.
    """
    if not rows:
        return True
    first = [cell.strip() for cell in rows[0]]
    names = first[:1] if first[0] else []
    names += first[1:]
    while names and not names[-1]:
        names.pop()
    columns = [[row[place].strip() for row in rows[1:] if place < len(row)] for place in range(len(first))]
    is_named = all(cell and not _is_value(cell, column) for cell, column in zip(names, columns, strict=False))
    return bool(names) and is_named and len(set(names)) == len(names)


def _is_value(cell: str, column: list[str]) -> bool:
    """Return whether a cell of the first row is one of its column's values, so that no patient is taken for names."""
    if _NUMBER.fullmatch(cell) or _DATE.match(cell) or cell == "?":
        return True
    shape = _shape(cell)
    is_numbered = "9" in shape and sum(_shape(other) == shape for other in column) > len(column) / 2
    return is_numbered or column.count(cell) > 1


def _has_commas(rows: list[list[str]]) -> bool:
    return _counted(rows, _COMMA_NUMBER) > _counted(rows, _POINT_NUMBER)


def _has_points(start: bytes, seems: TableFormat) -> bool:
    """Return whether more numbers of a file have a decimal point than a decimal comma. 1.234 can be a thousand."""
    rows = list(csv.reader(_lines(start, seems.encoding)[:200], delimiter=seems.delimiter))
    return _counted(rows, _POINT_NUMBER) - _counted(rows, _THOUSANDS) > _counted(rows, _COMMA_NUMBER)


def _counted(rows: list[list[str]], pattern: re.Pattern[str]) -> int:
    """Return in how many cells, without those of the first row, a number is written in one way."""
    return sum(1 for row in rows[1:] for cell in row if pattern.fullmatch(cell.strip()))
