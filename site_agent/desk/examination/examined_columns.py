"""Finds problems in single columns: values that are all equal or mostly missing, suspicious numbers, spellings, notes.

The rules for suspicious numbers only choose which rows a person looks at. The program changes no value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.examination.finding import Finding, row_warning
from site_agent.trainer.data.cells import DAYS_PER_YEAR, Numbers
from site_agent.trainer.data.columns import CategoricalFeature, DateFeature, NumericFeature
from site_agent.trainer.data.contract import MultiClassTarget
from site_agent.trainer.data.labelled_files import unit_in
from site_agent.trainer.data.run_table import is_missing
from site_agent.trainer.data.tables import Table

# Numbers that people write for "not known".
_SIGNED: Final = (77, 88, 96, 97, 98, 99, 777, 888, 996, 997, 998, 999, 7777, 8888, 9996, 9997, 9998, 9999, 99999)
_ALONE: Final = (-1.0, -2.0, -3.0, -7.0, -8.0, -9.0, 0.0, 99.9, 999.9, 999999.0)
MARKERS: Final = (*(float(sign * one) for one in _SIGNED for sign in (-1, 1)), *_ALONE)
_FEWEST_OTHERS: Final = 5
_FAR_STEPS: Final = 10.0
# About ten standard deviations of logarithms, in distances from the median to the first or last decile (1.28 of them).
_FAR_LOGS: Final = 8.0
_FAR_BELOW: Final = 3.0
_FAR_SIGNED: Final = 40.0
_FEWEST_IDENTIFIERS: Final = 20
DAYS: Final = "days that a spreadsheet or SAS counts, seconds since 1970, or an identifier? Export dates as 2020-01-31"
UNITS: Final = "its codes are units, so numbers of another column seem to have several; export them in one unit"
DATED: Final = "some codes are days, as a spreadsheet makes of 1-2; import them as text"
_MONTH: Final = r"(jan|feb|m[aä]r|apr|ma[iy]|ju[nl]|aug|sep|o[ck]t|nov|de[cz])"
_SHORT: Final = {"yes": "y", "ja": "j", "oui": "o", "no": "n", "nein": "n", "non": "n"}
_DATED: Final = re.compile(r"date|datum|born|birth|geb|dob|day|dt$", re.I)
_DAY_1910, _DAY_2000, _DAY_2031, _SECOND_2000, _SECOND_2036 = 3654, 36526, 47849, 946_684_800, 2_082_758_400
_DIFFERENT: Final = 0.7  # patients come again
_NUMBER_WORD: Final = (
    r"([ ._-]?(id|ids|identifier|nr|no|num|number|nummer|code|key|names?|source_value|pseudonym|kennung|kennziffer))"
)
# Digits of a person's number from the last, times these, have a sum that 11 divides: NHS and CHI; BSN; CPR and more.
_CHECKS: Final = ((*range(1, 11), 0), (-1, *range(2, 10), 0, 0), (1, 2, 3, 4, 5, 6, 7, 2, 3, 4, 5))
IDENTIFIER: Final = re.compile(
    rf"((patient(en|s)?|pat|subject|person(en)?|participant|proband(en)?|teilnehmer|mrn|pid|id|pseudonym|nhs|chi|ssn|nino"
    rf"|medicare|medicaid|personnummer){_NUMBER_WORD}?|identifier|kennung"
    rf"|(hospital|record|medical.?record|study|studien|client|versicherten){_NUMBER_WORD})",
    re.I,
)


def column_findings(table: Table, unread: Container[str | None]) -> Iterator[Finding]:
    """Yield the warnings about each column. Columns in `unread` have cells that could not be read, and errors."""
    for feature in table.contract.features:
        values, name = table.features[feature.name], feature.name
        there = values[~is_missing(feature, values)]
        if not len(there):
            continue  # `unusable_columns` reports it
        if there.min() == there.max():
            yield Finding(level="warning", key=f"constant:{name}", words=f"column {name}: all values are equal")
        if name not in unread and (share := 1 - len(there) / len(values)) > 0.5:
            words = f"column {name}: {share:.0%} of the rows have no value"
            yield Finding(level="warning", key=f"mostly-missing:{name}", words=words)
        is_named = IDENTIFIER.fullmatch(name) and len(np.unique(there)) >= 12  # fewer may be codes, as of studies
        if (is_number := isinstance(feature, NumericFeature)) and seem_days(name, values):
            yield Finding(level="warning", key=f"days:{name}", words=f"column {name}: {DAYS}")
        elif is_named or (is_number and seem_identifiers(values)):
            words = f"column {name}: its name or numbers are an identifier's; if a patient's, role patient or ignore"
            yield Finding(level="warning", key=f"identifier:{name}", words=words)
        if isinstance(feature, CategoricalFeature):
            yield from _spellings(table, name, feature.codes, values)
            if seem_dated(feature.codes):
                yield Finding(level="warning", key=f"dated:{name}", words=f"column {name}: {DATED}")
            if seem_units(feature.codes):
                yield Finding(level="warning", key=f"units:{name}", words=f"column {name}: {UNITS}")
        else:
            yield from suspicious(table, name, values)
        if isinstance(feature, DateFeature):
            words = f"column {name}: two days are over 120 years apart; is one of another calendar, or a mark?"
            far = 120 * (1 if feature.unit == "years" else DAYS_PER_YEAR)
            yield from row_warning(table, f"apart:{name}", words, np.abs(values) > far)
    coded = (one for one in table.contract.features if isinstance(one, CategoricalFeature))
    if named := [one.name for one in coded if one.concept is not None and one.concept_codes is None]:
        words = f"column {', '.join(named)}: codes that the plan lacks, or has by other names, need concept_codes, such"
        words += " as [female, male, null], in the order of codes"
        yield Finding(level="note", key="concept-codes", words=words)
    target = table.contract.target
    if isinstance(target, MultiClassTarget) and table.target is not None:
        yield from _spellings(table, target.name, target.classes, table.target)
    for group in table.contract.groups:
        if group.name in table.group_positions:
            yield from _spellings(table, group.name, group.codes, table.group_positions[group.name])


def _spellings(table: Table, name: str, codes: Sequence[str], values: Numbers) -> Iterator[Finding]:
    for one, other in two_spellings([code for place, code in enumerate(codes) if (values == place).any()]):
        words = f"column {name}: {one} and {other} seem to be two spellings of one code; use one of them in the table"
        yield from row_warning(table, f"two-spellings:{name}", words, values == codes.index(other))


def two_spellings(codes: Sequence[str]) -> list[tuple[str, str]]:
    """Return pairs of codes that differ only in capitals, blanks or marks, such as "Type 1" and "type-1"."""
    seen, found = dict[str, str](), []
    for code in codes:
        plain = "".join(letter for letter in code.casefold() if letter.isalnum()) or code
        if any(sign in code for sign in "+-<>=,/" + "." * (not code[:1].isalpha())) and any(map(str.isdigit, code)):
            plain = code.casefold()  # a sign has a meaning: -1 and 1, < 5 and > 5, 1.5 and 15, but not I21.9 and I219
        plain = _SHORT.get(plain, plain)
        if plain in seen:
            found.append((seen[plain], code))
        seen.setdefault(plain, code)
    return found


def suspicious(table: Table, name: str, values: Numbers) -> Iterator[Finding]:
    """Yield warnings about numbers, float64 (rows,), that may be marks for not known or have another unit."""
    markers = unlikely_markers(values)
    for marker in markers:
        words = f"column {name}: the value {marker:g} is far from the other values; does {marker:g} mean 'not known'?"
        yield from row_warning(table, f"disguised:{name}:{marker:g}", words, values == marker)
    words = f"column {name}: values are too far from the others; is a decimal point missing, or is the unit wrong?"
    yield from row_warning(table, f"far:{name}", words, far_values(np.where(np.isin(values, markers), np.nan, values)))


def unlikely_markers(values: Numbers) -> tuple[float, ...]:
    """Return the numbers of a column, float64 (rows,), that probably mean "not known", in rising order.

    A number of MARKERS is returned if it is far from the other values: by ten times the usual step between neighbouring
    values and a fifth of their span; or if it is beyond them all and there far more often than any of them. Zero is
    returned only if the other values are far above it, by such steps or by their span. If all values are one such
    number it is returned too.
    """
    present, counts = np.unique(values[~np.isnan(values)], return_counts=True)
    is_marker = np.isin(present, MARKERS)
    candidates, others = present[is_marker], present[~is_marker]
    if not len(others) and len(present) == 1:
        return (float(present[0]),)
    if not len(candidates) or len(others) < _FEWEST_OTHERS:
        return ()
    low, high, step = float(others[0]), float(others[-1]), float(np.median(np.diff(others)))
    far = max(_FAR_STEPS * step, 0.2 * (high - low))
    usual, most = float(np.median(counts[~is_marker])), int(counts[~is_marker].max())

    def is_far(value: float) -> bool:
        count = int(counts[present == value][0])
        is_often = value != 0 and count > most and count >= max(_FEWEST_OTHERS, 5 * usual)  # more often than any other
        if is_often and not low <= value <= high:
            return True
        if value > 0:
            return value > high + far
        if value < 0:
            return low - value > far or (low >= 0 and value <= -7)
        return low >= 0.2 * float(np.median(others)) and low >= min(_FAR_STEPS * step, high - low)

    return tuple(value for value in map(float, candidates) if is_far(value))


def far_values(values: Numbers) -> npt.NDArray[np.bool_]:
    """Return which values, bool (rows,), are so far from all others that a decimal point may be missing.

    `values` are float64 (rows,), NaN if missing. Distances are those of logarithms; in a column where more than one in
    a hundred values is negative they are those of the values. A group of values far from all others is far too.
    """
    has_signs = bool((values < 0).sum() > 0.01 * (~np.isnan(values)).sum())
    is_there, nothing = ~np.isnan(values) if has_signs else values > 0, np.zeros(len(values), dtype=bool)
    there = values[is_there]
    if len(there) < 40 or len(np.unique(there)) < 12:  # deciles of fewer values are chance
        return nothing
    low, middle, high = np.quantile(there, [0.1, 0.5, 0.9])
    if not low < middle < high:
        return nothing
    if has_signs:
        is_far = (values - middle > _FAR_SIGNED * (high - middle)) | (middle - values > _FAR_SIGNED * (middle - low))
        return np.asarray(is_far)
    logs = np.log(np.where(is_there, values, middle) / middle)
    is_above = logs > _FAR_LOGS * math.log(high / middle)
    # Near zero, logarithms of ordinary small amounts differ much, so the difference itself must be large too.
    is_below = (logs < -_FAR_LOGS * math.log(middle / low)) & (middle - values > _FAR_BELOW * (middle - low))
    return np.asarray(is_above | (is_below & is_there)) | (is_there & _apart(logs, is_there))


def _apart(logs: Numbers, is_there: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which values are in the smaller of two groups, with a gap between them as between two units."""
    levels = np.unique(logs[is_there])
    gaps = np.diff(levels)
    place = int(gaps.argmax())
    is_high = logs > (levels[place] + levels[place + 1]) / 2
    is_few = is_high if is_high[is_there].mean() < 0.5 else ~is_high
    groups = min(place + 1, len(levels) - place - 1), is_few[is_there].mean()
    usual = gaps[:place] if place + 1 > len(levels) / 2 else gaps[place + 1 :]  # those of the larger group
    is_gap = gaps[place] > max(math.log(2.0), 2.5 * float(usual.max()))  # wider than any within a group
    return np.asarray(is_few & (is_gap and groups[0] >= _FEWEST_OTHERS and groups[1] > 0.02), dtype=bool)


