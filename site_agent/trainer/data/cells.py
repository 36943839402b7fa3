"""[data.cells] Converts the text cells of a column to numbers, as the contract declares for this column.

cell_rules.py decides the meaning of a cell. Plain spellings in a block of cells are converted at once. Each different
other spelling is read once by its rule, with the same result. A cell that does not fit becomes a `Flaw`, whose words
have no part of the cell. No function here raises.

[data.t2] rest
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as arrow
import pyarrow.compute as compute

from site_agent.trainer.data.cell_rules import (
    LARGEST_MAGNITUDE,
    LONGEST_NUMBER,
    MISSING,
    PLAIN_DATE,
    UNDECLARED,
    UNKNOWN_POSITION,
    CodeRule,
    DateRule,
    Flaw,
    IntervalRule,
    NumberRule,
)
from site_agent.trainer.data.columns import (
    CategoricalFeature,
    DateFeature,
    DayColumn,
    GroupColumn,
    NumericFeature,
    TermsFeature,
    patterns_of,
)
from site_agent.trainer.data.contract import BinaryTarget, CellTarget, Contract, MultiClassTarget, RegressionTarget
from site_agent.trainer.data.mistakes import Mistakes, unusable
from site_agent.trainer.data.sources.blocks import texts_of

DAYS_PER_YEAR: Final = 365.25
_REMEMBERED_CELLS: Final = 1 << 10
_LONGEST_REMEMBERED: Final = 100

Numbers: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]
Parser: TypeAlias = Callable[[str], float | Flaw]


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """The numbers and flaws of a block of cells of one column.

    `values` are float64 (cells,), NaN for flawed cells. `flaws` has for each flaw, by its words, the places of its
    cells in the block. `outside` has the numbers outside of the declared range, for a hint about their unit.
    """

    values: Numbers
    flaws: Mapping[str, Sequence[int]]
    outside: Numbers = field(default_factory=lambda: np.empty(0))


# Parses an array of texts without nulls, or of numbers with nulls for missing values; see `Block`.
BlockParser: TypeAlias = Callable[[arrow.Array], Parsed]


@dataclass(frozen=True)
class Spelling:
    """The spelling of numbers and missing values, and the place of times, which are the same for a whole table."""

    decimal: str
    markers: tuple[str, ...]
    zone: str | None = None


def spelling_of(contract: Contract) -> Spelling:
    """Return the spelling that a contract declares."""
    return Spelling(contract.format.decimal, contract.missing_markers, contract.format.zone)


def feature_parser(feature: NumericFeature | CategoricalFeature, spelling: Spelling) -> BlockParser:
    """Return a function that reads a feature's cells. It returns NaN for a missing number and -1 for a missing code."""
    return _parser(feature_rule(feature, spelling), spelling.decimal)


def feature_rule(feature: NumericFeature | CategoricalFeature, spelling: Spelling) -> NumberRule | CodeRule:
    """Return the rule by which a cell of a feature is read and checked."""
    markers = {"", *spelling.markers, *feature.missing_markers}
    refuses = feature.missing == "refuse"
    match feature:
        case NumericFeature():
            return NumberRule(markers, feature.range or (None, None), refuses_missing=refuses)
        case CategoricalFeature():
            return CodeRule(_positions(feature.codes), markers, missing=MISSING if refuses else UNKNOWN_POSITION)
        case _:
            assert_never(feature)


def group_parser(group: GroupColumn, spelling: Spelling, *, for_prediction: bool) -> BlockParser:
    """Return a function that reads the codes of a group column. In predictions an undeclared code is "unknown"."""
    markers = {"", *spelling.markers, *group.missing_markers}
    otherwise = UNKNOWN_POSITION if for_prediction else UNDECLARED
    return _parser(CodeRule(_positions(group.codes), markers, otherwise=otherwise), spelling.decimal)


def _positions(codes: Sequence[str]) -> dict[str, float]:
    return {code: float(place) for place, code in enumerate(codes)}


