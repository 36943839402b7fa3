"""Defines what a model.json from another hospital may contain. Every value is checked when the file is read.

export_folder.py writes the same keys. The rules:

* an unknown key, a column that is there twice, an interval to a column without dates, and endless places are errors;
* a date's pattern and markers are never used. This hospital's contract reads the cells, and the model receives days;
* the limits of the other hospital's training rows are not applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from protos.plan.documents import Document
from protos.plan.networks.transformer_networks import LONGEST_NOTE
from site_agent.desk.export.row_reader import RowReader
from site_agent.trainer.data.cell_rules import PLAIN_DATE
from site_agent.trainer.data.codes import Name, check_distinct

_MOST_TERMS: Final = 2048  # of a column, as in a contract
_Limits = tuple[float | None, float | None]


class _CellRule(Document):
    kind: Literal["number", "code"]
    missing: tuple[str, ...]
    refuses_missing: bool
    range: _Limits = (None, None)
    codes: tuple[str, ...] = ()


class _DayRule(Document):
    kind: Literal["date"]
    missing: tuple[str, ...]
    pattern: str | tuple[str, ...]
    refuses_future: bool


class _TermsRule(Document):
    kind: Literal["terms"]
    missing: tuple[str, ...]
    refuses_missing: bool
    separator: Literal[";", "|", ",", " "] | None
    codes: Annotated[tuple[str, ...], Field(max_length=_MOST_TERMS)] | None
    buckets: Annotated[int, Field(ge=2, le=_MOST_TERMS)] | None
    longest: Annotated[int, Field(ge=2, le=LONGEST_NOTE)] | None

    @model_validator(mode="after")
    def _placed(self) -> _TermsRule:
        if (self.codes is None) == (self.buckets is None):
            raise ValueError("a list has either codes or buckets")
        return self


class _Interval(Document):
    sign: Literal[1, -1]
    divisor: Annotated[float, Field(gt=0)]
    unit: Literal["days", "years"]
    refuses_missing: bool
    range: _Limits
    other: str | None
    day: float


class _Named(Document):
    name: Name
    required: bool


class _Column(_Named):
    unit: str | None
    limits: _Limits
    rule: Annotated[_CellRule | _DayRule, Field(discriminator="kind")]
    interval: _Interval | None

    @model_validator(mode="after")
    def _counted(self) -> _Column:
        if (self.rule.kind == "date") != (self.interval is not None):
            raise ValueError("a date has an interval, and nothing else has one")
        return self


class _Day(_Named):
    rule: _DayRule


class _Terms(_Named):
    rule: _TermsRule


class _Image(Document):
    name: Name
    channels: Literal[1, 3]
    height: Annotated[int, Field(ge=1)]
    width: Annotated[int, Field(ge=1)]
    lowest: int
    highest: int
    window: tuple[float, float]


class Step(Document):
    """One operation of a received model."""

    name: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, int | str | tuple[int, ...]]


class _Outcome(Document):
    unit: str | None
    answers: str


class Description(Document):
    """The content of another hospital's model.json."""

    format: Literal["global-layers export 3"]
    run: str
    plan_digest: str
    task: Literal["binary", "multi-class", "regression"]
    classes: tuple[str, ...]
    outcome: _Outcome
    decimal: str
    features: tuple[_Column, ...]
    days: tuple[_Day, ...]
    terms: tuple[_Terms, ...]
    image: _Image | None
    module: None
    operations: tuple[Step, ...]
    result: str

    @model_validator(mode="after")
    def _named(self) -> Description:
        check_distinct([one.name for one in (*self.features, *self.days, *self.terms)], "columns with one name")
        kinds = self.kinds
        others = [one.interval.other for one in self.features if one.interval is not None]
        if any(other is not None and kinds.get(other) != "date" for other in others):
            raise ValueError("an interval to a column that is no date")
        if self.image is not None and (self.features or self.days or self.terms):
            raise ValueError("columns beside an image")
        return self

    @property
    def kinds(self) -> dict[str, str]:
        """The type of each column in words. The types of lists and notes are named by `kind_of_list`."""
        kinds: dict[str, str] = {one.name: one.rule.kind for one in self.features}
        lists = {one.name: kind_of_list(one.rule.separator) for one in self.terms}
        return kinds | dict.fromkeys([one.name for one in self.days], "date") | lists

    @property
    def reader(self) -> RowReader:
        """Return a reader of this hospital's rows by the other hospital's rules, without its training rows' limits."""
        features: list[dict[str, Any]] = [one.model_dump() | {"limits": (None, None)} for one in self.features]
        days: list[dict[str, Any]] = [one.model_dump() for one in self.days]
        for one in (*features, *days):
            if one["rule"]["kind"] == "date":
                one["rule"] |= {"missing": ("",), "pattern": PLAIN_DATE}
        terms = [one.model_dump() for one in self.terms]
        return RowReader({"features": features, "days": days, "terms": terms, "decimal": "."})

    @property
    def inputs(self) -> int:
        """The largest number of inputs of one row: one for each feature, each day, and each position of terms."""
        rules = [one.rule for one in self.terms]
        places = [len(one.codes or ()) + 1 + (one.buckets or 0) + (one.longest or 0) for one in rules]
        return len(self.features) + len(self.days) + sum(places)


def kind_of_list(separator: str | None) -> str:
    """Return the type of a column with lists or notes in words. Without a separator, the column has notes."""
    return "note" if separator is None else f"list with {'blanks' if separator == ' ' else separator}"
