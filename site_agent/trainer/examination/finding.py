"""One finding of a table's examination, and whether training may continue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["error", "warning", "note"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding in words that hold no value of any patient.

    Attributes:
        level: an error stops; a warning has to be accepted by a person; a note is only told.
        key: what it is about, the same for the same thing: a kind and perhaps a column.
        words: one sentence without its full stop.
        rows: the first rows concerned, as a spreadsheet counts them.
        count: of all rows concerned; 0 where it is not about rows.
    """

    level: Level
    key: str
    words: str
    rows: tuple[int, ...] = ()
    count: int = 0


def counted(number: int, word: str) -> str:
    """Return a number with its noun: 1 error, 2 errors."""
    return f"{number} {word}{'' if number == 1 else 's'}"