def target_parser(target: CellTarget, spelling: Spelling) -> BlockParser:
    """Return a function that reads outcomes as 0 and 1, class numbers or numbers. A missing outcome is a flaw."""
    markers = {"", *spelling.markers}
    match target:
        case BinaryTarget():
            codes = dict.fromkeys(target.negative or (), 0.0) | dict.fromkeys(target.positive, 1.0)
            otherwise = 0.0 if target.negative is None else UNDECLARED
            rule: NumberRule | CodeRule = CodeRule(codes, markers, missing=MISSING, otherwise=otherwise)
        case MultiClassTarget():
            rule = CodeRule(_positions(target.codes), markers, missing=MISSING)
        case RegressionTarget():
            rule = NumberRule(markers, target.range or (None, None), refuses_missing=True)
        case _:
            assert_never(target)
    return _parser(rule, spelling.decimal)


def date_rule(column: DateFeature | DayColumn, spelling: Spelling) -> DateRule:
    """Return the rule by which a cell with a date is read and checked."""
    markers = {"", *spelling.markers, *column.missing_markers}
    refuses_future = column.future == "refuse"
    return DateRule(markers, patterns_of(column.pattern), refuses_future=refuses_future, zone=spelling.zone)


def date_parser(column: DateFeature | DayColumn, spelling: Spelling, today: date) -> BlockParser:
    """Return a function that reads dates as days since the year 1. A missing date is NaN."""
    rule = date_rule(column, spelling)
    refuses_after = float(today.toordinal()) if rule.refuses_future else math.inf
    written = [_DATE_AND_TIME if one == PLAIN_DATE else f"^{_as_expression(one)}$" for one in rule.patterns]
    absent = _arrow_texts(sorted(rule.markers))
    remembered = _Remembered(lambda cell: rule.read(cell, today))

    def parse_block(cells: arrow.Array) -> Parsed:
        return _each_once(cells, remembered, lambda texts: _days(texts, written, absent, refuses_after))

    return parse_block


_DATE_AND_TIME: Final = r"^(?P<Y>\d{4})-(?P<m>\d{2})-(?P<d>\d{2})(?:[ T]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?$"
_PARTS: Final = {"%H": r"(?:[01]\d|2[0-3])", "%M": r"[0-5]\d", "%S": r"[0-5]\d",
                 "%Y": r"(?P<Y>\d{4})", "%m": r"(?P<m>\d{2})", "%d": r"(?P<d>\d{2})"}  # fmt: skip
_DAYS_BEFORE_1970: Final = date(1970, 1, 1).toordinal()


def _as_expression(pattern: str) -> str:
    """Return a regular expression for dates written with all leading zeros. All other dates are read by strptime."""
    pieces = re.split("(%.)", pattern)
    return "".join(_PARTS.get(piece, re.escape(piece)) for piece in pieces)


def _days(
    texts: arrow.StringArray, written: Sequence[str], absent: arrow.Array, refuses_after: float
) -> tuple[Numbers, Bools]:
    """Convert texts that are plain dates to day numbers. Also return a mask of the texts that were not converted."""
    days, is_open = np.full(len(texts), np.nan), np.ones(len(texts), dtype=bool)
    for one in written:
        found, is_other = _days_written(texts, one, absent, refuses_after)
        days[~is_other] = found[~is_other]
        is_open &= is_other
    return days, is_open


def _days_written(
    texts: arrow.StringArray, written: str, absent: arrow.Array, refuses_after: float
) -> tuple[Numbers, Bools]:
    days, is_open = np.full(len(texts), np.nan), np.ones(len(texts), dtype=bool)
    is_plain = compute.and_not(compute.match_substring_regex(texts, written), compute.is_in(texts, value_set=absent))
    parts = compute.extract_regex(texts.filter(is_plain), written)
    iso = compute.binary_join_element_wise(*(compute.struct_field(parts, [name]) for name in "Ymd"), _HYPHEN)
    try:
        found = np.from_dlpack(iso.cast(arrow.date32()).cast(arrow.int32()))
    except arrow.ArrowInvalid:  # including a 30th of February
        return days, is_open
    places = np.flatnonzero(_numpy_mask(is_plain))
    numbers = found.astype(np.float64) + _DAYS_BEFORE_1970
    is_sound = (numbers >= 1) & (numbers <= refuses_after)  # there is no year 0
    days[places[is_sound]] = numbers[is_sound]
    is_open[places[is_sound]] = False
    return days, is_open


