"""Drafts the line of a contract for one column, with comments about the guesses that a person must check."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from site_agent.desk.column_profile import steps_around
from site_agent.desk.drafting.table_profile import MOST_LISTED, ColumnDraft
from site_agent.desk.examination.code_spellings import two_spellings
from site_agent.desk.examination.suspicious_numbers import disguised_numbers, far_values, mixed_units
from site_agent.trainer.data.cells import Numbers

_NUMBER_WORD: Final = (
    r"([ ._-]?(id|ids|identifier|nr|no|num|number|nummer|code|key|names?|source_value|pseudonym|kennung|kennziffer))"
)
_IDENTIFIER: Final = re.compile(
    rf"((patient(en|s)?|pat|subject|person(en)?|participant|proband(en)?|teilnehmer|mrn|pid|id|pseudonym){_NUMBER_WORD}?"
    rf"|(nhs|chi|hospital|record|medical.?record|study|studien|client|versicherten){_NUMBER_WORD}|identifier|kennung)",
    re.I,
)
# A number of a stay or of a row. A column with the patient's own number is preferred.
_STAY: Final = re.compile(
    rf"(case|row){_NUMBER_WORD}?|(fall|aufnahme|encounter|visit|admission|besuchs?|zeilen?){_NUMBER_WORD}", re.I
)
_NAME: Final = re.compile(
    r"((patient|subject|person|first|last|full|family|given|middle)s?[ ._-]?)?(sur|fore)?names?", re.I
)
_LATE: Final = re.compile(r"time|follow|surviv|discharg|death|died|event|outcome|length.?of.?stay|^los$", re.I)
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_YAML_WORDS: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_YES: Final = (
    "yes", "true", "y", "positive", "present", "dead", "died", "deceased", "malignant", "case", "ill", "sick",
)  # fmt: skip
_MOST_WHOLE_CODES: Final = 10
_MOST_WORDS: Final = 30


@dataclass(frozen=True, kw_only=True)
class Line:
    """A drafted column of a contract: its settings in order, and remarks for a person."""

    keys: tuple[tuple[str, str], ...]
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the drafted settings of the column as one line of YAML."""
        return "{" + ", ".join(f"{key}: {value}" for key, value in self.keys) + "}"


def is_identifier(column: ColumnDraft) -> bool:
    """Return whether a column seems to identify the patient of a row."""
    is_named = _IDENTIFIER.fullmatch(column.name) or is_of_stay(column)
    return bool(is_named) and (column.has_many_codes or len(column.codes) > column.rows / 2)


def is_of_stay(column: ColumnDraft) -> bool:
    """Return whether the column's name suggests the number of a stay or of a row, of which a patient can have more."""
    return _STAY.fullmatch(column.name) is not None


def is_coded(column: ColumnDraft) -> bool:
    """Return whether a column seems to contain a few codes."""
    if column.has_many_codes or not column.codes or column.patterns or column.separator:
        return False
    if column.is_numeric:
        return column.whole == column.numbers and 1 < len(column.codes) <= _MOST_WHOLE_CODES
    return 1 < len(_shown_codes(column)) <= _MOST_WORDS


def suspicious_numbers(column: ColumnDraft) -> tuple[float, ...]:
    """Return the numbers of a column that probably mean "not known". Return none if the draft reads no numbers."""
    is_number = column.is_numeric and not (is_coded(column) or column.patterns or is_identifier(column))
    return disguised_numbers(column.sample) if is_number else ()


def feature_line(column: ColumnDraft, shared: frozenset[float] = frozenset()) -> Line:
    """Return the contract's line for a feature. A column without information gets a line with `role: ignore`.

    Args:
        shared: markers for "not known" that the draft lists for the whole table.
    """
    late: tuple[str, ...] = ()
    if _LATE.search(column.name):
        late = ("its name suggests that the value is known only after the outcome",)
    if column.seems_identifier or (is_identifier(column) and not column.patterns):
        late = (*late, "suspicious: this may be an identifier of patients. If so, give it the role patient or ignore")
    if not column.values:
        return _ignored(column, "no row has a value")
    if _NAME.fullmatch(column.name):
        return _ignored(column, "its name suggests a person's name, so it is never read")
    if column.patterns:
        return _date(column, late)
    if column.has_clashing_dates:
        return _ignored(
            column,
            "suspicious: dates with the day first and with the month first cannot be distinguished: correct the table",
        )
    if column.separator:
        return _listed(column, column.separator, late)
    if column.is_mostly_numeric:
        words = (
            f"suspicious: {column.other_texts} of {column.rows} cells are no number, for example because of a decimal "
            "comma. Correct the table, or list marks for missing values under missing_markers"
        )
        return _numeric(column, (*late, words), shared)
    if is_coded(column):
        return _coded(column, late, shared)
    if column.is_numeric:
        return _numeric(column, late, shared)
    if len(column.codes) == 1 and not column.has_many_codes:
        return _ignored(column, "all values are equal")
    return _ignored(
        column,
        "text with many different values, such as names or notes. With `role: ignore` it is never read. To read its "
        "words, write `role: feature, type: text, buckets: 512`",
        *late,
    )


