"""Reads one cell of text. Only this file decides what a contract allows.

All cells are read by these rules: those of a site's own table, of its new rows and of both loaders of an export. An
export includes the text of this file in its loaders, so this file imports only Python's own modules. A rule is plain
data: `facts` writes it into model.json and desk/export/row_reader.py reads it back. No function here raises, because a
parser's exception would quote the cell.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

LARGEST_MAGNITUDE: Final = 1e100
LONGEST_NUMBER: Final = 400
UNKNOWN_POSITION: Final = -1.0
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_TIME: Final = re.compile(r"[ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?", re.ASCII)
# Bounded, so that no cell can require a number of a million digits. Longer cells stay text.
_PLAIN_NUMBER: Final = re.compile(r"[+-]?(\d{1,18}(\.\d{0,9})?|\.\d{1,9})([eE][+-]?\d{1,2})?", re.ASCII)


@dataclass(frozen=True)
class Flaw:
    """Why a cell does not fit, without the cell."""

    words: str


NOT_A_NUMBER: Final = Flaw("text where a number is declared")
TOO_LARGE: Final = Flaw("a number too large to compute with")
PLAIN_DATE: Final = "%Y-%m-%d"
MISSING: Final = Flaw("a missing value (the contract refuses it)")
UNDECLARED: Final = Flaw("a code that is not declared")
NOT_A_DATE: Final = Flaw("no date as the declared pattern writes it")
IN_THE_FUTURE: Final = Flaw("a date in the future")
ABSENT: Final = Flaw("it is missing")
LONGEST_CELL: Final = 100_000  # below the 131,072 characters that Python's reader of text files accepts
TOO_LONG: Final = Flaw(f"more than {LONGEST_CELL:,} characters")
MOST_ACCENTS: Final = 30  # on one letter, as in Unicode's stream-safe texts (UAX 15, section 13)
TOO_MANY_ACCENTS: Final = Flaw(f"a letter with more than {MOST_ACCENTS} accents")
_WORD: Final = re.compile(r"\w\w+")
_REMEMBERED_TERMS: Final = 1 << 16
_LONGEST_REMEMBERED: Final = 40  # characters: rows of endless words would fill the memory


def canonical_code(text: str, decimal: str = ".") -> str:
    """Return a code in its compared spelling. `3`, `3.0` and ` 3` are the same code.

    Args:
        text: a cell or a declared code.
        decimal: the character between whole and fraction in `text`, "." or ",".

    Returns:
        the shortest plain decimal number if the text is one, otherwise the text without
        surrounding blanks.
    """
    stripped = text.strip()
    number = stripped if decimal == "." else stripped.replace(".", " ").replace(decimal, ".")
    if not _PLAIN_NUMBER.fullmatch(number):
        return stripped
    value = Decimal(number)
    return f"{value.normalize():f}" if value else "0"


class NumberRule:
    """A measured number: which cells are missing, and between which limits a value lies."""

    def __init__(
        self, markers: Iterable[str], limits: tuple[float | None, float | None], *, refuses_missing: bool
    ) -> None:
        """`markers` say that a value is missing; of `limits` None is open; `refuses_missing`: a gap is a flaw."""
        self.markers, self.limits, self.refuses_missing = frozenset(markers), limits, refuses_missing
        self.words = frozenset(marker for marker in self.markers if not _NUMBER.fullmatch(marker))
        self.numbers = frozenset(float(marker) for marker in self.markers - self.words)
        self.low = -math.inf if limits[0] is None else limits[0]
        self.high = math.inf if limits[1] is None else limits[1]
        self.outside = Flaw(f"a number outside the declared range {self.low:g} to {self.high:g}")
        self.missing: float | Flaw = MISSING if refuses_missing else math.nan

    @property
    def facts(self) -> dict[str, Any]:
        """The rule as plain data."""
        return {
            "kind": "number",
            "missing": sorted(self.markers),
            "refuses_missing": self.refuses_missing,
            "range": list(self.limits),
        }

    def read(self, cell: str, decimal: str = ".") -> float | Flaw:
        """Return the number of a cell; NaN if missing."""
        text = cell.strip()
        if text in self.words:
            return self.missing
        if decimal != ".":
            text = text.replace(".", " ").replace(decimal, ".")
        if len(text) > LONGEST_NUMBER or not _NUMBER.fullmatch(text):
            return NOT_A_NUMBER
        value = float(text)
        if value in self.numbers:
            return self.missing
        # Squares of larger numbers would overflow when the spread of the column is computed.
        if abs(value) > LARGEST_MAGNITUDE:
            return TOO_LARGE
        return value if self.low <= value <= self.high else self.outside


class CodeRule:
    """One of several declared codes; a code wins over a marker that is spelt the same."""

    def __init__(
        self,
        codes: Mapping[str, float],
        markers: Iterable[str],
        *,
        missing: float | Flaw = UNKNOWN_POSITION,
        otherwise: float | Flaw = UNDECLARED,
    ) -> None:
        """`codes` and their numbers; what a missing value is, and what any other cell."""
        self.codes, self.markers, self.missing, self.otherwise = dict(codes), frozenset(markers), missing, otherwise
        self._values: dict[str, float | Flaw] = {**dict.fromkeys(self.markers, missing), **self.codes}

    @property
    def facts(self) -> dict[str, Any]:
        """The rule of a feature as plain data. The codes become numbers by their position."""
        codes = sorted(self.codes, key=self.codes.__getitem__)
        refuses = self.missing is MISSING
        return {"kind": "code", "missing": sorted(self.markers), "refuses_missing": refuses, "codes": codes}

    def read(self, cell: str, decimal: str = ".") -> float | Flaw:
        """Return the number of a cell's code."""
        return self._values.get(canonical_code(cell, decimal), self.otherwise)


