"""Reads the rows of a sheet in an Excel workbook one by one.

For a formula, the value that Excel saved is read. Nothing is computed and no macro runs.
"""

from __future__ import annotations

import itertools
import warnings
import zipfile
import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final
from xml.etree.ElementTree import ParseError

from openpyxl import load_workbook
from openpyxl.utils.exceptions import InvalidFileException

from site_agent.trainer.data.contract import ExcelFormat
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.sources.blocks import Record, text_of

# A workbook is a compressed archive. A small file can unpack to more than any memory.
_LARGEST_UNPACKED_BYTES: Final = 1 << 32
_DAMAGED: Final = (
    *(zipfile.BadZipFile, zlib.error, InvalidFileException, ParseError, EOFError, RuntimeError),
    *(KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError),
)


def excel_records(path: Path, form: ExcelFormat) -> Generator[Record, None, None]:
    """Yield the header and all rows that are not blank, each with its number. A damaged file raises DataError."""
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                unpacked = sum(entry.file_size for entry in archive.infolist())
        except zipfile.BadZipFile:
            unpacked = -1
        if unpacked < 0:
            refuse(["the file is not an Excel workbook (xlsx); save an older xls file as xlsx"])
        if unpacked > _LARGEST_UNPACKED_BYTES:
            refuse([f"the workbook unpacks to more than {_LARGEST_UNPACKED_BYTES} bytes; export the sheet as CSV"])
        file.seek(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about styles and extensions, which are not needed
                workbook = load_workbook(file, read_only=True, data_only=True)
        except _DAMAGED:
            workbook = None
        if workbook is None:
            refuse(["the workbook is damaged"])
        try:
            if form.sheet is not None and form.sheet not in workbook.sheetnames:
                refuse([f"the workbook has no sheet of the declared name, but {len(workbook.sheetnames)} others"])
            if not workbook.worksheets:
                refuse(["the workbook has no sheet"])
            sheet = workbook[form.sheet] if form.sheet is not None else workbook.worksheets[0]
            yield from _rows(sheet.iter_rows(values_only=True))
        finally:
            workbook.close()


def sheet_names(path: Path) -> list[str]:
    """Return the names of a workbook's sheets. The workbook was read before, so it is not damaged."""
    with path.open("rb") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        workbook = load_workbook(file, read_only=True)
        try:
            return [sheet.title for sheet in workbook.worksheets]
        finally:
            workbook.close()


def _rows(rows: Iterator[tuple[object, ...]]) -> Generator[Record, None, None]:
    width = 0
    for row in itertools.count(1):
        values = _next(rows)
        if values is None:
            return
        cells = [text_of(value) for value in values]
        while cells and cells[-1] == "":
            cells.pop()  # a row can have empty cells at its end, depending on how the sheet was edited
        if not cells:
            continue
        width = width or len(cells)
        yield row, cells + [""] * (width - len(cells))


def _next(rows: Iterator[tuple[object, ...]]) -> tuple[object, ...] | None:
    """Return the next row, or None after the last row. Raise an error if the sheet is damaged at this row."""
    try:
        return next(rows, None)
    except _DAMAGED:
        pass  # the error's text quotes the content
    return refuse(["the sheet is damaged"])