def identifier_line(column: ColumnDraft) -> Line:
    """Return the contract's line for the column that identifies the patient of a row."""
    words: tuple[str, ...] = ("rows of one patient stay in the same part of the split",)
    if is_of_stay(column):
        words += (
            "suspicious: its name suggests the number of a stay or a row. If patients can return, give the role "
            "patient to the column with the patient's number",
        )
    return _line(column, "patient", (), words)


def target_line(column: ColumnDraft) -> Line:
    """Return the contract's line for the outcome."""
    words: tuple[str, ...] = (
        "the outcome: check that this column is the outcome, and that the positive code is right",
    )
    codes = sorted(_shown_codes(column), key=_order)
    words += tuple(_spellings(codes)) if is_coded(column) else ()
    if is_coded(column) and len(codes) == 2:
        positive = next((code for code in codes if code.lower() in _YES), codes[-1])
        negative = next(code for code in codes if code != positive)
        keys = [("task", "binary"), ("positive", _list([positive])), ("negative", _list([negative]))]
        return _line(column, "target", (*keys, ("positive_name", "positive")), words)
    if is_coded(column):
        either = f"or task: binary, positive: {_list(codes[1:])}, negative: {_list(codes[:1])}"
        return _line(column, "target", (("task", "multi-class"), ("codes", _list(codes))), (*words, either))
    return _line(column, "target", (("task", "regression"),), words)


def scalar(text: str) -> str:
    """Return a text as a YAML value: without quotes if YAML then reads the same text, otherwise in quotes."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS else json.dumps(text)


def rounded_range(low: float, high: float) -> tuple[float, float]:
    """Return rounded limits around two values. If `low` is at least 0, both limits are at least 0."""
    step = 10.0 ** math.floor(math.log10(high - low or abs(high) or 1.0))
    step = step / 2 if (high - low) / step < 4 else step
    below, above = steps_around(low, high, step)
    return (max(below, 0.0) if low >= 0 else below), above


def _date(column: ColumnDraft, late: tuple[str, ...]) -> Line:
    ways = column.patterns
    written = ", ".join(map(scalar, ways))
    keys = [("type", "date"), ("pattern", written if len(ways) == 1 else f"[{written}]")]
    keys += [("since", '"2000-01-01"'), ("unit", "days")]
    words = ["a date is read as the time since another day: name the day or the date column that makes sense"]
    if len(ways) > 1:
        counts = ", ".join(f"{way} in {count} row{'s' * (count != 1)}" for way, count in ways.items())
        words.append(f"dates are written in {len(ways)} ways: {counts}")
    if column.ambiguous_patterns:
        others = " or ".join(way for way in column.ambiguous_patterns if way not in ways)
        words.append(f"suspicious: every date could also be written as {others}. Does the day or the month come first?")
    if column.repeated_day:
        words.append(
            f"suspicious: {column.repeated_day:.0%} of the rows have the same date. If this date means not known, add "
            "it to missing_markers"
        )
    return _line(column, "feature", (*keys, *_missing(column, ())), (*words, *late))


def _coded(column: ColumnDraft, late: tuple[str, ...], shared: frozenset[float]) -> Line:
    listed = sorted(_shown_codes(column), key=_order)
    codes = [code for code in listed if not (_is_number(code) and float(code) in shared)]
    kind = "binary" if len(codes) == 2 else "categorical"
    words = list(late)
    spellings = _spellings(codes)
    words += spellings
    if column.is_numeric and len(codes) > 2 and not spellings:
        words.append("whole numbers: codes (categorical), codes in order (ordinal), or an amount (numeric)?")
    once = len(column.codes) - len(listed)
    if once:
        words.append(f"{once} further words occur only once and are not listed")
    keys = [("type", kind), ("codes", _list(codes))]
    if kind == "categorical" and not column.is_numeric:
        keys.append(("encoding", "one-hot"))
    if _is_complete(column) and codes == listed:
        keys.append(("missing", "refuse"))
    return _line(column, "feature", keys, words)


def _listed(column: ColumnDraft, separator: str, late: tuple[str, ...]) -> Line:
    """Return the contract's line for a list of codes. A rare code could identify a patient, so no code is shown."""
    found = len(column.listed)
    buckets = min(MOST_LISTED, max(16, 1 << (found - 1).bit_length()))
    number = f"{found} or more" if found >= MOST_LISTED else str(found)
    words = f"a list of codes, of which {number} differ. With `codes` instead of `buckets` each has its own column"
    keys = [("type", "codes"), ("separator", json.dumps(separator)), ("buckets", str(buckets))]
    missing = ("missing", "refuse" if _is_complete(column) else "empty")
    return _line(column, "feature", (*keys, missing), (words, *late))


