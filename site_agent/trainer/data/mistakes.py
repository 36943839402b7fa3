"""Collects the mistakes in a table by column, kind and row. It never stores or shows the value of a cell.

For each kind the first rows are stored and the others counted. So a table with a million wrong cells needs as little
memory as a table with five.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from protos.errors import ConfigurationError, DataError, to_install
from protos.plan.documents import nearest_name

KEPT_ROWS: Final = 20
CORRECT_TABLE: Final = "Correct the table, or its contract if the table is right, and start again."
_SHOWN_ROWS: Final = 5
_SHOWN_MISTAKES: Final = 20


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """One kind of mistake in a table: its words, which contain no cell, and its column, None for the whole table.

    `rows` are the first of `count` rows with the problem, as a spreadsheet counts them.
    """

    flaw: str
    column: str | None = None
    rows: tuple[int, ...] = ()
    count: int = 0

    @property
    def words(self) -> str:
        """The mistake as text: the name of the column, if it concerns a column, and the problem."""
        return self.flaw if self.column is None else f"column {self.column}: {self.flaw}"

    @property
    def line(self) -> str:
        """The mistake and its rows, as one line for a person."""
        return as_sentences(self.words, where(self.rows, self.count))


class Mistakes:
    """The mistakes found in a table, in order."""

    def __init__(self, kept_rows: int = KEPT_ROWS, *, collects_rows: bool = False) -> None:
        """Start without mistakes. `flawed` has the numbers of all their rows if they are collected."""
        self._kept_rows = kept_rows
        self._rows: dict[tuple[str | None, str], list[int]] = {}
        self._counts: dict[tuple[str | None, str], int] = {}
        self.flawed: set[int] | None = set() if collects_rows else None

    def add(self, flaw: str, rows: Sequence[int] = (), *, column: str | None = None) -> None:
        """Add a mistake, or add rows to an earlier mistake of the same column and kind."""
        kind = (column, flaw)
        kept = self._rows.setdefault(kind, [])
        kept.extend(rows[: self._kept_rows - len(kept)])
        if self.flawed is not None:
            self.flawed.update(rows)
        self._counts[kind] = self._counts.get(kind, 0) + len(rows)

    @property
    def found(self) -> tuple[Mistake, ...]:
        """All kinds of mistakes in the table, in the order in which they were found."""
        return tuple(
            Mistake(flaw=kind[1], column=kind[0], rows=tuple(rows), count=self._counts[kind])
            for kind, rows in self._rows.items()
        )

    def stop_if_any(self) -> None:
        """Raise a DataError that lists all mistakes of the table. Without mistakes, do nothing."""
        if self._rows:
            refuse([mistake.line for mistake in self.found])


def where(rows: Sequence[int], count: int) -> str:
    """Return row numbers as text, for example " in rows 3, 8 and 5 more". Return an empty text without rows."""
    shown = rows[:_SHOWN_ROWS]
    words = f" in row{'s' if len(shown) > 1 else ''} {', '.join(map(str, shown))}" if shown else ""
    others = count - len(shown)
    return f"{words}{f' and {others} more' if others > 0 else ''}"


def as_sentences(words: str, rows: str = "") -> str:
    """Return a finding as sentences: the problem with its rows, then a question or a remedy."""
    found, *rest = words.split("; ")
    parts = [f"{found}{rows}", *(part[0].upper() + part[1:] for part in rest)]
    return " ".join(part if part.endswith("?") else f"{part}." for part in parts)


def unusable(*, what: str, remedy: str) -> DataError:
    """Return the error message for a table, or images of a table, that cannot be used."""
    return DataError(what=what, consequence="The table was not used and nothing was sent.", remedy=remedy)


def not_readable(path: Path, cause: OSError) -> DataError:
    """Return the error about a table that is a folder, or that this user account may not read."""
    what = "is a folder" if isinstance(cause, IsADirectoryError) else f"cannot be read: {cause.strerror}"
    remedy = "Name a file that the user account may read. If a table has several, join them, or name one with a query."
    return unusable(what=f"The table {cause.filename or path} {what}.", remedy=remedy)


def not_installed(package: str, extra: str) -> ConfigurationError:
    """Return the error about a library that a kind of table or image needs."""
    return ConfigurationError(
        what=f"The package {package} is not installed, but it is needed to read this table or its images.",
        consequence="The table was not used and nothing was sent.",
        remedy=to_install(extra),
    )


def refuse(lines: Sequence[str], remedy: str = CORRECT_TABLE) -> NoReturn:
    """Raise a DataError that lists the first mistakes, one in each line, and the number of further mistakes."""
    shown = list(lines[:_SHOWN_MISTAKES])
    if len(lines) > len(shown):
        shown.append(f"and {len(lines) - len(shown)} other kinds of mistakes, also in other columns")
    raise unusable(what="The table cannot be used:\n" + "\n".join(f"    {line}" for line in shown), remedy=remedy)


def like_column(name: str, found: Sequence[str], declared: Container[str]) -> str:
    """Return a hint to a column with a similar name. It gives the column's number, as its name could be a patient's."""
    if (near := nearest_name(name, [other for other in found if other and other not in declared])) is None:
        return ""
    how = "the same name but for capitals" if near.lower() == name.lower() else "nearly the same name"
    return f"; column number {found.index(near) + 1} has {how}: rename one of them, in the table or in the contract"
