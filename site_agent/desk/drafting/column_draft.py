"""Drafts the line of a contract for one column, with comments about the guesses that a person must check.

A draft has no value of a patient: ranges are rounded outward, and a word that occurs once is not listed, because it
could be a name.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from types import MappingProxyType
from typing import Final

import numpy as np

from site_agent.desk.examination import examined_columns as examined
from site_agent.trainer.data import cell_rules
from site_agent.trainer.data.cell_rules import canonical_code, written_day
from site_agent.trainer.data.column_profile import steps_around
from site_agent.trainer.data.labelled_files import FileNote, unit_in

_TEXT_MARKERS: Final = frozenset(
    {
        *("?", "n/a", "#n/a", "#null!", "nan", "null", "<na>", "nat", "\\n", ".", "-", "--"),
        *("unknown", "missing", "not known", "unk", "k.a.", "00.00.0000", "00/00/0000", "0000-00-00"),
        "0000-00-00 00:00:00",
    }
)
# These words can also be an answer, so they are markers only among numbers and dates.
_ANSWERS: Final = frozenset({"none", "nil", "nd", "keine", "normal", "na"})
_POSITIVE: Final = re.compile(r"\d?\+{1,4}|\(\+\)|\+/-|pos(itive?)?|traces?", re.I)  # beside it, - is negative
_NUMBER: Final = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,3})?", re.ASCII)
_WITH_COMMA: Final = re.compile(r"[+-]?\d+,(\d\d?|\d{4,})", re.ASCII)  # and no thousands
_THOUSANDS: Final = re.compile(r"[+-]?\d{1,3}([\s'\u2019]\d{3})+([.,]\d+)?")  # blanks of any kind
_PADDED: Final = re.compile(r"0\d+", re.ASCII)  # a code, such as a postcode
_is_number: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?").fullmatch
_DATES: Final = re.compile(
    r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T].*)?|(19|20)\d{6}(\d{4}(\d\d)?)?|\d\d?[- ]?[A-Za-z]{3}[- ]?\d{4}", re.ASCII
)
_MONTH: Final = r"([-./]\d\d?[-./]|[-./ ]*[^\W\d]{3,9}\.?[-. ]*)"  # also in words, or alone: 1er mars 2024, 2024-05
_DAY: Final = re.compile(rf"\d{{4}}-((0\d|1[0-2])|\d\d?-\d\d?([ T].*)?)|\d\d?(er)?{_MONTH}(19|20)\d\d([ T:].*)?")
_HL7: Final = ("%Y%m%d", "%Y%m%d%H%M", "%Y%m%d%H%M%S")
_IN_LETTERS: Final = ("%d%b%Y", "%d-%b-%Y", "%d %b %Y")  # 01JAN2024
_PATTERNS: Final = ("%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%d-%m-%Y", *_HL7, *_IN_LETTERS)
_EITHER: Final = ("%d/%m/%Y", "%m/%d/%Y")  # no contract declares both
# A number of a patient with letters, such as P-10000: one word with a digit.
_NUMBERED: Final = re.compile(r"(?=[^\d]*\d)[\w./-]{2,40}")
_NAME: Final = re.compile(
    r"((patient|subject|person|first|last|full|family|given|middle)s?[ ._-]?)?(sur|fore|nach|vor|familien)?names?\d?"
    r"|((contact|kontakt)[ ._-]?person|next.of.kin|ansprechpartner(in)?)([ ._-]?names?)?",
    re.I,
)
_LATE: Final = re.compile(
    r"^(?!.*((admi|arriv)[a-z]*[ ._-]?(date)?[ ._-]?time|time.of.(admi|arriv)|(\b|_)in.?time)).*time"
    r"|follow|surviv|discharg|death|died|event|outcome|length.?of.?stay|^los$",
    re.I,
)
_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_YAML_WORDS: Final = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
# First words of a code or of its label: the event happened, or it did not.
_YES: Final = (
    *("1", "yes", "y", "true", "ja", "j", "wahr", "oui", "vrai", "si", "sí", "positive", "present", "dead", "died"),
    *("deceased", "décédé", "tot", "verstorben", "event", "malignant", "case", "ill", "sick"),
)
_NO: Final = (
    *("0", "no", "n", "not", "non", "none", "nein", "nicht", "kein", "keine", "false", "falsch", "faux", "negative"),
    *("absent", "alive", "vivant", "living", "lebt", "lebend", "censored", "benign", "control", "healthy"),
)
_WITH_UNIT: Final = re.compile(r"[-+<>]?\d+(?:[.,]\d+)?(\s?%|\s\S*[a-z]\S*|[a-z]([a-z]\S*|/\S+)|y)", re.I)
_RANKED: Final = re.compile(r"\W*\d+[^\d/]|\W+\d|\+|strong|very|rather|dis|sehr|eher|trifft|mild|moderate|leicht", re.I)
_SPLIT: Final = re.compile(r"\d{2,3}/\d{2,3}|\d{1,2}[-. ]?[A-Za-z]{3,9}[-. ]?(\d\d){1,2}")  # 120/80, 13MAY2024
_WITH_DIGIT: Final = re.compile(r"\W{0,3}\d[\d.,' ]*(\W.*)?", re.ASCII)  # but no code such as 1988F1
_PHRASE: Final = re.compile(r".{41,}|(.*?[^\W\d_]{2,}\b){3}.*", re.S)  # three words or more
_NOT_KNOWN: Final = re.compile(  # as a label of a code
    r"(is |was )?(unknown|not known|not stated|missing|no (answer|data|information)|do(es)?n.?t know|n[./]?a\.?"
    r"|unbekannt|keine angaben?|k\. ?a\.|wei(ß|ss) nicht|inconnu|ne sait pas|desconocido|sconosciuto|onbekend)",
    re.I,
)
_NINE: Final = 9.0  # the usual code for not known among codes to 4
_LONGEST_CODE: Final = 60
_DIFFERENT: Final = 0.7  # patients come again
_FEW: Final = 0.05


class ColumnDraft:
    """Guesses from its cells what kind of values a column has. `declared` cells are missing; `labels` are of codes."""

    declared: tuple[str, ...] = ()
    label = ""  # of the column
    labels: Mapping[str, str] = MappingProxyType({})

    def __init__(self, name: str, decimal: str, cells: Iterable[str]) -> None:
        found, self.unread = Counter(map(str.strip, cells)), Counter[str]()
        self.name, self._decimal, self.rows = name, decimal, found.total()
        is_marker = {text for text in found if text.lower() in _TEXT_MARKERS}
        if any(map(_POSITIVE.fullmatch, found)) and not any(text.lower().startswith("neg") for text in found):
            is_marker.discard("-")
        is_answer = {text for text in found if text.lower() in _ANSWERS}
        if is_answer and (others := found.keys() - is_marker - is_answer - {""}):
            without = ColumnDraft(name, decimal, Counter({text: found[text] for text in others}).elements())
            is_marker |= is_answer if without.is_numeric or without.patterns else set()
        self.markers = sorted(is_marker)
        self.own_markers = [one for one in self.markers if one == "-" or one.lower() in _ANSWERS]  # codes elsewhere
        self.texts = Counter({text: count for text, count in found.items() if text and text not in is_marker})
        self.filled = self.texts.total()
        self.is_complete = self.filled == self.rows
        numbers, self.beyond = list[tuple[float, int]](), 0
        for text, count in self.texts.items():
            plain = text if decimal == "." else text.replace(".", " ").replace(decimal, ".")
            plain = cell_rules.OPEN_END.sub(r">\1", plain)
            mark = cell_rules.LIMIT.fullmatch(plain) if plain[0] in cell_rules.LIMIT_SIGNS else None
            plain = mark[2] if mark else plain
            if len(plain) > _LONGEST_CODE or not _NUMBER.fullmatch(plain) or _PADDED.fullmatch(plain):
                continue
            if abs(float(plain)) <= cell_rules.LARGEST_MAGNITUDE:
                numbers.append((float(plain), count))
                self.beyond += count if mark else 0
        values = np.array(numbers).reshape(-1, 2)
        self.numbers = np.repeat(values[:, 0], values[:, 1].astype(np.int64))
        self.other_texts = self.filled - len(self.numbers)
        self.codes = self._few_codes()

    def _few_codes(self) -> Counter[str]:
        """Return the codes. A column with many different texts can have names or notes, which a draft never shows."""
        codes = Counter[str]()
        for text, count in self.texts.items():
            codes[canonical_code(text, self._decimal)] += count
            if len(codes) > 50 or len(text) > _LONGEST_CODE:
                return Counter()
        phrases = [count for code, count in codes.items() if _PHRASE.fullmatch(code)]
        kinds = len(phrases)  # phrases that are codes come again, on average as often as there are different ones
        are_codes = kinds <= 20 and sum(phrases) >= kinds * max(5, kinds)
        return codes if kinds < 2 or kinds <= len(codes) / 2 or are_codes else Counter()

    @property
    def is_numeric(self) -> bool:
        return len(self.numbers) > 0 and self.other_texts <= _FEW * self.filled

    @property
    def unlikely_codes(self) -> list[str]:
        """The codes that are probably marks for not known: by their labels, or numbers such as -99, far from others."""
        told = [code for code in self.shown_codes if _NOT_KNOWN.fullmatch(self.labels.get(code, ""))]
        numbers = {code: float(code) for code in self.shown_codes if _is_number(code) and code not in told}
        others = [number for number in numbers.values() if number == 0 or number not in (*examined.MARKERS, _NINE)]
        if len(others) < 2:
            return told
        low, high = min(others), max(others)
        return told + [
            code
            for code, one in numbers.items()
            if one not in others and (one < 0 <= low or one > 5 * max(1, high) or (one == _NINE and high < _NINE / 2))
        ]

    @cached_property
    def dated(self) -> dict[tuple[str, ...], int]:
        """How many cells each date format reads, and each two."""
        texts = [text for text in self.texts if len(text) <= 30 and _DATES.fullmatch(text)]
        read = {one: {text for text in texts if written_day(text, one) is not None} for one in _PATTERNS}
        ways = [*((one,) for one in _PATTERNS), *combinations(_PATTERNS, 2)]
        return {way: sum(self.texts[text] for text in set[str]().union(*(read[one] for one in way))) for way in ways}

    @property
    def patterns(self) -> tuple[str, ...]:
        """The date formats that each read nearly all cells. A person must choose if there are several."""
        return tuple(one for one in _PATTERNS if self.dated[one,] >= 0.99 * self.filled > 0)

    @property
    def has_typed_commas(self) -> bool:
        """Whether nearly all cells are numbers, some of them with a decimal comma beside others without."""
        typed = self.count(_WITH_COMMA)
        return typed > 0 and typed + len(self.numbers) >= (1 - _FEW) * self.filled

    @property
    def is_coded(self) -> bool:
        is_amount = len(self.numbers) > 0.5 * self.filled and self.count(cell_rules.MARKED) > 0
        if not self.codes or self.patterns or (is_amount and not self.is_numeric) or self.is_uncoded:
            return False
        if self.is_numeric:
            return 1 < len(self.codes) <= 10 and bool((self.numbers == np.floor(self.numbers)).all())
        return 1 < len(self.shown_codes) <= 30

    @property
    def is_uncoded(self) -> bool:
        """Whether the cells are days or months, numbers with thousands (1 234), or several with one unit (12 g/dl)."""
        units = Counter(found[1] for text in self.texts if (found := _WITH_UNIT.fullmatch(text)))
        grouped, is_day = self.count(_THOUSANDS), self.count(_DAY) >= 0.5 * self.filled > 0
        is_day |= 0 < grouped >= (1 - _FEW) * self.filled - len(self.numbers)
        return is_day or any(count > max(2, 0.5 * len(self.texts)) for count in units.values())

    @property
    def shown_codes(self) -> list[str]:
        """The codes in order. Words that occur only once are left out, because such a word could be a name."""
        shown = (code for code, count in self.codes.items() if count > 1 or (self.is_numeric and _is_number(code)))
        rank = {code: 2 if _POSITIVE.fullmatch(code) else 1 for code in shown}  # -, +, ++
        return sorted(rank, key=lambda code: (0, float(code), "") if _is_number(code) else (rank[code], 0.0, code))

    @property
    def likely_codes(self) -> list[str]:
        return [code for code in self.shown_codes if code not in self.unlikely_codes]

    @property
    def event(self) -> str | None:
        """Which of two codes is the event, if the words of the codes or of their labels say so, or they are 0 and 1."""
        told = {one: self.labels.get(one, one).lower() for one in self.likely_codes}
        named = f"{self.name} {'' if self.labels else self.label}".lower()
        if re.search("cens|cnsr|alive|surviv", named) or any("surviv" in one for one in told.values()):
            return None  # 1 may be the censored
        words = {one: re.split(r"\W", text)[0] for one, text in told.items()}
        negative = [code for code, word in words.items() if word in _NO]
        events = [code for code, word in words.items() if word in _YES] or [one for one in words if one not in negative]
        return events[0] if len(words) == 2 and len(events) == 1 and (negative or words[events[0]] != "1") else None

    @property
    def is_named_as_identifier(self) -> bool:
        few = min(self.filled / 2, 10)  # codes, as of studies
        return self.are_personal or (bool(examined.IDENTIFIER.fullmatch(self.name)) and not 0 < len(self.codes) <= few)

    @cached_property
    def are_personal(self) -> bool:
        """Whether the cells are numbers with check digits, also with blanks or dashes inside."""
        plain = [re.sub(r"[\s-]", "", text) for text in self.texts]
        return examined.have_check_digits(np.array([float(one[:15]) if one.isdecimal() else 0.0 for one in plain]))

    @property
    def has_identifiers(self) -> bool:
        if self.is_uncoded or max(max(self.dated.values()), self.count(cell_rules.MARKED)) > 0.5 * self.filled:
            return False
        if self.is_numeric:
            return examined.seem_identifiers(self.numbers)
        return self.are_personal or sum(map(bool, map(_NUMBERED.fullmatch, self.texts))) >= max(
            20, _DIFFERENT * self.filled
        )

    def count(self, pattern: re.Pattern[str]) -> int:
        return sum(count for text, count in self.texts.items() if pattern.fullmatch(text))


@dataclass(frozen=True, kw_only=True)
class Line:
    """A drafted column of a contract: its settings in order, and remarks for a person."""

    keys: tuple[tuple[str, str], ...]
    words: tuple[str, ...]

    @property
    def text(self) -> str:
        return "{" + ", ".join(f"{key}: {value}" for key, value in self.keys) + "}"


def feature_line(column: ColumnDraft) -> Line:
    """Return the contract's line for a feature. A column without information gets a line with `role: ignore`."""
    words: list[str] = []
    if _LATE.search(column.name):
        words.append("its name suggests that the value is known only after the outcome")
    if column.is_numeric and examined.seem_days(column.name, column.numbers):
        words.append(f"suspicious: {examined.DAYS}")
    elif column.has_identifiers or (column.is_named_as_identifier and not column.patterns):
        words.append("suspicious: this may be an identifier: role patient if it names no stay, else ignore")
    if not column.texts:
        return _ignored(column, *([] if column.unread else ["no row has a value"]))
    if _NAME.fullmatch(column.name):
        return _ignored(column, "its name suggests a person's name, so it is never read")
    if column.count(cell_rules.SHORT_YEAR) > 0.5 * column.filled:
        told = "the century is not guessed: export years of four digits, or ask which years are meant"
        return _ignored(column, f"suspicious: dates with years of two digits, and {told}", *words)
    if column.count(cell_rules.ZONED_TIME):
        told = "declare its `zone` in the format, such as zone: Europe/Berlin, and then this column with type: date"
        return _ignored(column, f"times with a distance from UTC, whose day depends on the place: {told}", *words)
    if column.patterns:
        return _date(column, words)
    if column.is_coded and not column.is_named_as_identifier:
        return _coded(column, words)
    if column.is_numeric and len(column.codes) != 1:
        return _numeric(column, words)
    if len(column.codes) == 1:
        told = "if it is a concept of the plan, as the sex in a hospital for women, declare it with all its codes"
        return _ignored(column, f"all values are equal; {told}")
    return _of_many_texts(column, words)