class DateRule:
    """A date; whether it may be missing is decided by the interval that is counted from it."""

    def __init__(self, markers: Iterable[str], patterns: Sequence[str], *, refuses_future: bool) -> None:
        """`patterns` as strptime has them; in 2020-01-31 a time may follow, as spreadsheets and databases add one."""
        self.markers, self.patterns, self.refuses_future = frozenset(markers), tuple(patterns), refuses_future

    @property
    def facts(self) -> dict[str, Any]:
        """The rule as plain data."""
        pattern = self.patterns[0] if len(self.patterns) == 1 else list(self.patterns)
        missing = sorted(self.markers)
        return {"kind": "date", "missing": missing, "pattern": pattern, "refuses_future": self.refuses_future}

    def read(self, cell: str, today: date) -> float | Flaw:
        """Return days since the year 1; NaN if missing."""
        text = cell.strip()
        if text in self.markers:
            return math.nan
        found = {day for pattern in self.patterns if (day := _written_day(text, pattern)) is not None}
        if len(found) != 1:  # the contract has no two patterns that read one text as different days
            return NOT_A_DATE
        return self.judged(float(found.pop().toordinal()), today)

    def judged(self, day: float, today: date) -> float | Flaw:
        """Return a day since the year 1, or a flaw if the contract refuses future days."""
        return IN_THE_FUTURE if self.refuses_future and day > today.toordinal() else day


def _written_day(text: str, pattern: str) -> date | None:
    """A date as one pattern writes it."""
    is_plain = pattern == PLAIN_DATE
    if is_plain and not (len(text) == 10 or _TIME.fullmatch(text[10:])):
        return None
    try:
        return date.fromisoformat(text[:10]) if is_plain else datetime.strptime(text, pattern).date()
    except ValueError:
        return None


