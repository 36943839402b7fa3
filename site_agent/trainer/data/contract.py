"""Defines the data contract, a file in which a hospital describes the source and the columns of its table.

A data manager writes the contract as YAML. `read_contract` returns it as a frozen record or reports all mistakes at
once. The contract has names, units, ranges and codes. It has no patient's value, and nothing in it is guessed from the
table. All cells become text and are parsed as the columns declare, so a value has the same meaning in every format.

A plan with a question states for each site whether its outcome is the same, a related or another one. A contract states
the same for its own target. If the two differ, the site takes no part. This is checked before round 0.
"""

from __future__ import annotations

import hashlib
import re
from datetime import date
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, Discriminator, Field, StringConstraints, Tag, model_validator

from protos.errors import ConfigurationError, UnavailableError
from protos.plan.concepts import ConceptName, Unit
from protos.plan.documents import Document, read_document
from site_agent.trainer.data.columns import (
    CategoricalFeature,
    Code,
    DateFeature,
    DayColumn,
    Feature,
    FeatureChoice,
    FollowUpColumn,
    GroupColumn,
    IgnoredColumn,
    ImageColumn,
    NumericFeature,
    PatientColumn,
    Range,
    TableColumn,
    Words,
    check_codes,
    check_distinct,
    check_labels,
)

_READS: Final = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_HIDDEN: Final = re.compile(r"""--[^\n\r]*|'[^']*'|"[^"]*\"""")
# These change where a text or a comment ends, each in some databases. Beside them, every semicolon is an end.
_MISLEADING: Final = re.compile(r"\\|/\*|\$[\w\x80-\U0010ffff]*\$")


def _one_reading_query(text: str) -> str:
    """Return the query without its last semicolon and what follows it."""
    bare = text if _MISLEADING.search(text) else _HIDDEN.sub(lambda one: " '"[one[0][0] != "-"] * len(one[0]), text)
    end = len(bare.rstrip()) - 1 if bare.rstrip().endswith(";") else len(text)
    if not _READS.match(bare) or ";" in bare[:end]:
        raise ValueError("one query that begins with SELECT or WITH, without a semicolon inside")
    return text[:end]