def _of_many_texts(column: ColumnDraft, words: list[str]) -> Line:
    dated = max(column.dated, key=column.dated.__getitem__)
    if column.dated[dated] >= 0.5 * column.filled:
        told = "a mark such as infinity or 0000-00-00 belongs to missing_markers, and no other value to a date"
        how = "day first and month first, mend them" if dated == _EITHER else f"`type: date, pattern: {_list(dated)}`"
        words.insert(0, f"suspicious: {column.dated[dated]} of {column.filled} cells are dates: {how}; {told}")
    elif column.is_uncoded or column.count(_SPLIT if column.has_identifiers else _WITH_DIGIT) > 0.5 * column.filled:
        told = "numbers with units (also 045Y), thousands, words or marks, two numbers such as 120/80, times, months"
        asked = "export plain numbers, each in a column of its own, and dates as 2020-01-31"
        words.insert(0, f"suspicious: most cells begin with a digit; {told} are not read: {asked}")
    many = "text with many different values, such as names, notes, lists of codes, or dates in several ways"
    return _ignored(column, f"{many}. With `role: ignore` it is never read", *words)


def identifier_line(column: ColumnDraft) -> Line:
    """Return the contract's line for the column that identifies the patient of a row."""
    words, again = ["rows of one patient stay in the same part of the split"], Counter(column.texts.values())
    if 0 < (several := len(column.texts) - again[1]) <= _FEW * len(column.texts):
        told = "one_row_per_patient: true if none may have several, else same_for_patient: true at sex and others"
        words.append(f"suspicious: {several} of {len(column.texts)} patients have several rows. Add {told}")
    return _line(column, "patient", (), words)


