"""Reads one cell of a table by the rules of the contract. Only this file decides which cells a contract allows.

These rules read the cells of a site's own table and of its new rows. No function here raises, because a parser's
exception would quote the cell.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

LARGEST_MAGNITUDE: Final = 1e100
LONGEST_NUMBER: Final = 400
NO_LIMITS: Final = (-math.inf, math.inf)
UNKNOWN_POSITION: Final = -1.0
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
# A number with a decimal mark, and one that could also be thousands. A mark is proved by a number that is no thousands.
MARKED: Final = re.compile(r"[+-]?\d*([.,])\d+", re.ASCII)
GROUPED: Final = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}", re.ASCII)
UNPROVED: Final = "each number with a decimal mark has three digits behind it; are they thousands? Then export no marks"
LIMIT_SIGNS: Final = "<>\u2264\u2265"
LIMIT: Final = re.compile(rf"([{LIMIT_SIGNS}])=?\s*(\S+)")
OPEN_END: Final = re.compile(r"\A(\d{2,3})\+\Z", re.ASCII)  # an age of 90+; 1+ is a grade
_TIME: Final = re.compile(r"(?<=\d)[ T]\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?( ?[AP]\.?M\.?)?\Z", re.ASCII | re.IGNORECASE)
ZONED_TIME: Final = re.compile(
    r"\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)? ?(Z|[+-]\d{2}(:?\d{2}(:?\d{2})?)?)", re.ASCII
)
# Digits behind a zero are a code, such as a postcode, and so are digits around an E, as in ICD-11. So are longer cells.
_PLAIN_NUMBER: Final = re.compile(r"[+-]?((0|[1-9]\d{0,17})(\.\d{0,9}0*)?|\.\d{1,9}0*)", re.ASCII)


@dataclass(frozen=True)
class Flaw:
    """The reason why a cell is not allowed. The text does not contain the cell's value."""

    words: str


NOT_A_NUMBER: Final = Flaw("text where a number is declared")
BEYOND_LIMIT: Final = Flaw(
    "a number behind < or >, or before +; declare `detection_limit` for a feature or outcome, or write the number"
)
INFINITE: Final = Flaw("an infinite number")
TOO_LARGE: Final = Flaw("a number too large to compute with")
PLAIN_DATE: Final = "%Y-%m-%d"
MISSING: Final = Flaw("a missing value (the contract refuses it)")
UNDECLARED: Final = Flaw("a code that is not declared")
NOT_A_DATE: Final = Flaw("a text that is not a date of the declared pattern")
DAY_NUMBER: Final = Flaw("a number in place of a date, as spreadsheets count days; export dates as 2020-01-31")
# What Excel writes where a formula or a lookup failed. It is a code only if the contract declares it.
ERROR_CODES: Final = ("#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!", "#N/A")
FAILED_FORMULA: Final = Flaw("an error value of a spreadsheet")
ZONED: Final = Flaw("a time with a distance from UTC, whose day depends on the place; declare `zone` in the format")
SHORT_YEAR: Final = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2}", re.ASCII)
NO_CENTURY: Final = Flaw("a date with a year of two digits, whose century is not guessed; export years of four digits")
IN_THE_FUTURE: Final = Flaw("a date in the future; correct it, list it as a missing marker, or write `future: allow`")


def canonical_code(text: str, decimal: str = ".") -> str:
    """Return a code in the spelling that is used to compare codes. `3`, `3.0` and ` 3` are the same code.

    `03` and `3E0` are other codes. A number becomes the shortest plain decimal number. Any other text loses its
    surrounding blanks, and its accents are joined to their letters. `decimal` is the decimal mark in `text`.
    """
    stripped = text.strip()
    number = stripped if decimal == "." else stripped.replace(".", " ").replace(decimal, ".")
    if not _PLAIN_NUMBER.fullmatch(number):
        return unicodedata.normalize("NFC", stripped)
    value = Decimal(number)
    return f"{value.normalize():f}" if value else "0"


class NumberRule:
    """The rule for a cell with a number: which texts mean a missing value, and the limits of the number."""

    def __init__(
        self,
        markers: Iterable[str],
        limits: tuple[float, float],
        *,
        refuses_missing: bool,
        detection_limit: str | None = None,
    ) -> None:
        """Store the texts for a missing value, and the limits.

        `detection_limit` is what <5 and >90 become: at-limit, half (of <5) or missing. None refuses them.
        """
        self.detection_limit = detection_limit
        self.markers, self.refuses_missing = frozenset(markers), refuses_missing
        self.words = frozenset(marker for marker in self.markers if not _NUMBER.fullmatch(marker))
        self.numbers = frozenset(float(marker) for marker in self.markers - self.words)
        self.low, self.high = limits
        self.outside = Flaw(f"a number outside the declared range {self.low:g} to {self.high:g}")
        self.missing: float | Flaw = MISSING if refuses_missing else math.nan

    def read(self, cell: str, decimal: str = ".") -> float | Flaw:
        """Return the number in a cell of a table. Return NaN if the cell has a mark for a missing value."""
        text = cell.strip()
        if text in self.words:
            return self.missing
        if decimal != ".":
            text = text.replace(".", " ").replace(decimal, ".")
        beyond = LIMIT.fullmatch(OPEN_END.sub(r">\1", text)) if len(text) <= LONGEST_NUMBER else None
        text = beyond[2] if beyond else text
        if len(text) > LONGEST_NUMBER or not _NUMBER.fullmatch(text):
            if text in ERROR_CODES:
                return FAILED_FORMULA
            return INFINITE if re.fullmatch(r"[+-]?inf(inity)?", text, re.I) else NOT_A_NUMBER
        if beyond and self.detection_limit is None:
            return BEYOND_LIMIT
        value = float(text)
        if value in self.numbers or (beyond and self.detection_limit == "missing"):
            return self.missing
        if beyond and self.detection_limit == "half" and beyond[1] in "<\u2264":
            value /= 2
        # Squares of larger numbers would overflow when the spread of the column is computed.
        if abs(value) > LARGEST_MAGNITUDE:
            return TOO_LARGE
        return value if self.low <= value <= self.high else self.outside


