"""Converts the text cells of a column to numbers, as the contract declares for this column.

cell_rules.py decides the meaning of a cell. A cell that does not fit becomes a `Flaw`, whose words have no part of the
cell. No function here raises. A time of follow-up below 0 or after the administrative end is a mistake, and one of 0
unless the contract keeps it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as arrow
import pyarrow.compute as compute

from site_agent.trainer.data.cell_rules import (
    GROUPED,
    LARGEST_MAGNITUDE,
    LONGEST_NUMBER,
    MARKED,
    MISSING,
    NO_LIMITS,
    PLAIN_DATE,
    UNDECLARED,
    UNKNOWN_POSITION,
    CodeRule,
    DateRule,
    Flaw,
    IntervalRule,
    NumberRule,
    canonical_code,
)
from site_agent.trainer.data.columns import (
    CategoricalFeature,
    DateFeature,
    DayColumn,
    FollowUpColumn,
    GroupColumn,
    NumericFeature,
    patterns_of,
)
from site_agent.trainer.data.contract import BinaryTarget, Contract, MultiClassTarget, RegressionTarget, Target
from site_agent.trainer.data.table_sources import Cells, texts_of

DAYS_PER_YEAR: Final = 365.25
NEGATIVE: Final = Flaw("a time of follow-up below 0")
REVERSED: Final = Flaw("an end of follow-up before its start; are the two dates in the right columns?")
ZERO: Final = Flaw(
    "a time of follow-up of 0; correct it, or declare `zero: keep` if follow-up can end on the first day"
)
AFTER_END: Final = Flaw(
    "a day after the administrative end; write that day, with the code of a patient without the event, or correct `end`"
)
_MARKS: Final = (MARKED.pattern, GROUPED.pattern, r"[+-]?[1-9][.,]\d{3}", r"[+-]?\d{1,300}")
NO_MARKS: Final = np.zeros((len(_MARKS), 2))

Numbers: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """The numbers and flaws of a block of cells of one column.

    `values` are float64 (cells,), NaN for flawed cells. `flaws` has for each flaw, by its words, the places of its
    cells in the block.
    """

    values: Numbers
    flaws: Mapping[str, Sequence[int]]


BlockParser: TypeAlias = Callable[[Cells], Parsed]


def feature_parser(feature: NumericFeature | CategoricalFeature, contract: Contract) -> BlockParser:
    """Return a function that reads a feature's cells. It returns NaN for a missing number and -1 for a missing code."""
    return _parser(feature_rule(feature, contract), contract.format.decimal)


def feature_rule(feature: NumericFeature | CategoricalFeature, contract: Contract) -> NumberRule | CodeRule:
    """Return the rule by which a cell of a feature is read and checked."""
    markers = {"", *contract.missing_markers, *feature.missing_markers}
    refuses = feature.missing == "refuse"
    match feature:
        case NumericFeature():
            limits = feature.range or NO_LIMITS
            return NumberRule(markers, limits, refuses_missing=refuses, detection_limit=feature.detection_limit)
        case CategoricalFeature():
            return CodeRule(_positions(feature.codes), markers, missing=MISSING if refuses else UNKNOWN_POSITION)
        case _:
            assert_never(feature)


def group_parser(group: GroupColumn, contract: Contract, *, for_prediction: bool) -> BlockParser:
    """Return a function that reads the codes of a group column. In predictions an undeclared code is "unknown"."""
    markers = {"", *contract.missing_markers, *group.missing_markers}
    otherwise = UNKNOWN_POSITION if for_prediction else UNDECLARED
    return _parser(CodeRule(_positions(group.codes), markers, otherwise=otherwise), contract.format.decimal)


def _positions(codes: Sequence[str]) -> dict[str, float]:
    return {code: float(place) for place, code in enumerate(codes)}


def target_parser(target: Target, contract: Contract) -> BlockParser:
    """Return a function that reads outcomes as 0 and 1, class numbers or numbers. A missing outcome is a flaw."""
    markers = {"", *contract.missing_markers, *target.missing_markers}
    match target:
        case BinaryTarget():
            codes = dict.fromkeys(target.negative or (), 0.0) | dict.fromkeys(target.positive, 1.0)
            otherwise = 0.0 if target.negative is None else UNDECLARED
            rule: NumberRule | CodeRule = CodeRule(codes, markers, missing=MISSING, otherwise=otherwise)
        case MultiClassTarget():
            rule = CodeRule(_positions(target.codes), markers, missing=MISSING)
        case RegressionTarget():
            rule = NumberRule(
                markers, target.range or NO_LIMITS, refuses_missing=True, detection_limit=target.detection_limit
            )
        case _:
            assert_never(target)
    return _parser(rule, contract.format.decimal)


