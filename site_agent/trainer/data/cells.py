"""Cells of text to numbers, as their column declares; the only place that interprets cells.

A cell that does not fit becomes a `Flaw`, which says what is wrong in words that hold no part of the
cell. Nothing here raises: an exception of a parser would quote the cell. A block of cells that are all plain
numbers is converted at once; any other goes cell by cell, to the same result.
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
from site_agent.trainer.data.columns import (
    CategoricalFeature,
    DateFeature,
    DayColumn,
    GroupColumn,
    NumericFeature,
)
from site_agent.trainer.data.contract import BinaryTarget, MultiClassTarget, RegressionTarget, Target

UNKNOWN_POSITION: Final = -1.0
LARGEST_MAGNITUDE: Final = 1e100
_REMEMBERED_CELLS: Final = 1 << 10
_LONGEST_REMEMBERED: Final = 100
_NUMBER: Final = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_LONGEST_NUMBER: Final = 400


@dataclass(frozen=True)
class Flaw:
    """Why a cell does not fit, without the cell."""

    words: str


Numbers: TypeAlias = npt.NDArray[np.float64]
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


BlockParser: TypeAlias = Callable[[Sequence[str]], Parsed]


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

    def parse(cell: str) -> float | Flaw:
        text = cell.strip()
        if text in markers:
            return math.nan
        try:
            # In the default pattern a time behind the day is allowed, as spreadsheets and databases add one.
            is_plain = column.pattern == "%Y-%m-%d"
            day = date.fromisoformat(text[:10]) if is_plain else datetime.strptime(text, column.pattern).date()
        except ValueError:
            return NOT_A_DATE
        if is_plain and not (len(text) == 10 or _TIME.fullmatch(text[10:])):
            return NOT_A_DATE
        return IN_THE_FUTURE if day > today and column.future == "refuse" else float(day.toordinal())

    return _cell_by_cell(parse)


_TIME: Final = re.compile(r"[ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?", re.ASCII)


def _codes(decimal: str, values: Mapping[str, float | Flaw], otherwise: float | Flaw) -> BlockParser:
    return _cell_by_cell(lambda cell: values.get(canonical_code(cell, decimal), otherwise))


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


def _cell_by_cell(parse: Parser) -> BlockParser:
    remembered = _Remembered(parse)

    def parse_block(cells: Sequence[str]) -> Parsed:
        values = [remembered[cell] for cell in cells]
        flaws: dict[str, list[int]] = {}
        if any(type(value) is Flaw for value in values):
            for place, value in enumerate(values):
                if isinstance(value, Flaw):
                    flaws.setdefault(value.words, []).append(place)
        numbers = [math.nan if isinstance(value, Flaw) else value for value in values] if flaws else values
        return Parsed(values=np.array(numbers, dtype=np.float64), flaws=flaws)

    return parse_block


def _numbers(decimal: str, markers: Iterable[str], limits: tuple[float, float] | None, *, refuses: bool) -> BlockParser:
    words = {marker for marker in markers if not _NUMBER.fullmatch(marker)}
    numbers = {float(marker) for marker in markers if marker not in words}
    low, high = limits or (-math.inf, math.inf)
    outside = Flaw(f"a number outside the declared range {low:g} to {high:g}")
    missing: float | Flaw = MISSING if refuses else math.nan

    def parse(cell: str) -> float | Flaw:
        text = cell.strip()
        if text in words:
            return missing
        if decimal != ".":
            text = text.replace(".", " ").replace(decimal, ".")
        if len(text) > _LONGEST_NUMBER or not _NUMBER.fullmatch(text):
            return NOT_A_NUMBER
        value = float(text)
        if value in numbers:
            return missing
        # Squares of larger numbers would overflow when the spread of the column is computed.
        if abs(value) > LARGEST_MAGNITUDE:
            return TOO_LARGE
        return value if low <= value <= high else outside

    slowly, absent_words, absent_numbers = _cell_by_cell(parse), arrow.array(sorted(words)), np.array(sorted(numbers))

    def parse_block(cells: Sequence[str]) -> Parsed:
        values = _all_numbers(cells, absent_words, decimal)
        if values is None or (np.abs(values) > LARGEST_MAGNITUDE).any():
            return slowly(cells)
        values[np.isin(values, absent_numbers)] = np.nan
        is_outside = (values < low) | (values > high)
        flaws = {outside.words: np.flatnonzero(is_outside).tolist()} if is_outside.any() else {}
        absent = np.flatnonzero(np.isnan(values)).tolist() if refuses else []
        values[is_outside] = np.nan
        return Parsed(values=values, flaws=flaws | ({MISSING.words: absent} if absent else {}))

    return parse_block


def _all_numbers(cells: Sequence[str], words: arrow.Array, decimal: str) -> Numbers | None:
    """Float64 with NaN where a cell is one of `words`; None where a cell is neither that nor a finite number."""
    written = arrow.array(cells, arrow.string())
    values = _converted(written, words, decimal)
    # Blanks around a number are rare, and taking them off first would cost every column a fifth of its time.
    return _converted(compute.utf8_trim_whitespace(written), words, decimal) if values is None else values


def _converted(texts: arrow.Array, words: arrow.Array, decimal: str) -> Numbers | None:
    texts = compute.if_else(compute.is_in(texts, value_set=words), None, texts)
    if decimal != ".":
        texts = compute.replace_substring(compute.replace_substring(texts, ".", " "), decimal, ".")
    try:
        # To a copy, as what comes from there cannot be written to.
        values = np.array(texts.cast(arrow.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    except arrow.ArrowInvalid:
        return None
    return values if np.count_nonzero(~np.isfinite(values)) == texts.null_count else None
