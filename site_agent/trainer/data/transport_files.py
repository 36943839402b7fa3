"""Reads from a SAS transport file what pyreadstat loses: special missing values, a second table, a missing end.

The file has records of 80 bytes. Headers in them name the parts; behind the last one the rows follow each other without
a mark, and blanks fill the last record (SAS Institute, "The Record Layout of a Data Set in SAS Transport Format").
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from site_agent.trainer.data.mistakes import refuse

_RECORD: Final = 80
_TABLE: Final = b"HEADER RECORD*******MEMB"
_COLUMNS: Final = b"HEADER RECORD*******NAM"
_ROWS: Final = b"HEADER RECORD*******OBS"
_ROWS_AT_ONCE: Final = 1 << 14


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """Where the rows begin, their bytes, how many there are if the file says so, and each number's place and bytes."""

    start: int
    width: int
    stated_rows: int
    numbers: tuple[tuple[int, slice], ...]


def special_cells(path: Path) -> Iterator[tuple[int, int, str]]:
    """Yield row (from 0), place and letter of each special missing value, by rows.

    A number has up to eight bytes; of a special missing value the first is a letter and the others are zero.

    Raises:
        DataError: the file has several tables, or ends too early.
    """
    layout, first, rest = _layout(path), 0, b""
    with path.open("rb") as file:
        file.seek(layout.start)
        while layout.width and (block := file.read(layout.width * _ROWS_AT_ONCE)):
            whole = len(block) // layout.width * layout.width
            rest = block[whole:]
            rows = np.frombuffer(block[:whole], np.uint8).reshape(-1, layout.width)
            found = []
            for place, part in layout.numbers:
                cells = rows[:, part]
                is_letter = ((cells[:, 0] >= ord("A")) & (cells[:, 0] <= ord("Z"))) | (cells[:, 0] == ord("_"))
                marked = np.flatnonzero(is_letter & ~cells[:, 1:].any(axis=1))
                found += [(first + int(row), place, chr(cells[row, 0])) for row in marked]
            yield from sorted(found)
            first += len(rows)
    if rest.strip(b" ") or first < layout.stated_rows:
        refuse(["the file ends too early; copy or export it again"])


def _layout(path: Path) -> _Layout:
    tables, size, start, stated = 0, 0, 0, b""
    parts = np.empty((0, 140), np.uint8)
    with path.open("rb") as file:
        while len(record := file.read(_RECORD)) == _RECORD:
            if record.startswith(_TABLE):
                tables += 1
                size = int(record[74:78])  # of the description of a column
            elif record.startswith(_COLUMNS) and not start:
                count = int(record[52:58])
                described = file.read(-(-size * count // _RECORD) * _RECORD)
                parts = np.frombuffer(described[: size * count], np.uint8).reshape(count, size)
            elif record.startswith(_ROWS) and not start:
                start, stated = file.tell(), record[48:63].strip()
    if tables > 1:
        refuse(["the transport file holds several tables; write one table into each file"])
    if record or not start:
        refuse(["the file ends too early; copy or export it again"])
    lengths = [int.from_bytes(part[4:6].tobytes(), "big") for part in parts]
    begins = [int.from_bytes(part[84:88].tobytes(), "big") for part in parts]
    numbers = [
        (place, slice(begins[place], begins[place] + lengths[place]))
        for place in range(len(parts))
        if parts[place, 1] == 1 and lengths[place] > 1
    ]
    rows = int(stated) if stated.isdigit() else 0
    return _Layout(start=start, width=sum(lengths), stated_rows=rows, numbers=tuple(numbers))