def _spellings(codes: Sequence[str]) -> list[str]:
    found = two_spellings(codes)
    return [] if found is None else [f"suspicious: {found.words}. Write each code in one way in the table"]


def _numeric(column: ColumnDraft, late: tuple[str, ...], shared: frozenset[float]) -> Line:
    sample, words = column.sample, list(late)
    markers = disguised_numbers(sample)
    own = [marker for marker in markers if marker not in shared]
    true = sample[~np.isin(sample, markers)]
    kept = [value for value in (column.low, column.high) if value not in markers]
    keys = [("type", "numeric")]
    if len(true):
        possible, suspicion = _possible(np.array([*true, *kept]))
        low, high = rounded_range(float(possible.min()), float(possible.max()))
        keys.append(("range", f"[{low:g}, {high:g}]"))
        words.append("range: widen it to the values that are possible in a patient; unit: add it")
        words += suspicion
    if own:
        shown = " and ".join(f"{marker:g}" for marker in own)
        if len(true):
            words.append(f"suspicious: {shown} lies far from all other values, as a marker for not known does")
        else:
            words.append(f"suspicious: every value is {shown}, as a marker for not known; if so, set `role: ignore`")
        keys.append(("missing_markers", _list([f"{marker:g}" for marker in own])))
    if column.other_texts and column.is_numeric:
        words.append(f"{column.other_texts} cells have text that is not a number")
    return _line(column, "feature", (*keys, *_missing(column, markers)), words)


def _possible(values: Numbers) -> tuple[Numbers, list[str]]:
    """Return the values that probably have the same unit, and remarks on the other values."""
    mixed = mixed_units(values)
    if mixed is not None:
        words = f"suspicious: {mixed.words}. The range holds the more frequent unit: convert the others to it"
        return values[~mixed.is_minority], [words]
    is_far = far_values(values)
    words = "suspicious: some values lie too far from the others. The range leaves them out"
    return values[~is_far], [words] if is_far.any() else []


def _missing(column: ColumnDraft, markers: Sequence[float]) -> tuple[tuple[str, str], ...]:
    return (("missing", "refuse" if _is_complete(column) and not markers else "median-and-flag"),)


def _is_complete(column: ColumnDraft) -> bool:
    return not column.empty and not column.markers


def _line(column: ColumnDraft, role: str, keys: Sequence[tuple[str, str]], words: Sequence[str]) -> Line:
    absent = column.empty + sum(column.markers.values())
    told = [f"{absent} of {column.rows} rows have no value"] if absent and column.values else []
    return Line(keys=(("name", scalar(column.name)), ("role", role), *keys), words=(*words, *told))


def _ignored(column: ColumnDraft, *words: str) -> Line:
    return _line(column, "ignore", (), words)


def _shown_codes(column: ColumnDraft) -> list[str]:
    """Return the column's codes, except for words that occur only once, because such a word could be a name."""
    return [code for code, count in column.codes.items() if count > 1 or (column.is_numeric and _is_number(code))]


def _list(codes: Sequence[str]) -> str:
    return "[" + ", ".join(code if _is_number(code) else json.dumps(code) for code in codes) + "]"


def _is_number(code: str) -> bool:
    return re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?", code) is not None


def _order(code: str) -> tuple[int, float, str]:
    return (0, float(code), "") if _is_number(code) else (1, 0.0, code)
