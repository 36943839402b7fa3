"""Reads one cell of text. Only this file decides what a contract allows.

A site's own table, its new rows and both loaders of an export read their cells by these rules. An export carries the
text of this file inside its loaders, so it imports nothing but Python itself. A rule is plain data: `facts` writes it
into model.json and `rule_of` reads it back. Nothing here raises: an exception of a parser would quote the cell.
"""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final

LARGEST_MAGNITUDE: Final = 1e100
LONGEST_NUMBER: Final = 400
UNKNOWN_POSITION: Final = -1.0
FIRST_DAY: Final = date(1970, 1, 1).toordinal()
LONGEST_SHOWN: Final = 40
MOST_REASONS: Final = 5
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_TIME: Final = re.compile(r"[ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?", re.ASCII)
# Bounded, so that no cell can require a number of a million digits; what is longer stays text.
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
NOT_INTENSITIES: Final = Flaw("not the declared number of intensities, or one outside of what the file format allows")
FOREIGN: Final = Flaw("outside of the training rows")
LONGEST_CELL: Final = 100_000  # below the 131,072 characters that Python's reader of text files takes
TOO_LONG: Final = Flaw(f"more than {LONGEST_CELL:,} characters")
MOST_ACCENTS: Final = 30  # on one letter, as Unicode's stream-safe texts have it (UAX 15, section 13)
TOO_MANY_ACCENTS: Final = Flaw(f"a letter with more than {MOST_ACCENTS} accents")
_WORD: Final = re.compile(r"\w\w+")
_REMEMBERED_TERMS: Final = 1 << 16
_LONGEST_REMEMBERED: Final = 40  # characters: rows of endless words would fill the memory


def canonical_code(text: str, decimal: str = ".") -> str:
    """Return a code in its compared spelling. `3`, `3.0` and ` 3` are the same code.

    Args:
        text: a cell or a declared code.
        decimal: what stands between whole and fraction in `text`, "." or ",".

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
    """

    def __init__(
        self,
        markers: Iterable[str],
        *,
        refuses_missing: bool,
        separator: str | None,
        codes: Sequence[str] | None,
        buckets: int | None,
    ) -> None:
        """`separator` stands between codes, None reads words; `codes` are declared, or there are `buckets`."""
        self.markers = frozenset(markers)
        self.missing: Counter[int] | Flaw = MISSING if refuses_missing else Counter()
        self.separator, self.codes, self.buckets = separator, codes, buckets
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
        }

    @property
    def width(self) -> int:
        """The number of places."""
        return (self.buckets or 0) if self.codes is None else len(self.codes) + 1

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
        return Counter(self._place(term) for term in terms if term)

    def _place(self, term: str) -> int:
        if self._declared is not None:
            return self._declared.get(term, len(self._declared))
        place = self._places.get(term)
        if place is None:
            digest = hashlib.blake2b(term.encode("utf-8", "surrogatepass"), digest_size=8).digest()
            place = int.from_bytes(digest, "little") % self.width
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
    """Return a code or a note as it is compared: in small letters, each accent in one spelling."""
    return unicodedata.normalize("NFC", text).strip().casefold()


def rule_of(facts: Mapping[str, Any]) -> NumberRule | CodeRule | DateRule:
    """Return the rule of a column from its facts in model.json."""
    kind, markers = facts["kind"], facts["missing"]
    if kind == "number":
        return NumberRule(markers, tuple(facts["range"]), refuses_missing=facts["refuses_missing"])
    if kind == "code":
        codes = {code: float(place) for place, code in enumerate(facts["codes"])}
        return CodeRule(codes, markers, missing=MISSING if facts["refuses_missing"] else UNKNOWN_POSITION)
    pattern = facts["pattern"]  # a text, or a list of several
    patterns = [pattern] if isinstance(pattern, str) else pattern
    return DateRule(markers, patterns, refuses_future=facts["refuses_future"])


def terms_rule_of(facts: Mapping[str, Any]) -> TermsRule:
    """Return the rule of a column of terms from its facts in model.json."""
    return TermsRule(
        facts["missing"],
        refuses_missing=facts["refuses_missing"],
        separator=facts["separator"],
        codes=facts["codes"],
        buckets=facts["buckets"],
    )


def reason(column: str, flaw: Flaw, cell: object) -> str:
    """Explain why a row is not predicted: the column, the flaw, and the value if there is one."""
    has_value = flaw not in (MISSING, ABSENT) and cell != ""
    return f"column {column}: {flaw.words}{f' ({shown(cell)})' if has_value else ''}"


def joined(reasons: Sequence[str]) -> str:
    """Return the first reasons of a row as one text; empty if there is none."""
    others = len(reasons) - MOST_REASONS
    return "; ".join([*reasons[:MOST_REASONS], *([f"and {others} more"] if others > 0 else [])])


def shown(cell: object) -> str:
    """Return a value for a screen or a spreadsheet: short, on one line, without control characters."""
    text = f"{cell:g}" if isinstance(cell, float) else str(cell).strip()
    plain = "".join(one if one.isprintable() and one not in ";|" else "\N{REPLACEMENT CHARACTER}" for one in text)
    return plain if len(plain) <= LONGEST_SHOWN else plain[: LONGEST_SHOWN - 1] + "\N{HORIZONTAL ELLIPSIS}"