def seem_days(name: str, values: Numbers) -> bool:
    """Return whether numbers, float64 (rows,), are like days of a spreadsheet, or (milli)seconds since 1970."""
    there = values[~np.isnan(values) & ~np.isin(values, MARKERS)]
    first = _DAY_1910 if _DATED.search(name) else _DAY_2000
    spans = ((first, _DAY_2031), *((_SECOND_2000 * one, _SECOND_2036 * one) for one in (1, 1000)))
    is_in = any(bool(((there >= low) & (there < high)).all()) for low, high in spans)
    return len(there) >= _FEWEST_IDENTIFIERS and is_in


def seem_dated(codes: Sequence[str]) -> bool:
    """Return whether some codes, but not all, are days."""
    are_days = [re.fullmatch(rf"\d\d?[-. ]+{_MONTH}|{_MONTH}-\d\d|\d{{4}}-\d\d-\d\d", one, re.I) for one in codes]
    return any(are_days) and not all(are_days)


def seem_units(codes: Sequence[str]) -> bool:
    """Return whether several codes are all units."""
    return len(codes) > 1 and all(unit_in(f"({code})") for code in codes)


def seem_identifiers(values: Numbers) -> bool:
    """Return whether the numbers of a column, float64 (rows,), NaN if missing, seem to be numbers of patients.

    These have check digits, or are whole numbers of which most differ, with five digits or more or nearly consecutive.
    """
    there = values[~np.isnan(values)]
    if have_check_digits(there):
        return True
    if not np.isin(there[there != np.floor(there)], MARKERS).all():
        return False
    there = there[~np.isin(there, unlikely_markers(there))]
    if len(there) < _FEWEST_IDENTIFIERS or (there < 0).any() or (there != np.floor(there)).any():
        return False
    different = len(np.unique(there))
    if different < max(_FEWEST_IDENTIFIERS, _DIFFERENT * len(there)):
        return False
    low, high = float(there.min()), float(there.max())
    is_long = low >= 10_000 and high < 10 * low and float((there % 10 == 0).mean()) < 0.5
    return is_long or (different == len(there) and high - low < 1.1 * len(there))


def have_check_digits(values: Numbers) -> bool:
    """Return whether nearly all numbers, float64 (rows,), have a check digit, as those of persons do."""
    there = np.unique(values)[-1000:]
    digits = there[:, None] // 10.0 ** np.arange(len(_CHECKS[0])) % 10
    is_right = (digits @ np.array(_CHECKS).T % 11 == 0) & (there[:, None] > 1e6)
    return len(there) >= _FEWEST_IDENTIFIERS and bool((is_right.mean(axis=0) > 0.9).any())