def _parser(rule: NumberRule | CodeRule, decimal: str) -> BlockParser:
    if isinstance(rule, NumberRule):
        return _NumberColumn(rule, decimal)
    remembered = _Remembered(lambda cell: rule.read(cell, decimal))
    return lambda cells: _each_once(cells, remembered, _none)


class _Remembered(dict[str, float | Flaw]):
    """Stores the results for some cells that were parsed before, because most columns repeat their cells."""

    def __init__(self, parse: Parser) -> None:
        super().__init__()
        self._parse = parse

    def __missing__(self, cell: str) -> float | Flaw:
        value = self._parse(cell)
        if len(self) < _REMEMBERED_CELLS and len(cell) <= _LONGEST_REMEMBERED:
            self[cell] = value
        return value


# The usual conversions between Python or numpy and pyarrow load pandas, if it is installed, to recognise its objects.
# This would take each trainer a fifth of a second before its first round. The following conversions do not load pandas.
_NO_TEXT: Final = arrow.nulls(1, arrow.string())[0]
_NAN: Final = arrow.DoubleArray.from_buffers(arrow.float64(), 1, [None, arrow.py_buffer(np.array([np.nan]))])[0]


def _arrow_texts(texts: Sequence[str]) -> arrow.StringArray:
    parts = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, parts)], dtype=np.int32)
    return arrow.StringArray.from_buffers(len(parts), arrow.py_buffer(ends), arrow.py_buffer(b"".join(parts)))


_HYPHEN: Final = _arrow_texts(["-"])[0]


def _arrow_mask(mask: Bools) -> arrow.BooleanArray:
    bits = arrow.py_buffer(np.packbits(mask, bitorder="little"))
    return arrow.BooleanArray.from_buffers(arrow.bool_(), len(mask), [None, bits])


def _numpy_mask(mask: arrow.BooleanArray) -> Bools:
    return np.from_dlpack(mask.cast(arrow.uint8())).astype(bool)


def _none(texts: arrow.StringArray) -> tuple[Numbers, Bools]:
    return np.full(len(texts), np.nan), np.ones(len(texts), dtype=bool)


def _each_once(
    cells: arrow.Array, remembered: _Remembered, at_once: Callable[[arrow.StringArray], tuple[Numbers, Bools]]
) -> Parsed:
    """Parse each distinct cell only once: with `at_once` if possible, otherwise cell by cell."""
    texts = texts_of(cells)
    assert texts is not None  # numbers always are
    encoded = texts.dictionary_encode()
    places = np.from_dlpack(encoded.indices)
    values, is_open = at_once(encoded.dictionary)
    wrong: dict[str, list[int]] = {}
    for place, cell in zip(
        np.flatnonzero(is_open).tolist(), encoded.dictionary.filter(_arrow_mask(is_open)).to_pylist(), strict=True
    ):
        value = remembered[cell]
        if isinstance(value, Flaw):
            wrong.setdefault(value.words, []).append(place)
        else:
            values[place] = value
    flaws = {words: np.flatnonzero(np.isin(places, kinds)).tolist() for words, kinds in wrong.items()}
    return Parsed(values=values[places], flaws=_in_order(flaws))


