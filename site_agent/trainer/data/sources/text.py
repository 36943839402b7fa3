"""Rows of a delimited text file, in bounded memory whatever the file holds.

Undecodable bytes come through as marked characters, so that their line can be told and no decoding error, which
carries the file's bytes, ever exists.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final, TextIO

from site_agent.trainer.data.formats import TableFormat
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.sources.records import Record

LONGEST_LINE: Final = 1 << 24
_UNDECODED: Final = re.compile("[\ud800-\udfff]")


def text_records(path: Path, form: TableFormat) -> Generator[Record, None, None]:
    """The rows that are not blank, each with its number, the header among them.

    Raises:
        DataError: a line is damaged, in another encoding, or far too long; told by its number.
        OSError: the file cannot be read.
    """
    encoding = "utf-8-sig" if form.encoding == "utf-8" else form.encoding
    with path.open(encoding=encoding, errors="surrogateescape", newline="") as file:
        reader = csv.reader(_lines(file), delimiter=form.delimiter, strict=True)
        row = 0
        try:
            for row, cells in enumerate(reader, start=1):
                if cells:
                    yield row, cells
        except csv.Error:
            failed = row + 1
        else:
            return
    refuse([f"row {failed}: a quotation mark is not closed, or a cell is far too long"])


def _lines(file: TextIO) -> Iterator[str]:
    number = 0
    while line := _line(file, number + 1):
        number += 1
        # A line without an end, in a damaged file, would otherwise be read into memory as a whole.
        if len(line) > LONGEST_LINE:
            refuse([f"line {number}: it has more than {LONGEST_LINE} characters; a line end is missing"])
        if "\0" in line:
            refuse([f"line {number}: it holds a NUL byte, as a damaged or binary file does, or one in UTF-16"])
        if not line.isascii() and _UNDECODED.search(line):
            refuse([f"line {number}: it is not text in the declared encoding"])
        yield line


def _line(file: TextIO, number: int) -> str:
    try:
        line = file.readline(LONGEST_LINE + 1)
    except UnicodeError:  # UTF-16 without its mark, or of an odd length; the error would quote bytes
        line = None
    if line is None:
        refuse([f"line {number}: it is not text in the declared encoding"])
    return line