def _place(name: str) -> str:
    try:
        ZoneInfo("" if name in ("EST", "MST", "HST") else name)  # without summer time, unlike most places
    except (ValueError, OSError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        raise ValueError("the name of a time zone, such as Europe/Berlin") from None
    return name


class _Format(Document):
    """What every format declares.

    `zone` is the place whose days are meant where a time has a distance from UTC, such as 2019-12-31 23:00:00+00.
    Without it such a time is a mistake, because another place has another day.
    """

    zone: Annotated[str, StringConstraints(max_length=100), AfterValidator(_place)] | None = None


class TableFormat(_Format):
    """The format of a text file. The encoding utf-8 accepts a byte order mark."""

    kind: Literal["text"] = "text"
    header: bool
    delimiter: Literal[",", ";", "\t", "|"] = ","
    encoding: Literal["utf-8", "utf-16", "iso-8859-1", "windows-1252"] = "utf-8"
    decimal: Literal[".", ","] = "."


class ExcelFormat(_Format):
    """A sheet of an Excel workbook (xlsx). Without `sheet` the first sheet is read.

    `decimal` is for numbers that were typed as text. For a formula, the value that Excel saved is read.
    """

    kind: Literal["excel"]
    sheet: Annotated[str, StringConstraints(min_length=1, max_length=31)] | None = None
    decimal: Literal[".", ","] = "."
    header: bool = True


class _NamedFormat(_Format):
    """A source that names its columns."""

    header: ClassVar[Literal[True]] = True
    decimal: ClassVar[Literal["."]] = "."  # it has numbers


class ParquetFormat(_NamedFormat):
    """A Parquet file."""

    kind: Literal["parquet"]


class LabelledFormat(_NamedFormat):
    """A file of SAS (sas7bdat, xpt), SPSS (sav, zsav, por) or Stata (dta).

    `encoding` is needed only if texts beyond ASCII are read and the file does not state its encoding (Stata before 14).
    """

    kind: Literal["sas-spss-stata"]
    encoding: Literal["utf-8", "iso-8859-1", "iso-8859-15", "windows-1250", "windows-1252"] | None = None


class SqlFormat(_NamedFormat):
    """One query to a database. The query can only read.

    The table in hospital.yaml is an SQLite file, or a file with one line: the URL. The database itself refuses to write
    in the query's transaction. The columns have the names in the query's result.
    """

    kind: Literal["sql"]
    query: Annotated[str, StringConstraints(max_length=100_000), AfterValidator(_one_reading_query)]


def _kind(value: Any) -> str:  # pydantic's input before any check
    return str(value.get("kind", "text") if isinstance(value, dict) else getattr(value, "kind", "text"))


Format = Annotated[
    Annotated[TableFormat, Tag("text")]
    | Annotated[ExcelFormat, Tag("excel")]
    | Annotated[ParquetFormat, Tag("parquet")]
    | Annotated[LabelledFormat, Tag("sas-spss-stata")]
    | Annotated[SqlFormat, Tag("sql")],
    Discriminator(_kind),
]


Task = Literal["binary", "multi-class", "regression"]


class _Target(TableColumn):
    """The column of the outcome. `missing: drop` skips rows without an outcome. They are counted and shown."""

    role: Literal["target"]
    missing: Literal["refuse", "drop"] = "refuse"
    missing_markers: tuple[Code, ...] = ()
    concept: ConceptName | None = None


class BinaryTarget(_Target):
    """A target column with yes or no. Codes not in `positive` are negative, or only those in `negative` if given.

    `concept_codes` has the concept's codes for negative and for positive, in this order; by default no and yes.
    """

    task: Literal["binary"]
    positive: tuple[Code, ...]
    negative: tuple[Code, ...] | None = None
    positive_name: Words = "positive"
    negative_name: Words = "negative"
    concept_codes: tuple[Words, Words] = ("no", "yes")

    @model_validator(mode="after")
    def _usable(self) -> BinaryTarget:
        if not self.positive or self.negative == ():
            raise ValueError("positive needs at least one code, and negative too if the contract has it")
        check_codes(codes := (*self.positive, *(self.negative or ())), fewest=1)
        check_distinct((*codes, *self.missing_markers), "these are codes and missing markers")
        if self.positive_name == self.negative_name:
            raise ValueError("positive_name and negative_name must differ")
        return self

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by index."""
        return (self.negative_name, self.positive_name)


class MultiClassTarget(_Target):
    """A target column whose cells each contain one of several declared codes. The code's index is the class."""

    task: Literal["multi-class"]
    codes: tuple[Code, ...]
    labels: tuple[Words, ...] | None = None
    concept_codes: tuple[Words | None, ...] | None = None

    @model_validator(mode="after")
    def _usable(self) -> MultiClassTarget:
        check_codes(self.codes, fewest=2)
        check_distinct((*self.codes, *self.missing_markers), "these are codes and missing markers")
        check_labels(self.labels, self.codes)
        check_labels(self.concept_codes, self.codes)
        return self

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by index."""
        return self.codes


class RegressionTarget(_Target):
    """A target column with a number."""

    task: Literal["regression"]
    classes: ClassVar[tuple[str, ...]] = ()
    unit: Unit | None = None
    range: Range | None = None
    detection_limit: Literal["at-limit", "half"] | None = None


Target = BinaryTarget | MultiClassTarget | RegressionTarget
Column = Annotated[
    FeatureChoice
    | Annotated[Target, Field(discriminator="task")]
    | PatientColumn
    | GroupColumn
    | DayColumn
    | FollowUpColumn
    | ImageColumn
    | IgnoredColumn,
    Field(discriminator="role"),
]


class Contract(Document):
    """The complete description of a table. If the file has no header, `columns` are in the order of the file.

    `put_aside` is the largest share of rows that may be left out because they cannot be read. A person accepts them.
    """

    format: Format
    put_aside: float = Field(default=0.0, ge=0, le=0.2)
    missing_markers: tuple[Code, ...] = ("",)
    columns: tuple[Column, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Contract:
        check_distinct([column.name for column in self.columns], "these columns are declared more than once")
        roles = [column.role for column in self.columns]
        if roles.count("target") != 1:
            raise ValueError(f"exactly one column has the role target, not {roles.count('target')}")
        for role in ("patient", "follow-up", "image"):
            if roles.count(role) > 1:
                raise ValueError(f"at most one column has the role {role}")
        if not self.features and self.image is None:
            raise ValueError("at least one column has the role feature or image")
        if self.features and self.image is not None:
            raise ValueError("a model for images reads no other column; give the features the role group or ignore")
        if self.follow_up is not None:
            self._check_follow_up(self.follow_up)
        check_distinct(self.encoded_columns, "these names are the same after encoding, in lower case")
        for column in self.columns:
            if isinstance(column, CategoricalFeature | GroupColumn):
                both = set(column.codes) & {*self.missing_markers, *column.missing_markers}
                if both:
                    raise ValueError(f"{column.name}: {', '.join(sorted(both))} is both a code and a missing marker")
            if isinstance(column, DateFeature):
                self._check_interval(column)
        return self

    def _check_follow_up(self, follow_up: FollowUpColumn) -> None:
        if not isinstance(self.target, BinaryTarget) or self.target.negative is None:
            raise ValueError(
                "a follow-up time needs a target of task: binary that lists positive and negative: which codes mean "
                "that the event happened, and which that it did not?"
            )
        if not set(follow_up.competing) < set(self.target.negative):
            raise ValueError("competing lists codes of the target's negative, and leaves at least one for censored")
        if follow_up.since is not None and follow_up.since not in self.dates:
            raise ValueError(f"{follow_up.name}: since must name a date column, with the role date or feature")

    def _check_interval(self, feature: DateFeature) -> None:
        if feature.other in self.dates and feature.other != feature.name:
            return
        try:
            date.fromisoformat(feature.other)
        except ValueError as cause:
            ends = "since and until must name another date column, or a day such as 2020-01-31"
            raise ValueError(f"{feature.name}: {ends}") from cause

    @property
    def features(self) -> tuple[Feature, ...]:
        """The model inputs (features) with one value in each row, in the order of the contract."""
        return tuple(
            column for column in self.columns if isinstance(column, NumericFeature | DateFeature | CategoricalFeature)
        )

    @property
    def target(self) -> Target:
        """The column of the outcome (the target). A contract has exactly one such column."""
        return next(column for column in self.columns if isinstance(column, Target))

    @property
    def patient(self) -> PatientColumn | None:
        """The column that identifies the patient of each row. None if the contract has no such column."""
        return next((column for column in self.columns if isinstance(column, PatientColumn)), None)

    @property
    def follow_up(self) -> FollowUpColumn | None:
        """The column with the time to the event or to the end of follow-up, if the outcome has such a time."""
        return next((column for column in self.columns if isinstance(column, FollowUpColumn)), None)

    @property
    def image(self) -> ImageColumn | None:
        """The column with the path of each row's image, if the model reads images."""
        return next((column for column in self.columns if isinstance(column, ImageColumn)), None)

    @property
    def groups(self) -> tuple[GroupColumn | CategoricalFeature, ...]:
        """The columns by which reports divide patients into groups, including features with `group: true`."""
        return tuple(
            column
            for column in self.columns
            if isinstance(column, GroupColumn) or (isinstance(column, CategoricalFeature) and column.group)
        )

    @property
    def dates(self) -> dict[str, DateFeature | DayColumn]:
        """All columns of the contract that have dates, by name."""
        return {column.name: column for column in self.columns if isinstance(column, DateFeature | DayColumn)}

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The names of the columns that a model reads, after encoding. They depend only on the contract."""
        images = () if self.image is None else self.image.encoded_columns
        return (*(name for column in self.features for name in column.encoded_columns), *images)

    @property
    def digest(self) -> str:
        """The SHA-256 of the contract's content, in hexadecimal. Comments and the order of keys do not change it."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


def find_contract(path: Path, *, is_needed: bool = False) -> Contract | None:
    """Return a contract: None if not permitted, or not there unless `is_needed`. Else raises as `read_contract`."""
    try:
        return read_contract(path)
    except (ConfigurationError, UnavailableError) as error:
        if isinstance(error.__cause__, PermissionError) or (isinstance(error, UnavailableError) and not is_needed):
            return None
        raise


def read_contract(path: Path) -> Contract:
    """Read a contract. Raise ConfigurationError with every mistake, and UnavailableError if it may be there later."""
    try:
        return read_document(path, Contract, consequence="The table was not read and nothing was sent.")
    except ConfigurationError as error:
        cause = error.__cause__
        if not isinstance(cause, OSError) or isinstance(cause, PermissionError | IsADirectoryError):
            raise
        remedy = "A service tries again by itself. If the file will not be there, correct its path in hospital.yaml."
        raise UnavailableError(what=error.what, consequence=error.consequence, remedy=remedy) from error
