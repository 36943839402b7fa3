"""Cells of text to numbers, as their column declares; the only place that interprets cells.

A cell that does not fit becomes a `Flaw`, which says what is wrong in words that hold no part of the
cell. Nothing here raises: an exception of a parser would quote the cell. What is plainly written in a block of
cells is converted at once; of the others each different one is looked at once, to the same result.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as arrow
import pyarrow.compute as compute

from site_agent.trainer.data.codes import canonical_code
from site_agent.trainer.data.contract import BinaryTarget, MultiClassTarget, RegressionTarget, Target
from site_agent.trainer.data.contract_columns import (
    CategoricalFeature,
    DateFeature,
    DayColumn,
    GroupColumn,
    NumericFeature,
)
from site_agent.trainer.data.numbers import LARGEST_MAGNITUDE, LONGEST_NUMBER, Numbers, plain_cells, plain_numbers
from site_agent.trainer.data.sources.blocks import texts_of

__all__ = ["LARGEST_MAGNITUDE", "UNKNOWN_POSITION", "BlockParser", "Flaw", "Numbers", "Parsed", "Spelling"]

UNKNOWN_POSITION: Final = -1.0
_REMEMBERED_CELLS: Final = 1 << 10
_LONGEST_REMEMBERED: Final = 100
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


@dataclass(frozen=True)
class Flaw:
    """Why a cell does not fit, without the cell."""

    words: str


Bools: TypeAlias = npt.NDArray[np.bool_]
Parser: TypeAlias = Callable[[str], float | Flaw]

NOT_A_NUMBER: Final = Flaw("text where a number is declared")
TOO_LARGE: Final = Flaw("a number too large to compute with")
MISSING: Final = Flaw("a missing value, which the contract refuses")
UNDECLARED: Final = Flaw("a code that is not declared")
NOT_A_DATE: Final = Flaw("no date as the declared pattern writes it")
IN_THE_FUTURE: Final = Flaw("a date in the future")


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """A block of one column.

    Attributes:
        values: float64 of shape (cells,), NaN where flawed.
        flaws: by words, the places of the cells in the block.
    """

    values: Numbers
    flaws: Mapping[str, Sequence[int]]


# Of an array of texts without nulls, or of numbers with nulls where a value is missing; see `Block`.
BlockParser: TypeAlias = Callable[[arrow.Array], Parsed]


@dataclass(frozen=True)
class Spelling:
    """What all columns of a table share: how numbers and missing values are written."""

    decimal: str
    markers: tuple[str, ...]


def feature_parser(
    feature: NumericFeature | CategoricalFeature, spelling: Spelling, *, for_prediction: bool
) -> BlockParser:
    """What turns a feature's cells into numbers: NaN for a missing number, -1 for an unknown code."""
    markers = {"", *spelling.markers, *feature.missing_markers}
    match feature:
        case NumericFeature():
            return _numbers(spelling.decimal, markers, feature.range, refuses=feature.missing == "refuse")
        case CategoricalFeature():
            absent = MISSING if feature.missing == "refuse" else UNKNOWN_POSITION
            positions: dict[str, float | Flaw] = {code: float(i) for i, code in enumerate(feature.codes)}
            positions |= dict.fromkeys(markers, absent)
            # Where a missing value is refused there is nothing that an unknown code could be taken for.
            may_be_unknown = for_prediction and feature.missing != "refuse"
            return _codes(spelling.decimal, positions, UNKNOWN_POSITION if may_be_unknown else UNDECLARED)
        case _:
            assert_never(feature)


def group_parser(group: GroupColumn, spelling: Spelling, *, for_prediction: bool) -> BlockParser:
    """As for a coded feature whose missing values are unknown."""
    positions: dict[str, float | Flaw] = {code: float(i) for i, code in enumerate(group.codes)}
    positions |= dict.fromkeys({"", *spelling.markers, *group.missing_markers}, UNKNOWN_POSITION)
    return _codes(spelling.decimal, positions, UNKNOWN_POSITION if for_prediction else UNDECLARED)


def target_parser(target: Target, spelling: Spelling) -> BlockParser:
    """What turns a target's cells into 0 and 1, an index, or a number; a missing one is a flaw."""
    markers = {"", *spelling.markers}
    codes: dict[str, float | Flaw] = {}
    if not isinstance(target, RegressionTarget):
        # A code that is declared wins over a marker that happens to be spelt the same.
        codes |= dict.fromkeys(markers, MISSING)
    match target:
        case BinaryTarget():
            codes |= dict.fromkeys(target.negative or (), 0.0) | dict.fromkeys(target.positive, 1.0)
            return _codes(spelling.decimal, codes, 0.0 if target.negative is None else UNDECLARED)
        case MultiClassTarget():
            codes |= {code: float(i) for i, code in enumerate(target.codes)}
            return _codes(spelling.decimal, codes, UNDECLARED)
        case RegressionTarget():
            return _numbers(spelling.decimal, markers, target.range, refuses=True)
        case _:
            assert_never(target)