class RowReader:
    """Rows of an exported model's user: dictionaries by the columns' names, as model.json declares them."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        """`facts` are those of model.json."""
        self._columns = [(column, rule_of(column["rule"])) for column in (*facts["features"], *facts["days"])]
        self._terms = [(column, terms_rule_of(column["rule"])) for column in facts.get("terms", ())]
        self._decimal: str = facts["decimal"]
        self._image: Mapping[str, Any] | None = facts.get("image")

    def read(self, row: Mapping[str, Any]) -> tuple[list[float], list[str]]:
        """Return a row as the model reads it, and the reasons against a prediction; empty if there are none.

        The numbers are in the order of model.json's features, its days and its terms: NaN where missing, of a code its
        position, of a date the days since 1970-01-01, of each place of terms how often it occurs.
        """
        if self._image is not None:
            numbers = _intensities(self._image, row)
            if isinstance(numbers, Flaw):
                return [], [f"column {self._image['name']}: {numbers.words}"]
            return numbers, []
        cells = {column["name"]: self._cell(column, rule, row) for column, rule in self._columns}
        reasons = []
        for column, _ in self._columns:
            name = column["name"]
            found = cells[name]
            flaw, value = (found, math.nan) if isinstance(found, Flaw) else self._judged(column, cells)
            if flaw is not None:
                reasons.append(reason(name, flaw, value if flaw is FOREIGN else row.get(name)))
        numbers = [math.nan if isinstance(found, Flaw) else found for found in cells.values()]
        for column, terms in self._terms:
            counts = _terms(column, terms, row)
            if isinstance(counts, Flaw):
                reasons.append(reason(column["name"], counts, ""))  # a note may name a patient
            else:
                numbers += [float(counts[place]) for place in range(terms.width)]
        return numbers, reasons

    def answers(self, rows: Sequence[Mapping[str, Any]], scores: Callable[[list[list[float]]], list[Any]]) -> list[Any]:
        """Return the result of `scores` for each row that may be predicted; None for the others."""
        read = [self.read(row) for row in rows]
        found: list[Any] = [None] * len(rows)
        usable = [place for place, (_, reasons) in enumerate(read) if not reasons]
        said = scores([read[place][0] for place in usable]) if usable else []
        for place, answer in zip(usable, said, strict=True):
            found[place] = answer[0] if len(answer) == 1 else answer
        return found

    def why(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return why each row must not be predicted; empty if it may be."""
        return [joined(self.read(row)[1]) for row in rows]

    def _cell(
        self, column: Mapping[str, Any], rule: NumberRule | CodeRule | DateRule, row: Mapping[str, Any]
    ) -> float | Flaw:
        if column["name"] not in row and column["required"]:
            return ABSENT
        cell = row.get(column["name"])
        is_number = isinstance(cell, int | float) and not isinstance(cell, bool)
        if cell is None or (is_number and math.isnan(cell)):
            cell = ""
        if isinstance(rule, DateRule):
            found = _day(rule, cell)
            return found if isinstance(found, Flaw) else found - FIRST_DAY
        # A decimal comma is how the table writes its text; a number that comes as a number has a point.
        return rule.read(str(cell), self._decimal if isinstance(cell, str) else ".")

    def _judged(self, column: Mapping[str, Any], cells: Mapping[str, float | Flaw]) -> tuple[Flaw | None, float]:
        """What is wrong with a value whose cell is read: its interval, or its place among the training rows."""
        value, interval = cells[column["name"]], column.get("interval")
        assert isinstance(value, float)
        if interval is not None:
            rule = IntervalRule(
                tuple(interval["range"]),
                sign=interval["sign"],
                divisor=interval["divisor"],
                unit=interval["unit"],
                refuses_missing=interval["refuses_missing"],
            )
            other = interval["day"] if interval["other"] is None else cells[interval["other"]]
            if isinstance(other, Flaw):
                return None, math.nan  # the flaw is reported where it is
            value = rule.length(value, other)
            if rule.is_outside(value):
                return rule.outside, value
            if rule.refuses_missing and math.isnan(value):
                return MISSING, value
        low, high = column.get("limits", (None, None))
        is_foreign = (low is not None and value < low) or (high is not None and value > high)
        return (FOREIGN if is_foreign else None), value


def _terms(column: Mapping[str, Any], rule: TermsRule, row: Mapping[str, Any]) -> Counter[int] | Flaw:
    if column["name"] not in row and column["required"]:
        return ABSENT
    cell = row.get(column["name"])
    return rule.read("" if cell is None or cell != cell else str(cell))  # NaN differs from itself


def _intensities(image: Mapping[str, Any], row: Mapping[str, Any]) -> list[float] | Flaw:
    """An image's numbers, channel by channel, from lists that may lie in lists."""
    if row.get(image["name"]) is None:
        return ABSENT
    numbers = image["channels"] * image["height"] * image["width"]
    found, parts = list[float](), [row[image["name"]]]
    while parts and len(found) <= numbers:
        part = parts.pop()
        if isinstance(part, list | tuple):
            parts.extend(reversed(part))
        elif isinstance(part, bool) or not isinstance(part, int | float):
            return NOT_INTENSITIES
        elif image["lowest"] <= part <= image["highest"]:
            found.append(float(part))
        else:
            return NOT_INTENSITIES
    return found if len(found) == numbers and not parts else NOT_INTENSITIES


def _day(rule: DateRule, cell: Any) -> float | Flaw:
    """Days since the year 1 of a text, a date, or a number of days since 1970-01-01."""
    today = date.today()
    if isinstance(cell, date):
        return rule.judged(float(cell.toordinal()), today)
    if isinstance(cell, int | float) and not isinstance(cell, bool):
        return NOT_A_DATE if math.isinf(cell) else rule.judged(float(cell) + FIRST_DAY, today)
    return rule.read(str(cell), today)
