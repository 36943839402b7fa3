"""Defines a finding about a hospital's table: a sentence without any patient's value, and the rows that it is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.run_table import row_numbers
from site_agent.trainer.data.tables import Table

Level: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding about a table.

    Attributes:
        level: an error stops training, a person must accept a warning, and a note is only shown.
        key: the kind of finding, often followed by a column; equal for the same subject.
        words: one sentence without its full stop.
        rows: the first rows concerned, as a spreadsheet counts them.
        count: the number of all rows concerned; 0 if the finding is not about rows.
    """

    level: Level
    key: str
    words: str
    rows: tuple[int, ...] = ()
    count: int = 0


def counted(number: int, word: str) -> str:
    """Return a number with its noun: 1 error, 2 errors."""
    return f"{number} {word}{'' if number == 1 else 's'}"


def row_warning(table: Table, key: str, words: str, is_so: npt.NDArray[np.bool_]) -> list[Finding]:
    """Return a warning about the rows for which `is_so`, bool (rows,), is true. Return an empty list for no row."""
    places = np.flatnonzero(is_so)
    if not len(places):
        return []
    return [Finding(level="warning", key=key, words=words, rows=row_numbers(table, places), count=len(places))]
