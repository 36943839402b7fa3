"""Reads the rows of a delimited text file, with bounded memory.

The file is read some megabytes at a time. A piece without anything unusual becomes columns at once (plain.py). Any
other piece is read line by line with Python's own reader, with the same result. Undecodable bytes become marked
characters, so that their line can be reported. So there is no decoding error, which would quote the file's bytes.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final

import numpy as np

from site_agent.trainer.data.contract import TableFormat
from site_agent.trainer.data.mistakes import refuse
from site_agent.trainer.data.sources.blocks import Block, Names, Opened, blocks_of
from site_agent.trainer.data.sources.plain import plain_columns

LONGEST_LINE: Final = 1 << 24
_PIECE_BYTES: Final = 1 << 21
_LONGEST_CHARACTER_BYTES: Final = 4
_UNDECODABLE: Final = b"\x80"  # in UTF-8
_UNDECODED: Final = re.compile("[\ud800-\udfff]")


def opened_text(file: BinaryIO, form: TableFormat) -> Opened:
    """Read a text file, opened for bytes at its beginning, as blocks of columns. Blank rows are skipped.

    Raises:
        DataError: a line is damaged, in another encoding, or far too long; reported by its number.
    """
    table = _Pieces(file, form)
    return Opened(first=table.first(), rest=table.rest)


class _Narrowed:
    """Converts a file in UTF-16 to UTF-8. Damaged text becomes an undecodable byte."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._has_ended = file, False
        self._decoder = codecs.getincrementaldecoder("utf-16")("surrogatepass")

    def read(self, size: int) -> bytes:
        """Return the text of about the next `size` bytes of the file. Return an empty text at the end of the file."""
        while not self._has_ended:
            raw = self._file.read(size)
            self._has_ended = not raw
            if not raw:
                return _UNDECODABLE if self._decoder.getstate()[0] else b""  # half a character remains
            try:
                text = self._decoder.decode(raw)
            except UnicodeError:  # the file does not begin with a byte order mark
                self._has_ended = True
                return _UNDECODABLE
            if text:
                return text.encode("utf-8", "surrogatepass")
        return b""


class _Pieces:
    """Reads a file in pieces of whole lines. `row` and `line` count the rows and lines so far."""

    def __init__(self, file: BinaryIO, form: TableFormat) -> None:
        is_wide = form.encoding == "utf-16"
        self._encoding, self._delimiter = "utf-8" if is_wide else form.encoding, form.delimiter
        self._pieces = _pieces(_Narrowed(file).read if is_wide else file.read, is_marked=form.encoding == "utf-8")
        self._open = io.StringIO()
        self._left = 0
        self._started = 0
        self.row = self.line = 0

    def first(self) -> Names | None:
        return next(self._records(), None)

    def rest(self, width: int, places: Sequence[int]) -> Iterator[Block]:
        while (piece := self._next_piece()) is not None:
            raw = piece if self._encoding == "utf-8" or piece.isascii() else self._recoded(piece)
            is_short = raw is not None and len(raw) <= LONGEST_LINE
            found = plain_columns(raw, width, places, self._delimiter) if is_short and raw is not None else None
            if found is None:
                self._begin(piece)
                yield from blocks_of(self._records_of_piece(), width, places)
                continue
            count, columns = found
            rows = np.arange(self.row + 1, self.row + 1 + count, dtype=np.int64)
            self.row, self.line = self.row + count, self.line + piece.count(b"\n")
            yield Block(rows=rows, columns=columns)

    def _next_piece(self) -> bytes | None:
        if self._left:
            rest, self._left = self._open.read(), 0
            return rest.encode(self._encoding, "surrogateescape")
        return next(self._pieces, None)

    def _begin(self, piece: bytes) -> None:
        text = piece.decode(self._encoding, "surrogateescape")
        self._open, self._left, self._started = io.StringIO(text, newline=""), len(text), self._started + 1

    def _recoded(self, piece: bytes) -> bytes | None:
        try:
            return piece.decode(self._encoding).encode()
        except UnicodeDecodeError:
            return None

    def _read_lines(self) -> Iterator[str]:
        while True:
            if not self._left:
                piece = next(self._pieces, None)
                if piece is None:
                    return
                self._begin(piece)
            line = self._open.readline(LONGEST_LINE + 1)
            self._left -= len(line)
            self.line += 1
            _check(line, self.line)
            yield line

    def _records(self) -> Iterator[Names]:
        for row, cells in _records(self._read_lines(), self._delimiter, self.row):
            self.row = row
            yield row, cells

    def _records_of_piece(self) -> Iterator[Names]:
        """Yield the records that begin in the current piece. The last record can end in the next piece."""
        started = self._started
        # A blank record is not returned. So the end of the piece is noticed only after the next record, which can be in
        # the next piece. The part of the next piece after this record is then read again.
        for record in self._records():
            yield record
            if not self._left or self._started > started:
                return


def _pieces(read_some: Callable[[int], bytes], *, is_marked: bool) -> Iterator[bytes]:
    """Yield whole lines, some megabytes each. A line that is far too long is yielded in part, and refused later."""
    rest = b""
    is_first = True
    while read := read_some(_PIECE_BYTES):
        piece = rest + read
        if is_first and is_marked and len(piece) >= len(codecs.BOM_UTF8):
            piece = piece.removeprefix(codecs.BOM_UTF8)
            is_first = False
        # After a carriage return at the end, the line feed of the same line end can follow.
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r", 0, len(piece) - 1)) + 1
        if not end and len(piece) > _LONGEST_CHARACTER_BYTES * (LONGEST_LINE + 1):
            end = len(piece)
        rest = piece[end:]
        if end:
            yield piece[:end]
    if rest:
        yield rest


def _records(lines: Iterator[str], delimiter: str, row: int) -> Iterator[Names]:
    """Yield the records that are not blank, counted from row + 1."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        for cells in reader:
            row += 1
            if cells:
                yield row, cells
    except csv.Error:
        failed = row + 1
    else:
        return
    refuse([f"row {failed}: a quotation mark is not closed, or a cell is far too long"])


def _check(line: str, number: int) -> None:
    # Otherwise a damaged file without line ends would be read into memory completely.
    if len(line) > LONGEST_LINE:
        refuse([f"line {number}: it has more than {LONGEST_LINE} characters; a line end is missing"])
    if "\0" in line:
        refuse([f"line {number}: it has a NUL byte: the file is damaged, binary or in UTF-16"])
    if not line.isascii() and _UNDECODED.search(line):
        refuse([f"line {number}: it is not text in the declared encoding"])