def _in_order(flaws: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Sort the flaws of a block by the first row in which each flaw occurs."""
    return dict(sorted(flaws.items(), key=lambda kind: kind[1][0]))


class _NumberColumn:
    def __init__(self, rule: NumberRule, decimal: str) -> None:
        self._rule, self._decimal = rule, decimal
        self._absent_words = _arrow_texts(sorted(rule.words))
        self._absent_numbers = np.array(sorted(rule.numbers))
        self._remembered = _Remembered(lambda cell: rule.read(cell, decimal))

    def __call__(self, cells: arrow.Array) -> Parsed:
        values = _plain_numbers(cells, self._absent_words, self._decimal)
        if values is not None:
            return self._judged(values)
        # Only cells that are not plain numbers are read one by one, because a wrong cell must not slow down its whole
        # block.
        texts = texts_of(cells)
        assert texts is not None
        is_plain = _plain_cells(texts, self._absent_words, self._decimal)
        easy = _plain_numbers(texts.filter(_arrow_mask(is_plain)), self._absent_words, self._decimal)
        if easy is None:
            is_plain, easy = np.zeros(len(texts), dtype=bool), np.empty(0)
        hard = texts.filter(_arrow_mask(~is_plain))
        return _together(is_plain, self._judged(easy), _each_once(hard, self._remembered, _none))

    def _judged(self, values: Numbers) -> Parsed:
        """Check numbers against the rule, in place. NaN means a missing number. No number may be too large."""
        if len(self._absent_numbers):
            values[np.isin(values, self._absent_numbers)] = np.nan
        is_outside = (values < self._rule.low) | (values > self._rule.high)
        absent = np.flatnonzero(np.isnan(values)).tolist() if self._rule.refuses_missing else []
        flaws = {MISSING.words: absent} if absent else {}
        outside = values[is_outside]
        if len(outside):
            flaws[self._rule.outside.words] = np.flatnonzero(is_outside).tolist()
            values[is_outside] = np.nan
        return Parsed(values=values, flaws=_in_order(flaws), outside=outside)


def _together(is_first: Bools, first: Parsed, second: Parsed) -> Parsed:
    """Merge the parsed results of two parts of a block. `is_first` marks the cells of the first part."""
    values, flaws = np.empty(len(is_first)), dict[str, list[int]]()
    for part, places in ((first, np.flatnonzero(is_first)), (second, np.flatnonzero(~is_first))):
        values[places] = part.values
        for words, found in part.flaws.items():
            flaws[words] = sorted([*flaws.get(words, []), *places[list(found)].tolist()])
    outside = np.concatenate([first.outside, second.outside])
    return Parsed(values=values, flaws=_in_order(flaws), outside=outside)


def _plain_numbers(cells: arrow.Array, words: arrow.StringArray, decimal: str) -> Numbers | None:
    """Return float64 (cells,) from texts without nulls or numbers, or None if any cell is not a plain number.

    Missing values, which are nulls or the texts `words`, become NaN.
    """
    if not arrow.types.is_string(cells.type):
        return _usable(_as_numpy(cells.cast(arrow.float64(), safe=False)), is_number=True, missing=cells.null_count)
    values = _converted(cells, words, decimal)
    # Blanks around a number are rare. Removing blanks first would take a fifth of the time of every column.
    return _converted(compute.utf8_trim_whitespace(cells), words, decimal) if values is None else values


def _plain_cells(texts: arrow.StringArray, words: arrow.StringArray, decimal: str) -> npt.NDArray[np.bool_]:
    """Return which texts are missing or certainly convertible numbers: shape (texts,)."""
    point = "[.]" if decimal == "." else decimal
    number = rf"^-?(\d{{1,30}}({point}\d{{0,30}})?|{point}\d{{1,30}})([eE]-?\d)?$"
    is_plain = compute.or_(compute.match_substring_regex(texts, number), compute.is_in(texts, value_set=words))
    return _numpy_mask(is_plain)


def _converted(texts: arrow.StringArray, words: arrow.StringArray, decimal: str) -> Numbers | None:
    lengths = compute.binary_length(texts)
    if (compute.max(lengths).as_py() or 0) > LONGEST_NUMBER:
        return None
    # Most tables have an empty cell for an unknown value. Then it is enough to check the lengths of the texts.
    has_only_empty = len(words) == 1
    is_absent = compute.invert(lengths.cast(arrow.bool_())) if has_only_empty else compute.is_in(texts, value_set=words)
    texts = compute.if_else(is_absent, _NO_TEXT, texts)
    if decimal != ".":
        texts = compute.replace_substring(compute.replace_substring(texts, ".", " "), decimal, ".")
    try:
        return _usable(_as_numpy(texts.cast(arrow.float64())), is_number=False, missing=texts.null_count)
    except arrow.ArrowInvalid:
        return None


def _as_numpy(values: arrow.DoubleArray) -> Numbers:
    # A copy, because the source array is read-only.
    return np.array(np.from_dlpack(compute.fill_null(values, _NAN)), dtype=np.float64)


def _usable(values: Numbers, *, is_number: bool, missing: int) -> Numbers | None:
    """Return the numbers, or None if a number is too large for computations or if a text means NaN."""
    with np.errstate(invalid="ignore"):
        is_within = np.abs(values) <= LARGEST_MAGNITUDE
    outside = len(values) - np.count_nonzero(is_within)
    if is_number:
        return values if outside == np.count_nonzero(np.isnan(values)) else None
    return values if outside == missing else None


def interval_rule(feature: DateFeature) -> IntervalRule:
    """Return the rule for the time between two days: its unit, and its limits."""
    return IntervalRule(
        feature.range or (None, None),
        sign=1 if feature.since is not None else -1,
        divisor=DAYS_PER_YEAR if feature.unit == "years" else 1.0,
        unit=feature.unit,
        refuses_missing=feature.missing == "refuse",
    )


def interval_of(feature: DateFeature, own: Parsed, days: Mapping[str, Parsed]) -> Parsed:
    """Convert a block of a date feature to times between two days, in the feature's unit: float64 of shape (rows,).

    `own` has the block's dates in days, NaN if missing or flawed, and `days` the parsed block of every date column. The
    flaws are those of the dates, of the interval's range, and missing values if the contract refuses them. A flawed row
    is not reported again as missing.
    """
    other = days.get(feature.other)
    other_days = other.values if other is not None else float(date.fromisoformat(feature.other).toordinal())
    rule = interval_rule(feature)
    values = rule.length(own.values, other_days)
    flaws = {words: list(places) for words, places in own.flaws.items()}
    known = np.zeros(len(values), dtype=bool)
    for parsed in (own, other) if other is not None else (own,):
        for places in parsed.flaws.values():
            known[list(places)] = True
    outside = np.flatnonzero(rule.is_outside(values))
    if outside.size:
        flaws[rule.outside.words] = outside.tolist()
        values[outside] = np.nan
        known[outside] = True
    if rule.refuses_missing:
        absent = np.flatnonzero(np.isnan(values) & ~known)
        if absent.size:
            flaws[MISSING.words] = absent.tolist()
    return Parsed(values=values, flaws=flaws)


# The limit is the same as for images. After encoding, this number of values needs 1 GiB.
LARGEST_TABLE_COUNTS: Final = 1 << 28


Counts: TypeAlias = npt.NDArray[np.uint16]


class TermsReader:
    """Reads the lists and notes of a table, block by block."""

    def __init__(self, columns: Sequence[TermsFeature], markers: tuple[str, ...]) -> None:
        self._rules = {column.name: column.rule(markers) for column in columns}
        self._width = sum(rule.width for rule in self._rules.values())
        self._blocks: dict[str, list[Counts]] = {name: [] for name in self._rules}

    def reserve(self, rows: int) -> None:
        """Raise DataError if a table with so many rows needs more memory than this program reserves."""
        if rows * self._width > LARGEST_TABLE_COUNTS:
            raise unusable(
                what=f"The lists and notes become {self._width} columns, and the table has at least {rows} rows. With "
                f"this number of columns, this program reads at most {LARGEST_TABLE_COUNTS // self._width} rows.",
                remedy="Declare fewer buckets or codes in the contract, or use fewer rows.",
            )

    def take(self, name: str, cells: Sequence[str], rows: npt.NDArray[np.int64], mistakes: Mistakes) -> None:
        """Count the terms in cells of a column, and record mistakes. `rows` has the row number of each cell."""
        rule = self._rules[name]
        counts = np.zeros((len(cells), rule.width), dtype=np.uint16)  # a cell has fewer terms than uint16 can count
        flaws: dict[str, list[int]] = {}
        for place, cell in enumerate(cells):
            found = rule.read(cell)
            if isinstance(found, Flaw):
                flaws.setdefault(found.words, []).append(int(rows[place]))
            else:
                counts[place, list(found)] = list(found.values())
        self._blocks[name].append(counts)
        for words, numbers in flaws.items():
            mistakes.add(words, numbers, column=name)

    def counts(self, rows: int) -> dict[str, Counts]:
        """Return the counts of each column, uint16 of shape (rows, columns). A missing column has zeros."""
        found = {}
        for name, blocks in self._blocks.items():
            width = self._rules[name].width
            found[name] = np.concatenate(blocks) if blocks else np.zeros((rows, width), dtype=np.uint16)
            found[name].flags.writeable = False
        return found
