"""Defines the columns of a table other than the outcome: model inputs, patients and groups.

A measured feature is a number, or a date that is counted from or to another date. A coded feature is one of several
declared codes. The encoded columns of a feature follow only from its declaration.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from itertools import permutations
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from protos.plan.concepts import ConceptName
from protos.plan.documents import Document
from site_agent.trainer.data.codes import UNKNOWN, Code, Name, Words, check_codes, check_distinct, check_labels
from site_agent.trainer.data.terms import TermsFeature

_PATTERN: Final = re.compile(r"(%[YmdHMS]|[-./ :T])+")
_DATE: Final = date(2001, 12, 31)
# The first 28 days of each month, in two years whose digits could be a day and a month: 1012 as 10.12.
_DAYS: Final = tuple(date(year, month, day) for year in (1012, 2011) for month in range(1, 13) for day in range(1, 29))


Pattern = str | tuple[str, ...]


def patterns_of(pattern: Pattern) -> tuple[str, ...]:
    """Return the date formats of a column as a tuple."""
    return (pattern,) if isinstance(pattern, str) else pattern


def check_patterns(pattern: Pattern) -> None:
    """Raise ValueError if a pattern is unusable, or if two patterns read one text as different days."""
    patterns = patterns_of(pattern)
    if not patterns:
        raise ValueError("pattern needs at least one date format")
    for one in patterns:
        written = datetime(_DATE.year, _DATE.month, _DATE.day).strftime(one) if _PATTERN.fullmatch(one) else ""
        if any(one.count(part) != 1 for part in ("%Y", "%m", "%d")) or not written:
            raise ValueError("a pattern has %Y, %m and %d once, and between them no more than -./ :T and %H, %M, %S")
    check_distinct(patterns, "these patterns are named more than once")
    for one, other in permutations(patterns, 2):
        for day in _DAYS:
            read = _read(day.strftime(one), other)
            if read is not None and read != day:
                text = f"{day.strftime(one)} is {day} by {one}, and {read} by {other}"
                raise ValueError(f"two patterns read one text as different days: {text}")


def _read(text: str, pattern: str) -> date | None:
    try:
        return datetime.strptime(text, pattern).date()
    except ValueError:
        return None


class MeasuredFeature(Document):
    """The settings that numeric features and date features have in common.

    `missing` refuses a missing value, or fills it with the median of the training rows. `median-and-flag` adds a column
    that marks filled values. The encoding `standard` gives one z-scored column; `quantile` one column of normal scores
    by the training rows' quantiles; `piecewise-linear` gives `bins` columns (Gorishniy et al. 2022, equation 1).
    """

    name: Name
    role: Literal["feature"]
    range: tuple[float, float] | None = None
    missing: Literal["refuse", "median", "median-and-flag"] = "refuse"
    missing_markers: tuple[Code, ...] = ()
    encoding: Literal["standard", "quantile", "piecewise-linear"] = "standard"
    bins: int = Field(default=10, ge=2, le=100)
    required: bool = True
    same_for_patient: bool = False
    concept: ConceptName | None = None
    note: Words | None = None

    @model_validator(mode="after")
    def _ordered(self) -> MeasuredFeature:
        if self.range and not self.range[0] < self.range[1]:
            raise ValueError("range is the lowest and the highest possible value, lowest first")
        if not self.required and self.missing == "refuse":
            raise ValueError("a column that may be absent needs missing: median or median-and-flag")
        return self

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The names of the columns into which this feature is encoded for a network."""
        name = self.name.lower()
        values: tuple[str, ...] = (name,)
        if self.encoding == "piecewise-linear":
            values = tuple(f"{name} in bin {place} of {self.bins}" for place in range(1, self.bins + 1))
        return (*values, f"{name} is missing") if self.missing == "median-and-flag" else values


class NumericFeature(MeasuredFeature):
    """A column with a measured number."""

    type: Literal["numeric"]
    unit: Words | None = None


class DateFeature(MeasuredFeature):
    """A column with a date, read as a time in days, or in years of 365.25 days.

    The time is from `since` to the date, or from the date to `until`. Each of the two names another date column, or a
    day such as 2020-01-31. `pattern` is the format of the dates. It can be a list of formats, if no two of them read
    one text as different days.
    """

    type: Literal["date"]
    pattern: Pattern = "%Y-%m-%d"
    since: Name | None = None
    until: Name | None = None
    unit: Literal["days", "years"] = "days"
    future: Literal["refuse", "allow"] = "refuse"

    @model_validator(mode="after")
    def _counted(self) -> DateFeature:
        check_patterns(self.pattern)
        if (self.since is None) == (self.until is None):
            raise ValueError("give either since or until: a date is read as the time between two days")
        return self

    @property
    def other(self) -> str:
        """The column or day to which the time from this column's date is measured."""
        return self.since or self.until or ""