def date_parser(column: DateFeature | DayColumn, contract: Contract, today: date) -> BlockParser:
    """Return a function that reads dates as days since the year 1. A missing date is NaN."""
    markers = {"", *contract.missing_markers, *column.missing_markers}
    refuses_future = column.future == "refuse"
    rule = DateRule(markers, patterns_of(column.pattern), refuses_future=refuses_future, zone=contract.format.zone)
    return _BlockParser(lambda cell: rule.read(cell, today), lambda cells: _plain_days(cells, rule, today))


def _plain_days(cells: Cells, rule: DateRule, today: date) -> Numbers | None:
    """Convert a block of dates 2020-01-31 at once. Return None if the rule must judge a cell separately."""
    if not arrow.types.is_string(cells.type) or PLAIN_DATE not in rule.patterns:
        return None
    try:
        days = _without(cells, rule.markers).cast(arrow.date32()).cast(arrow.int32())
    except arrow.ArrowInvalid:
        return None
    values: Numbers = np.array(days.to_numpy(zero_copy_only=False), dtype=np.float64) + date(1970, 1, 1).toordinal()
    return None if (values < 1).any() or (rule.refuses_future and (values > today.toordinal()).any()) else values


def latest_day(days: Numbers) -> int:
    """Return the latest day of a month among days since the year 1, float64 (rows,), NaN if missing; 0 without one."""
    dates = (days[~np.isnan(days)] - date(1970, 1, 1).toordinal()).astype("datetime64[D]")
    return int((dates - dates.astype("datetime64[M]")).astype(np.int64).max(initial=-1)) + 1


def _without(cells: Cells, words: Collection[str]) -> Cells:
    return compute.if_else(compute.is_in(cells, arrow.array(words, arrow.string())), None, cells)


def _parser(rule: NumberRule | CodeRule, decimal: str) -> BlockParser:
    return _BlockParser(lambda cell: rule.read(cell, decimal), lambda cells: _plain_numbers(cells, rule, decimal))


def _plain_numbers(cells: Cells, rule: NumberRule | CodeRule, decimal: str) -> Numbers | None:
    """Convert a block at once. Return None if the rule must judge a cell separately."""
    if isinstance(rule, CodeRule):
        return None
    if arrow.types.is_string(cells.type):
        if (compute.max(compute.binary_length(cells)).as_py() or 0) > LONGEST_NUMBER:
            return None
        cells = _without(cells, rule.words)
        if decimal != ".":
            cells = compute.replace_substring(compute.replace_substring(cells, ".", " "), decimal, ".")
    try:
        values: Numbers = cells.cast(arrow.float64()).to_numpy(zero_copy_only=False)
    except arrow.ArrowInvalid:
        return None
    is_allowed = (values >= max(rule.low, -LARGEST_MAGNITUDE)) & (values <= min(rule.high, LARGEST_MAGNITUDE))
    for number in rule.numbers:
        is_allowed &= values != number
    missing = 0 if rule.refuses_missing else cells.null_count
    return values if np.count_nonzero(is_allowed) == len(values) - missing else None


def decimal_marks(cells: Cells) -> Numbers:
    """Return of the numbers with a mark, those that could be thousands, those below ten, and whole ones: (4, 2).

    For each it is how many there are, and their sum if the mark is a decimal mark.
    """
    found = NO_MARKS.copy()
    for place, pattern in enumerate(_MARKS if arrow.types.is_string(cells.type) else ()):
        some = cells.filter(compute.match_substring_regex(cells, rf"^\s*{pattern}\s*$"))
        plain = compute.replace_substring(compute.utf8_trim_whitespace(some), ",", ".")
        found[place] = len(some), compute.sum(plain.cast(arrow.float64())).as_py() or 0
    return found


def thousands(marks: Mapping[str, Numbers]) -> list[str | None]:
    """Return the columns whose numbers with a mark may be thousands, by `decimal_marks`, or None for the whole table.

    A column that another one proves wrong as a whole has whole numbers far above the others, or several lengths.
    """
    (marked, _), (grouped, _), *_ = sum(marks.values(), np.zeros((len(_MARKS), 2)))
    if marked == grouped:
        return [None] * bool(marked)
    found = list[str | None]()
    for name, ((marked, total), (grouped, _), (small, _), (whole, sums)) in marks.items():
        is_mixed = sums / whole > 10 * total / marked if whole and marked else 0 < small < marked
        found += [name] * bool(marked == grouped and is_mixed)
    return found