class IntervalRule:
    """The time between two days, and the limits of it; for numbers and for arrays of them."""

    def __init__(
        self, limits: tuple[float | None, float | None], *, sign: int, divisor: float, unit: str, refuses_missing: bool
    ) -> None:
        """`sign` times (own day minus the other), by `divisor`, is the time in `unit`."""
        self.limits, self.sign, self.divisor, self.unit = limits, sign, divisor, unit
        self.refuses_missing = refuses_missing
        self.low = -math.inf if limits[0] is None else limits[0]
        self.high = math.inf if limits[1] is None else limits[1]
        self.outside = Flaw(f"an interval outside the declared range {self.low:g} to {self.high:g} {unit}")

    @property
    def facts(self) -> dict[str, Any]:
        """The rule as plain data."""
        return {
            "sign": self.sign,
            "divisor": self.divisor,
            "unit": self.unit,
            "refuses_missing": self.refuses_missing,
            "range": list(self.limits),
        }

    def length(self, own: Any, other: Any) -> Any:
        """Return the time between days: two numbers, or arrays of float64, to the same type."""
        return (own - other if self.sign > 0 else other - own) / self.divisor

    def is_outside(self, length: Any) -> Any:
        """Return whether a time is outside the limits. A missing time is not."""
        return (length < self.low) | (length > self.high)


class TermsRule:
    """A cell with several terms, counted: the codes of a list, or the words of a note.

    Each declared code has a place, and one place is for all others. Without declared codes each term has the place that
    its BLAKE2b hash names, so two sites need no common list: Weinberger et al. 2009, "Feature Hashing for Large Scale
    Multitask Learning", section 2, without the sign. scikit-learn's hash would require that library beside an export.
    With `longest` so many further places follow: the first words of a note in their order, each as its bucket counted
    from 1, and 0 behind the last word.
    """

    def __init__(
        self,
        markers: Iterable[str],
        *,
        refuses_missing: bool,
        separator: str | None,
        codes: Sequence[str] | None,
        buckets: int | None,
        longest: int | None = None,
    ) -> None:
        """`separator` separates codes, None reads words; `codes` are declared, or there are `buckets`."""
        self.markers = frozenset(markers)
        self.missing: Counter[int] | Flaw = MISSING if refuses_missing else Counter()
        self.separator, self.codes, self.buckets, self.longest = separator, codes, buckets, longest
        self._declared = None if codes is None else {folded(code): place for place, code in enumerate(codes)}
        self._places: dict[str, int] = {}

    @property
    def facts(self) -> dict[str, Any]:
        """The rule as plain data."""
        return {
            "kind": "terms",
            "missing": sorted(self.markers),
            "refuses_missing": self.missing is MISSING,
            "separator": self.separator,
            "codes": None if self.codes is None else list(self.codes),
            "buckets": self.buckets,
            "longest": self.longest,
        }

    @property
    def counted(self) -> int:
        """The number of places that count terms."""
        return (self.buckets or 0) if self.codes is None else len(self.codes) + 1

    @property
    def width(self) -> int:
        """The number of all places."""
        return self.counted + (self.longest or 0)

    def read(self, cell: str) -> Counter[int] | Flaw:
        """Return how often each place occurs in a cell."""
        if len(cell) > LONGEST_CELL:
            return TOO_LONG
        if cell.strip() in self.markers:
            return self.missing
        if _has_endless_accents(cell):
            return TOO_MANY_ACCENTS
        text = folded(cell)
        if len(text) > LONGEST_CELL:  # some letters become three
            return TOO_LONG
        terms = _WORD.findall(text) if self.separator is None else map(str.strip, text.split(self.separator))
        places = [self._place(term) for term in terms if term]
        first = enumerate(places[: self.longest or 0], start=self.counted)
        return Counter(places) + Counter({at: place + 1 for at, place in first})

    def _place(self, term: str) -> int:
        if self._declared is not None:
            return self._declared.get(term, len(self._declared))
        place = self._places.get(term)
        if place is None:
            digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            place = int.from_bytes(digest, "little") % self.counted
            if len(term) <= _LONGEST_REMEMBERED and len(self._places) < _REMEMBERED_TERMS:
                self._places[term] = place
        return place


def _has_endless_accents(text: str) -> bool:
    """Whether a letter has more accents than any language writes. To sort them takes time with their square."""
    count = 0
    for one in "" if text.isascii() else text:
        count = count + 1 if unicodedata.combining(one) else 0
        if count > MOST_ACCENTS:
            return True
    return False


def folded(text: str) -> str:
    """Return a code or a note in the form that is compared: in small letters, each accent in one spelling."""
    return unicodedata.normalize("NFC", text).strip().casefold()