def follow_up_line(column: ColumnDraft, outcome: ColumnDraft) -> Line:
    """Return the contract's line for the time of follow-up beside an outcome."""
    words = [f"the time to {outcome.name} or the end of follow-up, no feature: correct the unit, or set `role: ignore`"]
    if (column.numbers <= 0).any():
        words.append("suspicious: some times are 0 or below. Correct them, or add `zero: keep` for times of 0")
    told = re.search(r"week|mo(nth|$)|y(ea)?r", column.name.lower())
    unit = "days" if told is None else {"w": "weeks", "m": "months", "y": "years"}[told[0][0]]
    marked = _marked(column, words)
    missing = [("missing", "allow")] if marked or not column.is_complete else []
    return _line(column, "follow-up", [("unit", unit), *marked, *missing], words)


def target_line(column: ColumnDraft, *, is_timed: bool) -> Line:
    """Return the line for the outcome, with a time of follow-up if `is_timed`. A person decides an unclear event."""
    words = ["the outcome: check that this column is the outcome, and that the positive code is right"]
    if is_timed:
        words = ["the outcome with a time of follow-up: positive is the event, negative is censored"]
    codes, unlikely = column.likely_codes, column.unlikely_codes
    marked = [] if column.is_coded else _marked(column, words)
    dropped = [] if column.is_complete and not unlikely and not marked else [("missing", "drop"), *marked]
    if unlikely and not marked:
        words.append(f"suspicious: {' and '.join(unlikely)} is like a marker for not known. If it is a code, list it")
        dropped.append(("missing_markers", _list(unlikely)))
    if column.patterns:
        words.append("suspicious: these are days; if an empty cell means that nothing happened, make it yes and no")
    if not column.is_coded:
        return _line(column, "target", [("task", "regression"), *_limit(column, words), *dropped], words)
    if len(codes) > 2 and not is_timed:
        no = [one for one in codes if re.split(r"\W", column.labels.get(one, one).lower())[0] in _NO]
        yes = [one for one in codes if one not in no]
        words += [f"or task: binary, positive: {_list(yes)}, negative: {_list(no)}"] * bool(no and yes)
        return _line(column, "target", [("task", "multi-class"), ("codes", _list(codes)), *dropped], words)
    event = column.event
    if event is None:
        shown = [f"{one} ({column.labels[one]})" if one in column.labels else one for one in codes]
        words.append(f"which of the codes {', '.join(shown)} is the event? Move it to positive")
        words.append("some programs write 1 for yes and 2 for no, others 1 for censored and 2 for the event")
    if len(codes) > 2:
        words.append("a code of another event, such as another death, stays in negative, and in the time's competing")
    keys = [("task", "binary"), ("positive", _list([event] if event else []))]
    return _line(column, "target", [*keys, ("negative", _list([x for x in codes if x != event])), *dropped], words)