def date_parser(column: DateFeature | DayColumn, spelling: Spelling, today: date) -> BlockParser:
    """Days since the year 1, NaN where missing; whether that is allowed is decided where the interval is made."""
    markers = {"", *spelling.markers, *column.missing_markers}
    refuses_after = float(today.toordinal()) if column.future == "refuse" else math.inf
    # In the default pattern a time behind the day is allowed, as spreadsheets and databases add one.
    is_plain = column.pattern == "%Y-%m-%d"

    def parse(cell: str) -> float | Flaw:
        text = cell.strip()
        if text in markers:
            return math.nan
        try:
            day = date.fromisoformat(text[:10]) if is_plain else datetime.strptime(text, column.pattern).date()
        except ValueError:
            return NOT_A_DATE
        if is_plain and not (len(text) == 10 or _TIME.fullmatch(text[10:])):
            return NOT_A_DATE
        return float(day.toordinal()) if day.toordinal() <= refuses_after else IN_THE_FUTURE

    written = _DATE_AND_TIME if is_plain else f"^{_as_expression(column.pattern)}$"
    absent = arrow.array(sorted(markers), arrow.string())

    def parse_block(cells: arrow.Array) -> Parsed:
        return _each_once(cells, _Remembered(parse), lambda texts: _days(texts, written, absent, refuses_after))

    return parse_block


_TIME: Final = re.compile(r"[ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?", re.ASCII)
_DATE_AND_TIME: Final = r"^(?P<Y>\d{4})-(?P<m>\d{2})-(?P<d>\d{2})(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?$"
_PARTS: Final = {"%H": r"(?:[01]\d|2[0-3])", "%M": r"[0-5]\d", "%S": r"[0-5]\d",
                 "%Y": r"(?P<Y>\d{4})", "%m": r"(?P<m>\d{2})", "%d": r"(?P<d>\d{2})"}  # fmt: skip
_DAYS_BEFORE_1970: Final = date(1970, 1, 1).toordinal()


def _as_expression(pattern: str) -> str:
    """What a date in full width looks like; strptime reads others too, one by one."""
    pieces = re.split("(%.)", pattern)
    return "".join(_PARTS.get(piece, re.escape(piece)) for piece in pieces)


def _days(texts: arrow.StringArray, written: str, absent: arrow.Array, refuses_after: float) -> tuple[Numbers, Bools]:
    """Days of the texts that are plainly written dates, not in the future; and which texts those are not."""
    days, is_open = np.full(len(texts), np.nan), np.ones(len(texts), dtype=bool)
    is_plain = compute.and_not(compute.match_substring_regex(texts, written), compute.is_in(texts, value_set=absent))
    parts = compute.extract_regex(texts.filter(is_plain), written)
    iso = compute.binary_join_element_wise(*(compute.struct_field(parts, [name]) for name in "Ymd"), "-")
    try:
        found = iso.cast(arrow.date32()).cast(arrow.int32()).to_numpy(zero_copy_only=False)
    except arrow.ArrowInvalid:  # a 30th of February among them
        return days, is_open
    places = np.flatnonzero(is_plain.to_numpy(zero_copy_only=False))
    numbers = found.astype(np.float64) + _DAYS_BEFORE_1970
    is_sound = (numbers >= 1) & (numbers <= refuses_after)  # there is no year 0
    days[places[is_sound]] = numbers[is_sound]
    is_open[places[is_sound]] = False
    return days, is_open


def _codes(decimal: str, values: Mapping[str, float | Flaw], otherwise: float | Flaw) -> BlockParser:
    remembered = _Remembered(lambda cell: values.get(canonical_code(cell, decimal), otherwise))
    return lambda cells: _each_once(cells, remembered, _none)


class _Remembered(dict[str, float | Flaw]):
    """Cells that were parsed before, as many as fit into little memory; most columns repeat theirs."""

    def __init__(self, parse: Parser) -> None:
        super().__init__()
        self._parse = parse

    def __missing__(self, cell: str) -> float | Flaw:
        value = self._parse(cell)
        if len(self) < _REMEMBERED_CELLS and len(cell) <= _LONGEST_REMEMBERED:
            self[cell] = value
        return value


def _none(texts: arrow.StringArray) -> tuple[Numbers, Bools]:
    return np.full(len(texts), np.nan), np.ones(len(texts), dtype=bool)