def emptied(cells: Cells, feature: NumericFeature, contract: Contract) -> set[float]:
    """Return which numbers of a block are missing only because a marker of the whole contract says so."""
    of_all, own = (NumberRule(one.missing_markers, NO_LIMITS, refuses_missing=False) for one in (contract, feature))
    is_text = arrow.types.is_string(cells.type)
    found = compute.utf8_trim_whitespace(cells) if is_text else cells
    written = {number: canonical_code(repr(number)) if is_text else number for number in of_all.numbers - own.numbers}
    return {number for number, text in written.items() if compute.any(compute.equal(found, text)).as_py()}


class _BlockParser(dict[str, float | Flaw]):
    """Parses a whole block `at_once`, or, where that returns None, each cell, and remembers the results for some."""

    def __init__(self, read: Callable[[str], float | Flaw], at_once: Callable[[Cells], Numbers | None]) -> None:
        super().__init__()
        self._read, self._at_once = read, at_once

    def __missing__(self, cell: str) -> float | Flaw:
        value = self._read(cell)
        if len(self) < 1 << 15 and len(cell) <= 100:  # as many as a lifetime has days
            self[cell] = value
        return value

    def __call__(self, cells: Cells) -> Parsed:
        if (whole := self._at_once(cells)) is not None:
            return Parsed(values=whole, flaws={})
        encoded = (cells.fill_null("") if arrow.types.is_string(cells.type) else cells).dictionary_encode("encode")
        found = [self[cell] for cell in texts_of(encoded.dictionary)]
        kinds = encoded.indices.to_numpy(zero_copy_only=False)
        flaws: dict[str, list[int]] = {}
        for kind, value in enumerate(found):
            if isinstance(value, Flaw):
                flaws.setdefault(value.words, []).append(kind)
                found[kind] = math.nan
        places = {words: np.flatnonzero(np.isin(kinds, wrong)).tolist() for words, wrong in flaws.items()}
        return Parsed(values=np.array(found, np.float64)[kinds], flaws=places)


def interval_rule(feature: DateFeature) -> IntervalRule:
    """Return the rule for the time between two days: its unit, and its limits."""
    return IntervalRule(
        feature.range or NO_LIMITS,
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
    wrong = [(rule.outside, rule.is_outside(values)), (MISSING, np.isnan(values) & rule.refuses_missing)]
    return with_flaws(values, own, other, wrong)


def with_flaws(
    values: Numbers, own: Parsed, other: Parsed | None, wrong: Sequence[tuple[Flaw, npt.NDArray[np.bool_]]]
) -> Parsed:
    """Return a block's values with the flaws of its `own` cells and those found next. A flawed row has only its first.

    The rows (bool (rows,)) of the flaws in `wrong` become NaN. `other` is a column that the values were computed with,
    which reports its flaws itself.
    """
    flaws = {words: list(places) for words, places in own.flaws.items()}
    known = np.zeros(len(values), dtype=bool)
    for parsed in (own, other):
        for places in () if parsed is None else parsed.flaws.values():
            known[list(places)] = True
    for flaw, is_wrong in wrong:
        found = np.flatnonzero(is_wrong & ~known)
        if len(found):
            flaws[flaw.words] = found.tolist()
            known[found], values[found] = True, np.nan
    return Parsed(values=values, flaws=flaws)


def follow_up_parser(column: FollowUpColumn, contract: Contract, today: date) -> BlockParser:
    """Return a function that reads a block of cells as numbers, or as days since the year 1."""
    common = {"name": column.name, "missing_markers": column.missing_markers}
    if column.pattern is None:
        number = {"role": "feature", "type": "numeric", "missing": "median"}
        return feature_parser(NumericFeature.model_validate(common | number), contract)
    return date_parser(DayColumn.model_validate(common | {"role": "date", "pattern": column.pattern}), contract, today)


def times_of(column: FollowUpColumn, own: Parsed, start: Parsed | None) -> Parsed:
    """Return the times of a block in the column's unit, float64 (rows,), NaN if missing or flawed.

    Args:
        own: what `follow_up_parser` read.
        start: the days of the column `since`, for dates.
    """
    values = own.values.copy()
    is_after = values > (math.inf if column.end is None else column.end.toordinal())
    if start is not None:
        values = (values - start.values) / (DAYS_PER_YEAR if column.unit == "years" else 1.0)
    wrong = [
        (AFTER_END, is_after),
        (NEGATIVE if start is None else REVERSED, values < 0.0),
        (ZERO, (values == 0.0) & (column.zero == "refuse")),
    ]
    if column.longest is not None:
        wrong.append((Flaw(f"a time longer than {column.longest:g} {column.unit}"), values > column.longest))
    wrong.append((MISSING, np.isnan(values) & (column.missing == "refuse")))
    return with_flaws(values, own, start, wrong)
