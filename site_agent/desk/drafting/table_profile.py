"""Guesses from the cells of a column what kind of values it has. Large tables do not need more memory.

Numbers are stored as a sample of some thousand, in which every row has the same chance. Extremes, and numbers that
people use for "not known", are counted exactly.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import date, datetime
from functools import cache
from typing import Final

import numpy as np

from site_agent.desk.examination.suspicious_numbers import ANSWERS, CANDIDATES, TEXT_MARKERS, seem_identifiers
from site_agent.trainer.data.cell_rules import LARGEST_MAGNITUDE, canonical_code
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import check_patterns

MOST_CODES: Final = 50
MOST_LISTED: Final = 2048
_SAMPLE: Final = 4096
_LONGEST_CODE: Final = 60
_FEWEST_TEXTS: Final = 20
_DIFFERENT: Final = 0.7  # patients can come again
_FEWEST_REPEATED: Final = 5
_COMMA_NUMBER: Final = re.compile(r"[+-]?\d+,\d+", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", re.ASCII)
PATTERNS: Final = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", "%Y%m%d")
# A code of a list, such as ICD-10 or ATC. A code must have a digit, because names have no digits.
_LISTED: Final = re.compile(r"(?=[^\d]*\d)[\w.+/-]{2,20}", re.ASCII)
_SEPARATORS: Final = (";", "|", ",")
# A number of a patient with letters, such as P-10000: one word with a digit.
_NUMBERED: Final = re.compile(r"(?=[^\d]*\d)[\w./-]{2,40}")
_DATES: Final = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T].*)?|(19|20)\d{6}", re.ASCII)


class ColumnDraft:
    """Collects facts about one column from the cells that were read so far."""

    def __init__(self, name: str, decimal: str) -> None:
        self.name, self._decimal = name, decimal
        self.rows = self.empty = self.numbers = self.whole = self.other_texts = 0
        self.markers: Counter[str] = Counter()
        self._answers: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.has_many_codes = False
        self.listed: set[str] = set()
        self._lists: Counter[str] = Counter()
        self.low, self.high = np.inf, -np.inf
        self._sample: list[float] = []
        self._candidates: set[float] = set()
        self._numbered: set[str] = set()
        self._numbered_cells = self._comma_numbers = 0
        self._days: Counter[str] = Counter()
        self._fitting: Counter[tuple[str, ...]] = Counter()
        self._random = random.Random(name)  # noqa: S311  # a sample, not a secret

    def take(self, cells: list[str]) -> None:
        """Read further cells of the column, and add them to this summary."""
        for cell in cells:
            text = cell.strip()
            self.rows += 1
            if not text:
                self.empty += 1
            elif text.lower() in TEXT_MARKERS:
                self.markers[text] += 1
            elif text.lower() in ANSWERS:
                self._answers[text] += 1
            else:
                self._take_value(text)

    def settle(self) -> None:
        """Decide, after the last cell, whether words such as `none` are codes. Among numbers and dates they are not."""
        if self.is_numeric or self.patterns:
            self.markers += self._answers
        else:
            for text in self._answers.elements():
                self._take_value(text)
        self._answers.clear()

    def _take_value(self, text: str) -> None:
        self._take_code(text)
        self._take_date(text)
        self._take_list(text)
        number = text if self._decimal == "." else text.replace(".", " ").replace(self._decimal, ".")
        if len(number) > _LONGEST_CODE or not _NUMBER.fullmatch(number) or abs(float(number)) > LARGEST_MAGNITUDE:
            self.other_texts += 1
            self._comma_numbers += self._decimal == "." and _COMMA_NUMBER.fullmatch(text) is not None
            if _NUMBERED.fullmatch(text) and self._numbered_cells < _SAMPLE:
                self._numbered_cells += 1
                self._numbered.add(text)
            return
        value = float(number)
        self.numbers += 1
        self.whole += value.is_integer()
        self.low, self.high = min(self.low, value), max(self.high, value)
        if value in CANDIDATES:
            self._candidates.add(value)
        if len(self._sample) < _SAMPLE:
            self._sample.append(value)
        elif (place := self._random.randrange(self.numbers)) < _SAMPLE:
            self._sample[place] = value

    def _take_code(self, text: str) -> None:
        if self.has_many_codes:
            return
        code = canonical_code(text, self._decimal)
        self.codes[code] += 1
        if len(self.codes) > MOST_CODES or len(code) > _LONGEST_CODE:
            self.has_many_codes = True
            self.codes.clear()  # a column with so many different texts can have names or notes

    def _take_list(self, text: str) -> None:
        between = next((one for one in _SEPARATORS if one in text and one != self._decimal), "")
        codes = [code for part in (text.split(between) if between else [text]) if (code := part.strip())]
        if all(map(_LISTED.fullmatch, codes)):
            self._lists[between] += 1
            self.listed.update(codes if len(self.listed) < MOST_LISTED else ())

    @property
    def separator(self) -> str | None:
        """The character that separates the codes in a cell. None if the cells are no lists of codes."""
        between = max(_SEPARATORS, key=self._lists.__getitem__)
        count, single = self._lists[between], self._lists[""]
        is_list = count >= 0.2 * self.values and count + single >= 0.95 * self.values
        is_number = self.is_numeric or self.is_mostly_numeric
        return between if count and is_list and not is_number and not self.patterns else None

    def _take_date(self, text: str) -> None:
        if len(text) > 30 or not _DATES.fullmatch(text):
            return
        fitting = tuple(pattern for pattern in PATTERNS if _is_written(text, pattern))
        if fitting:
            self._fitting[fitting] += 1
            self._days[text[:10]] += 1

    @property
    def values(self) -> int:
        """The number of cells that are neither empty nor a marker for "not known"."""
        return self.numbers + self.other_texts

    @property
    def sample(self) -> Numbers:
        """A sample of the column's numbers as float64, with all numbers that people often use for "not known"."""
        return np.array([*self._sample, *sorted(self._candidates)], dtype=np.float64)

    @property
    def candidates(self) -> frozenset[float]:
        """The numbers in the column that people often use as markers for "not known"."""
        return frozenset(self._candidates)

    @property
    def patterns(self) -> dict[str, int]:
        """The date formats of the column, each with its number of cells. Empty if the column has no dates.

        The most frequent format comes first. Another format is listed if it reads further values, and if a contract
        can combine it with the earlier ones, because no text may mean two different days.
        """
        left, found = Counter(self._fitting), dict[str, int]()
        while left:
            ways = [one for one in PATTERNS if one not in found and _may_stand_together((*found, one))]
            counts = {one: sum(count for fitting, count in left.items() if one in fitting) for one in ways}
            best = max(counts, key=counts.__getitem__, default=None)
            if best is None or not counts[best]:
                break
            found[best] = counts[best]
            left = Counter({fitting: count for fitting, count in left.items() if best not in fitting})
        return found if self._are_dates(sum(found.values())) else {}

    @property
    def ambiguous_patterns(self) -> tuple[str, ...]:
        """The date formats that a person must choose from, such as day first and month first. Otherwise empty."""
        counts = {one: sum(n for fitting, n in self._fitting.items() if one in fitting) for one in PATTERNS}
        ways = tuple(one for one, count in counts.items() if self._are_dates(count))
        return ways if len(ways) > 1 else ()

    @property
    def has_clashing_dates(self) -> bool:
        """Whether nearly all cells of the column are dates, but in formats that a contract cannot combine."""
        return not self.patterns and self._are_dates(self._fitting.total())

    def _are_dates(self, count: int) -> bool:
        return self.values > 0 and count >= 0.99 * self.values

    @property
    def seems_identifier(self) -> bool:
        """Whether the cells seem to be numbers of patients: nearly all differ, see also `seem_identifiers`."""
        if self.is_numeric:
            return not self.patterns and seem_identifiers(self.sample)
        least = max(_FEWEST_TEXTS, _DIFFERENT * min(self.values, _SAMPLE))
        return len(self._numbered) >= least and not self.patterns and not self.separator

    @property
    def repeated_day(self) -> float:
        """The share of the rows with the most frequent date, if this date is suspiciously frequent, otherwise 0."""
        counts = sorted(self._days.values(), reverse=True)
        others = counts[len(counts) // 2] if counts else 0
        is_frequent = len(counts) > 1 and counts[0] > max(0.02 * self.rows, _FEWEST_REPEATED - 1, 4 * others)
        return counts[0] / self.rows if is_frequent and self.patterns else 0.0

    @property
    def is_mostly_numeric(self) -> bool:
        """Whether most cells are numbers, and the others are too many for mistakes, such as decimal commas as text."""
        is_comma = self._comma_numbers > 0 and self.other_texts - self._comma_numbers <= 0.05 * self.values
        is_most = not self.is_numeric and self.numbers > 0.5 * self.values
        return is_most and not self.patterns and (self.has_many_codes or is_comma)

    @property
    def is_numeric(self) -> bool:
        """Whether nearly all cells of the column are numbers."""
        return self.numbers > 0 and self.other_texts <= 0.05 * self.values


def _is_written(text: str, pattern: str) -> bool:
    try:
        if pattern == "%Y-%m-%d":
            date.fromisoformat(text[:10] if text[4:5] == "-" else "")  # it would also read 20260131
        else:
            datetime.strptime(text, pattern)
    except ValueError:
        return False
    return True


@cache
def _may_stand_together(patterns: tuple[str, ...]) -> bool:
    try:
        check_patterns(patterns)
    except ValueError:
        return False
    return True