def _each_once(
    cells: arrow.Array, remembered: _Remembered, at_once: Callable[[arrow.StringArray], tuple[Numbers, Bools]]
) -> Parsed:
    """Each different cell parsed once: those that `at_once` leaves open one after the other."""
    texts = texts_of(cells)
    assert texts is not None  # numbers always are
    encoded = texts.dictionary_encode()
    places = encoded.indices.to_numpy()
    values, is_open = at_once(encoded.dictionary)
    wrong: dict[str, list[int]] = {}
    for place, cell in zip(
        np.flatnonzero(is_open).tolist(), encoded.dictionary.filter(arrow.array(is_open)).to_pylist(), strict=True
    ):
        value = remembered[cell]
        if isinstance(value, Flaw):
            wrong.setdefault(value.words, []).append(place)
        else:
            values[place] = value
    flaws = {words: np.flatnonzero(np.isin(places, kinds)).tolist() for words, kinds in wrong.items()}
    return Parsed(values=values[places], flaws=_in_order(flaws))


def _in_order(flaws: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Kinds in the order in which the block has them."""
    return dict(sorted(flaws.items(), key=lambda kind: kind[1][0]))


def _numbers(decimal: str, markers: Iterable[str], limits: tuple[float, float] | None, *, refuses: bool) -> BlockParser:
    words = {marker for marker in markers if not _NUMBER.fullmatch(marker)}
    numbers = frozenset(float(marker) for marker in markers if marker not in words)
    low, high = limits or (-math.inf, math.inf)
    return _NumberColumn(decimal, frozenset(words), numbers, low, high, refuses)


class _NumberColumn:
    """How one column's numbers are read: what of them is missing, and between which two they lie."""

    def __init__(
        self, decimal: str, words: frozenset[str], numbers: frozenset[float], low: float, high: float, refuses: bool
    ) -> None:
        self._decimal, self._words, self._numbers, self._low, self._high = decimal, words, numbers, low, high
        self._missing: float | Flaw = MISSING if refuses else math.nan
        self._outside = Flaw(f"a number outside the declared range {low:g} to {high:g}")
        self._absent_words = arrow.array(sorted(words), arrow.string())
        self._absent_numbers = np.array(sorted(numbers))
        self._remembered = _Remembered(self._parse)

    def __call__(self, cells: arrow.Array) -> Parsed:
        """The column's part of a block."""
        values = plain_numbers(cells, self._absent_words, self._decimal)
        if values is not None:
            return self._judged(values)
        # One by one only what is not plain: a flawed cell must not make its whole block slow.
        texts = texts_of(cells)
        assert texts is not None
        is_plain = plain_cells(texts, self._absent_words, self._decimal)
        easy = plain_numbers(texts.filter(arrow.array(is_plain)), self._absent_words, self._decimal)
        if easy is None:
            is_plain, easy = np.zeros(len(texts), dtype=bool), np.empty(0)
        hard = texts.filter(arrow.array(~is_plain))
        return _together(is_plain, self._judged(easy), _each_once(hard, self._remembered, _none))

    def _judged(self, values: Numbers) -> Parsed:
        """Numbers, NaN where missing, none of them too large; the array is written to."""
        if len(self._absent_numbers):
            values[np.isin(values, self._absent_numbers)] = np.nan
        is_outside = (values < self._low) | (values > self._high)
        absent = np.flatnonzero(np.isnan(values)).tolist() if self._missing is MISSING else []
        flaws = {MISSING.words: absent} if absent else {}
        if is_outside.any():
            flaws[self._outside.words] = np.flatnonzero(is_outside).tolist()
            values[is_outside] = np.nan
        return Parsed(values=values, flaws=_in_order(flaws))

    def _parse(self, cell: str) -> float | Flaw:
        text = cell.strip()
        if text in self._words:
            return self._missing
        if self._decimal != ".":
            text = text.replace(".", " ").replace(self._decimal, ".")
        if len(text) > LONGEST_NUMBER or not _NUMBER.fullmatch(text):
            return NOT_A_NUMBER
        value = float(text)
        if value in self._numbers:
            return self._missing
        # Squares of larger numbers would overflow when the spread of the column is computed.
        if abs(value) > LARGEST_MAGNITUDE:
            return TOO_LARGE
        return value if self._low <= value <= self._high else self._outside


def _together(is_first: Bools, first: Parsed, second: Parsed) -> Parsed:
    """One block of two parts: the cells of the first are those where `is_first` says so."""
    values, flaws = np.empty(len(is_first)), dict[str, list[int]]()
    for part, places in ((first, np.flatnonzero(is_first)), (second, np.flatnonzero(~is_first))):
        values[places] = part.values
        for words, found in part.flaws.items():
            flaws[words] = sorted([*flaws.get(words, []), *places[list(found)].tolist()])
    return Parsed(values=values, flaws=_in_order(flaws))