def scalar(text: str) -> str:
    """Return a text as a YAML value: without quotes if YAML then reads the same text, otherwise in quotes."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _YAML_WORDS else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=not unicodedata.is_normalized("NFC", text) or not text.isprintable())


def rounded_range(low: float, high: float) -> tuple[float, float]:
    """Return rounded limits around two values. If `low` is at least 0, both limits are at least 0."""
    step = 10.0 ** math.floor(math.log10(high - low or abs(high) or 1.0))
    step = step / 2 if (high - low) / step < 4 else step
    below, above = steps_around(low, high, step)
    return (max(below, 0.0) if low >= 0 else below), above


def _date(column: ColumnDraft, words: list[str]) -> Line:
    pattern, *others = column.patterns
    keys = [("type", "date"), ("pattern", scalar(pattern)), ("since", '"2000-01-01"'), ("unit", "days")]
    keys += [("missing_markers", _list(column.own_markers))] if column.own_markers else []
    words.append("a date is read as the time since another day: name the day or the date column that makes sense")
    words.append("if follow-up ends on this date, set `role: follow-up` and remove `type`")
    if any(day.year < 1905 for text in column.texts if (day := written_day(text, pattern))):
        words.append("suspicious: some years are before 1905: another calendar, or numbers that are shown as dates?")
    if others:
        told = " or ".join(others)
        words.append(f"suspicious: every date could also be written as {told}. Does the day or the month come first?")
    return _line(column, "feature", [*keys, _missing(column)], words)


def _coded(column: ColumnDraft, words: list[str]) -> Line:
    unlikely, codes = column.unlikely_codes, column.likely_codes
    kind = "binary" if len(codes) == 2 else "categorical"
    if column.is_numeric and len(codes) > 2:
        words.append("whole numbers: codes (categorical), codes in order (ordinal), or an amount (numeric)?")
    if "0" in codes and column.name.lower().endswith("concept_id"):
        words.append("suspicious: 0 is OMOP's mark for a code that is not known: move it to missing_markers if so")
    if examined.seem_dated(codes):
        words.append(f"suspicious: {examined.DATED}")
    if any("+" in one[1:] and _NUMBER.fullmatch(one) for one in codes):  # 9.00000000000207e+17
        words.append("suspicious: some codes are rounded, as a spreadsheet stores long ones: export them as text")
    if not column.is_numeric and sum(map(bool, map(_WITH_COMMA.fullmatch, codes))) > len(codes) / 2:
        words.append("suspicious: numbers with a decimal comma as text: convert the column in the statistics program")
    if re.search("sex|gender|geschl", column.name, re.I) and (unsure := {*"UuOoXx"}.intersection(codes)):
        words.append(f"suspicious: does {min(unsure)} mean not known? Then move it to missing_markers")
    if examined.seem_units(codes):
        words.append(f"suspicious: {examined.UNITS}")
    if not column.is_numeric and len(codes) > 2 and len(list(filter(_RANKED.match, codes))) > len(codes) / 2:
        words.append("if its codes have an order: type: ordinal, codes in this order, and no encoding")
    if "NA" in codes:
        words.append("suspicious: NA can be a code, such as Namibia's, or a marker for not known: declare it as one")
    if once := len(column.codes) - len(column.shown_codes):
        words.append(f"{once} further words occur only once and are not listed")
    keys = [("type", kind), ("codes", _list(codes))]
    if kind == "categorical" and not column.is_numeric:
        keys.append(("encoding", "one-hot"))
    if unlikely:
        words.append(f"suspicious: {' and '.join(unlikely)} is like a marker for not known. If it is a code, list it")
        keys.append(("missing_markers", _list(unlikely)))
    elif column.is_complete:
        keys.append(("missing", "refuse"))
    return _line(column, "feature", keys, words)


def _numeric(column: ColumnDraft, words: list[str]) -> Line:
    values = column.numbers[~np.isin(column.numbers, examined.unlikely_markers(column.numbers))]
    keys, unit = [("type", "numeric")], unit_in(column.name)
    if len(values):
        is_far = examined.far_values(values)
        low, high = rounded_range(float(values[~is_far].min()), float(values[~is_far].max()))
        keys.append(("range", f"[{low:.15g}, {high:.15g}]"))
        words.append("range: widen it to the values that are possible in a patient" + "; unit: add it" * (not unit))
        if is_far.any():
            words.append("suspicious: some values lie too far from the others: another unit? The range leaves them out")
    marked = _marked(column, words)
    keys += [*marked, *_limit(column, words), *([("unit", _quoted(unit))] if unit else [])]
    if column.other_texts and column.is_numeric:
        words.append(f"{column.other_texts} cells have text that is not a number, or an infinite one")
    return _line(column, "feature", [*keys, _missing(column, is_marked=bool(marked))], words)


def _marked(column: ColumnDraft, words: list[str]) -> list[tuple[str, str]]:
    if far := [f"{marker:g}" for marker in examined.unlikely_markers(column.numbers)]:
        words.append(f"suspicious: {' and '.join(far)} lies far from all other values, as a marker for not known does")
    return [("missing_markers", _list([*far, *column.own_markers]))] if far or column.own_markers else []


def _limit(column: ColumnDraft, words: list[str]) -> list[tuple[str, str]]:
    if not column.beyond:
        return []
    words.append(f"suspicious: {column.beyond} cells have <, > or + at a number. Read them at-limit, half or missing")
    return [("detection_limit", "at-limit")]


def _missing(column: ColumnDraft, *, is_marked: bool = False) -> tuple[str, str]:
    return "missing", "refuse" if column.is_complete and not is_marked else "median-and-flag"


def _line(column: ColumnDraft, role: str, keys: Sequence[tuple[str, str]], words: Sequence[str]) -> Line:
    absent = column.rows - column.filled - column.unread.total()
    words = [*words, *(f"suspicious: {count} cells: {flaw}" for flaw, count in column.unread.items())]
    how = f", or {', '.join(column.markers)}" if column.markers else ""
    told = [f"{absent} of {column.rows} rows have no value{how}"] if absent and column.texts else []
    return Line(keys=(("name", scalar(column.name)), ("role", role), *keys), words=(*words, *told))


def _ignored(column: ColumnDraft, *words: str) -> Line:
    return _line(column, "ignore", (), words)


def _list(codes: Sequence[str]) -> str:
    return "[" + ", ".join(code if _is_number(code) else _quoted(code) for code in codes) + "]"


def noted_draft(name: str, decimal: str, cells: Sequence[str], notes: Mapping[str, FileNote]) -> ColumnDraft:
    """Return the draft of a column without the cells that its file calls missing. Notes are by name."""
    if (note := notes.get(name)) is None:
        return ColumnDraft(name, decimal, cells)
    missing = {cell for cell in set(cells) if note.means_missing(cell.strip())}
    draft = ColumnDraft(name, decimal, ["" if cell in missing else cell for cell in cells])
    draft.label, draft.labels = note.label, {canonical_code(code): label for code, label in note.labels.items()}
    draft.declared = tuple(sorted({canonical_code(cell) for cell in missing}))
    return draft


def noted_line(column: ColumnDraft, line: Line, note: FileNote | None) -> Line:
    """Return the drafted line of a column with what the file says about it."""
    if note is None:
        return line
    keys, words = dict(line.keys), [*note.told, *line.words]
    if note.ignored and keys["role"] != "patient":
        return Line(keys=(("name", keys["name"]), ("role", "ignore")), words=(note.ignored,))
    labels = {canonical_code(code): label for code, label in note.labels.items() if not note.means_missing(code)}
    is_labelled = len(labels) > 1 and column.codes.keys() <= labels.keys() and (column.codes or not column.texts)
    if keys["role"] in ("feature", "target", "ignore") and is_labelled:
        keys = _labelled(keys, labels)
        words = [word for word in words if "whole numbers" not in word and "all values are equal" not in word]
    elif note.labels:
        shown = ", ".join(f"{code} is {label}" for code, label in list(note.labels.items())[:5])
        told = "; a number that its label makes no amount belongs to missing_markers" * (keys.get("type") == "numeric")
        words.append(f"labels in the file: {shown}{told}")
    if keys.get("type") == "numeric":
        if note.written_unit:
            keys["unit"] = json.dumps(note.written_unit, ensure_ascii=False)
            words = [word.replace("; unit: add it", "") for word in words]
        if note.limits is not None:
            keys["range"] = f"[{note.limits[0]:.15g}, {note.limits[1]:.15g}]"
    if column.declared and keys["role"] in ("feature", "group", "follow-up", "target"):
        keys["missing_markers"] = json.dumps([*json.loads(keys.get("missing_markers", "[]")), *column.declared])
        words.append("missing_markers: what the file calls missing; a reason such as 'not asked' can also be a code")
    if note.label and note.label != column.name:
        keys["note"] = json.dumps(note.label[:200], ensure_ascii=False)
    return Line(keys=tuple(keys.items()), words=tuple(words))


def _labelled(keys: dict[str, str], labels: Mapping[str, str]) -> dict[str, str]:
    marks = {canonical_code(str(one)) for one in json.loads(keys.get("missing_markers", "[]"))}
    labels = {code: label for code, label in labels.items() if code not in marks}
    codes = json.dumps(list(labels), ensure_ascii=False)
    told = json.dumps(list(labels.values()), ensure_ascii=False)
    if keys["role"] == "target":
        if keys["task"] != "binary":
            return {**keys, "task": "multi-class", "codes": codes, "labels": told}
        for name in ("positive", "negative"):
            of = json.loads(keys.get(name, "[]"))
            if len(of) == 1:
                keys[f"{name}_name"] = json.dumps(labels[canonical_code(str(of[0]))], ensure_ascii=False)
        return keys
    kind = "binary" if len(labels) == 2 else "categorical"
    found = {"name": keys["name"], "role": "feature", "type": kind, "codes": codes, "labels": told}
    found |= {"missing_markers": keys["missing_markers"]} if marks else {}
    return {**found, "missing": "refuse"} if keys.get("missing") == "refuse" else found