class CodeRule:
    """The rule for a cell with one of several declared codes. A text that is both a code and a marker is the code."""

    def __init__(
        self,
        codes: Mapping[str, float],
        markers: Iterable[str],
        *,
        missing: float | Flaw = UNKNOWN_POSITION,
        otherwise: float | Flaw = UNDECLARED,
    ) -> None:
        """Store the numbers of codes, of markers (`missing`), and of any other cell (`otherwise`)."""
        self.codes, self.markers, self.missing, self.otherwise = dict(codes), frozenset(markers), missing, otherwise
        errors: dict[str, float | Flaw] = dict.fromkeys(ERROR_CODES, FAILED_FORMULA)
        self._values = {**errors, **dict.fromkeys(self.markers, missing), **self.codes}

    def read(self, cell: str, decimal: str = ".") -> float | Flaw:
        """Return the number that this rule assigns to the code in a cell."""
        return self._values.get(canonical_code(cell, decimal), self.otherwise)


class DateRule:
    """The rule for a cell with a date: its patterns, and whether a date in the future is allowed."""

    def __init__(
        self, markers: Iterable[str], patterns: Sequence[str], *, refuses_future: bool, zone: str | None = None
    ) -> None:
        """Store the rule. `patterns` are strptime formats. A time may follow a date, because spreadsheets add times.

        `zone` is the place whose day a time with a distance from UTC has.
        """
        self.markers, self.patterns, self.refuses_future = frozenset(markers), tuple(patterns), refuses_future
        self.zone = zone

    def read(self, cell: str, today: date) -> float | Flaw:
        """Return the date in a cell as days since the year 1, or NaN if the cell means a missing date."""
        text = cell.strip()
        if text in self.markers:
            return math.nan
        if ZONED_TIME.fullmatch(text):
            return ZONED if self.zone is None else self._zoned(text, ZoneInfo(self.zone), today)
        found = {day for pattern in self.patterns if (day := written_day(text, pattern)) is not None}
        if len(found) != 1:  # two patterns of a contract never read one text as different days
            if text in ERROR_CODES:
                return FAILED_FORMULA
            is_counted = re.fullmatch(r"[1-6]\d{4}(\.\d+)?", text, re.ASCII)
            return NO_CENTURY if SHORT_YEAR.fullmatch(text) else DAY_NUMBER if is_counted else NOT_A_DATE
        return self.judged(float(found.pop().toordinal()), today)

    def _zoned(self, text: str, zone: ZoneInfo, today: date) -> float | Flaw:
        try:
            day = datetime.fromisoformat(text.replace(" ", "T", 1).replace(" ", "")).astimezone(zone).date()
        except (ValueError, OverflowError):
            return NOT_A_DATE
        return self.judged(float(day.toordinal()), today)

    def judged(self, day: float, today: date) -> float | Flaw:
        """Return a day, counted from the year 1, or a flaw if it is in the future and the contract forbids this."""
        return IN_THE_FUTURE if self.refuses_future and day > today.toordinal() else day


def written_day(text: str, pattern: str) -> date | None:
    """Return the date that a text means in one pattern, or None if the text does not match."""
    text = text if "%H" in pattern else _TIME.sub("", text)
    if (is_plain := pattern == PLAIN_DATE) and len(text) != 10:
        return None
    if re.fullmatch("(%[YmdHMS])+", pattern) and len(text) != 2 * pattern.count("%") + 2 * ("%Y" in pattern):
        return None  # 202011 is a month, and would be read as a day
    try:
        return date.fromisoformat(text) if is_plain else datetime.strptime(text, pattern).date()
    except ValueError:
        return None


class IntervalRule:
    """The rule for the time between two days: its unit and its limits. The days can be numbers or arrays."""

    def __init__(
        self, limits: tuple[float, float], *, sign: int, divisor: float, unit: str, refuses_missing: bool
    ) -> None:
        """Store the rule. The time in `unit` is `sign` times (own day minus the other day), divided by `divisor`."""
        self.sign, self.divisor, self.unit = sign, divisor, unit
        self.refuses_missing = refuses_missing
        self.low, self.high = limits
        self.outside = Flaw(f"an interval outside the declared range {self.low:g} to {self.high:g} {unit}")

    def length(self, own: Any, other: Any) -> Any:
        """Return the time between two dates in the rule's unit. The dates are two numbers or two float64 arrays."""
        return (own - other if self.sign > 0 else other - own) / self.divisor

    def is_outside(self, length: Any) -> Any:
        """Return whether the time between two dates is outside the declared limits. A missing time is not outside."""
        slack = (self.divisor > 1) * 0.8 / self.divisor  # a birthday is up to 0.75 days from whole years of 365.25 days
        return (length < self.low - slack) | (length > self.high + slack)


def folded(text: str) -> str:
    """Return a unit in the form in which units are compared: in lower case, ² as 2, and the Greek letter mu as u."""
    return unicodedata.normalize("NFKC", text).strip().casefold().replace("\u03bc", "u")