class CategoricalFeature(Document):
    """A column whose cells each contain one of several declared codes.

    The type `ordinal` means that the codes have an order, `binary` that there are two codes. The encoding `ordinal`
    gives one z-scored column: the code's position among the declared ones, and -1 for unknown. `one-hot` gives one
    column of 0 and 1 for each code and one for unknown. `embedding` gives `width` columns, in which codes are near each
    other if their training rows are alike in the other features.

    A code with fewer than `fewest_rows` training rows counts as unknown. `missing` decides what unknown becomes: a
    value of its own, the most common code with or without a column that marks it, or an error. `concept` names the
    concept of a plan that this column records. `concept_codes` has the concept's code for each own code, if they are
    written differently.
    """

    name: Name
    role: Literal["feature"]
    type: Literal["categorical", "ordinal", "binary"]
    codes: tuple[Code, ...]
    labels: tuple[Words, ...] | None = None
    encoding: Literal["ordinal", "one-hot", "embedding"] = "ordinal"
    width: int = Field(default=4, ge=1, le=64)
    missing: Literal["unknown", "refuse", "most-common", "most-common-and-flag"] = UNKNOWN
    missing_markers: tuple[Code, ...] = ()
    fewest_rows: int = Field(default=1, ge=1)
    required: bool = True
    same_for_patient: bool = False
    group: bool = False
    concept: ConceptName | None = None
    concept_codes: tuple[Words | None, ...] | None = None
    note: Words | None = None

    @model_validator(mode="after")
    def _usable(self) -> CategoricalFeature:
        check_codes(self.codes, fewest=1)
        check_labels(self.labels, self.codes)
        if UNKNOWN in self.codes:
            raise ValueError(f'the code "{UNKNOWN}" is reserved; declare it as one of missing_markers instead')
        if self.type == "binary" and len(self.codes) != 2:
            raise ValueError("a binary column has exactly two codes")
        if self.type == "ordinal" and self.encoding != "ordinal":
            raise ValueError(f"an ordinal column keeps its order; declare it categorical for {self.encoding}")
        if not self.required and self.missing == "refuse":
            raise ValueError("a column that may be absent cannot refuse missing values")
        if self.concept_codes is not None and (self.concept is None or len(self.concept_codes) != len(self.codes)):
            raise ValueError("concept_codes needs concept, and one entry for each code: the concept's code, or null")
        return self

    @property
    def has_unknown(self) -> bool:
        """Whether an unknown code gets its own value in the encoding."""
        return self.missing in ("unknown", "refuse")

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The names of the columns into which this feature is encoded for a network."""
        name = self.name.lower()
        values: tuple[str, ...] = (name,)
        if self.encoding == "one-hot":
            values = tuple(f"{name}={code}" for code in (*self.codes, *([UNKNOWN] if self.has_unknown else [])))
        elif self.encoding == "embedding":
            values = tuple(f"{name} at {place} of {self.width}" for place in range(1, self.width + 1))
        return (*values, f"{name} is missing") if self.missing == "most-common-and-flag" else values


class PatientColumn(Document):
    """The column that identifies the patient of a row. All rows of one patient are in the same part of the split."""

    name: Name
    role: Literal["patient"]
    one_row_per_patient: bool = False
    note: Words | None = None


class GroupColumn(Document):
    """A column by which results are divided, not read by the model. A feature has `group: true` instead."""

    name: Name
    role: Literal["group"]
    codes: tuple[Code, ...]
    labels: tuple[Words, ...] | None = None
    missing_markers: tuple[Code, ...] = ()
    note: Words | None = None

    @model_validator(mode="after")
    def _usable(self) -> GroupColumn:
        check_codes(self.codes, fewest=1)
        check_labels(self.labels, self.codes)
        return self


class DayColumn(Document):
    """A column with a date, to which the dates of other columns are compared. The model does not read this column.

    In a row without this date, the interval is missing. `pattern` as for DateFeature.
    """

    name: Name
    role: Literal["date"]
    pattern: Pattern = "%Y-%m-%d"
    missing_markers: tuple[Code, ...] = ()
    future: Literal["refuse", "allow"] = "refuse"
    note: Words | None = None

    @model_validator(mode="after")
    def _readable(self) -> DayColumn:
        check_patterns(self.pattern)
        return self


class IgnoredColumn(Document):
    """A column of the table that is never read."""

    name: Name
    role: Literal["ignore"]
    note: Words | None = None


# Columns with one value in each row. Lists and notes have several terms, which are counted separately.
Feature = NumericFeature | DateFeature | CategoricalFeature
FeatureChoice = Annotated[Feature | TermsFeature, Field(discriminator="type")]
