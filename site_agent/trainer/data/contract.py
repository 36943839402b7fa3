"""What a hospital declares about its table, before a single row is read.

A data manager writes the contract as YAML; `read_contract` turns it into a frozen record or tells
every mistake at once. The contract knows names, units, ranges and codes. It never holds a
patient's value, and nothing in it is guessed from the table: a column has the type it is declared
to have, whatever its cells look like.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from protos.documents import Document, read_document

UNKNOWN: Final = "unknown"
Task = Literal["binary", "multi-class", "regression"]

# Bounded, so that no cell can ask for a number of a million digits; what is longer stays text.
_PLAIN_NUMBER: Final = re.compile(r"[+-]?(\d{1,18}(\.\d{0,9})?|\.\d{1,9})([eE][+-]?\d{1,2})?", re.ASCII)


def canonical_code(text: str, decimal: str = ".") -> str:
    """A code in the one spelling in which it is compared: `3`, `3.0` and ` 3` are the same code.

    Args:
        text: a cell or a declared code.
        decimal: what stands between whole and fraction in `text`, "." or ",".

    Returns:
        the shortest plain decimal number if the text is one, otherwise the text without
        surrounding blanks.
    """
    stripped = text.strip()
    number = stripped if decimal == "." else stripped.replace(".", " ").replace(decimal, ".")
    if not _PLAIN_NUMBER.fullmatch(number):
        return stripped
    value = Decimal(number)
    return f"{value.normalize():f}" if value else "0"


def _as_text(value: object) -> object:
    # YAML reads an unquoted 3 as a number and an unquoted true as a truth value. The number's text is clear; of
    # the truth value nobody can tell any more how the table spells it.
    if isinstance(value, bool):
        raise ValueError("put this code in quotes, as it stands in the table; YAML reads it as true or false")
    return str(value) if isinstance(value, int | float) else value


def _name(value: str) -> str:
    if not value or value != value.strip() or not value.isprintable():
        raise ValueError("a column's name is printable text without blanks at its ends")
    return value


Code = Annotated[str, BeforeValidator(_as_text), AfterValidator(canonical_code)]
Name = Annotated[str, AfterValidator(_name)]


class TableFormat(Document):
    """How the file is written; the encoding utf-8 accepts a byte order mark."""

    header: bool
    delimiter: Literal[",", ";", "\t", "|"] = ","
    encoding: Literal["utf-8", "iso-8859-1", "windows-1252"] = "utf-8"
    decimal: Literal[".", ","] = "."

    @model_validator(mode="after")
    def _distinct(self) -> TableFormat:
        if self.decimal == self.delimiter:
            raise ValueError("delimiter and decimal cannot be the same character")
        return self


class NumericFeature(Document):
    """A measured number: z-scored; where it is missing refused, or filled with the training median."""

    name: Name
    role: Literal["feature"]
    type: Literal["numeric"]
    range: tuple[float, float] | None = None
    unit: str | None = None
    missing: Literal["refuse", "median", "median-and-flag"] = "refuse"
    missing_markers: tuple[Code, ...] = ()

    @model_validator(mode="after")
    def _ordered(self) -> NumericFeature:
        if self.range and not self.range[0] < self.range[1]:
            raise ValueError("range is the lowest and the highest possible value, lowest first")
        return self

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The names of the columns this feature becomes."""
        name = self.name.lower()
        return (name, f"{name} is missing") if self.missing == "median-and-flag" else (name,)


class CategoricalFeature(Document):
    """One of several declared codes; a missing or unseen one is "unknown", a value of its own.

    Ordinal gives one z-scored column, the code's position among the declared ones and -1 for
    unknown; one-hot gives one column of 0 and 1 per code and one for unknown.
    """

    name: Name
    role: Literal["feature"]
    type: Literal["categorical"]
    codes: tuple[Code, ...]
    encoding: Literal["ordinal", "one-hot"] = "ordinal"
    missing: Literal["unknown", "refuse"] = UNKNOWN
    missing_markers: tuple[Code, ...] = ()

    @model_validator(mode="after")
    def _usable(self) -> CategoricalFeature:
        _check_codes(self.codes, fewest=1)
        if UNKNOWN in self.codes:
            raise ValueError(f'the code "{UNKNOWN}" is reserved; declare it as one of missing_markers instead')
        return self

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The names of the columns this feature becomes."""
        name = self.name.lower()
        return (name,) if self.encoding == "ordinal" else tuple(f"{name}={code}" for code in (*self.codes, UNKNOWN))


class BinaryTarget(Document):
    """Yes or no. Every code not in `positive` is negative, unless `negative` lists those allowed."""

    name: Name
    role: Literal["target"]
    task: Literal["binary"]
    positive: tuple[Code, ...]
    negative: tuple[Code, ...] | None = None

    @model_validator(mode="after")
    def _usable(self) -> BinaryTarget:
        _check_codes((*self.positive, *(self.negative or ())), fewest=1)
        if not self.positive or self.negative == ():
            raise ValueError("positive, and negative where it is given, name at least one code")
        return self

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by index."""
        return ("negative", "positive")


class MultiClassTarget(Document):
    """One of several declared codes; its index among them is the class."""

    name: Name
    role: Literal["target"]
    task: Literal["multi-class"]
    codes: tuple[Code, ...]

    @model_validator(mode="after")
    def _usable(self) -> MultiClassTarget:
        _check_codes(self.codes, fewest=2)
        return self

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by index."""
        return self.codes


class RegressionTarget(Document):
    """A number to be predicted."""

    name: Name
    role: Literal["target"]
    task: Literal["regression"]
    unit: str | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Empty: a number has no classes."""
        return ()


class PatientColumn(Document):
    """Who a row belongs to. Rows of one patient always stay in the same part of the split."""

    name: Name
    role: Literal["patient"]
    one_row_per_patient: bool = False


class IgnoredColumn(Document):
    """A column that is in the table and never read."""

    name: Name
    role: Literal["ignore"]


Feature = NumericFeature | CategoricalFeature
Target = BinaryTarget | MultiClassTarget | RegressionTarget
Column = Annotated[
    Annotated[Feature, Field(discriminator="type")]
    | Annotated[Target, Field(discriminator="task")]
    | PatientColumn
    | IgnoredColumn,
    Field(discriminator="role"),
]


class Contract(Document):
    """The whole declaration. Without a header, `columns` stand in the order of the file."""

    format: TableFormat
    missing_markers: tuple[Code, ...] = ("",)
    columns: tuple[Column, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Contract:
        names = [column.name for column in self.columns]
        _check_distinct(names, "these columns are declared more than once")
        roles = [column.role for column in self.columns]
        if roles.count("target") != 1:
            raise ValueError(f"exactly one column has the role target, not {roles.count('target')}")
        if roles.count("patient") > 1:
            raise ValueError("at most one column has the role patient")
        if not self.features:
            raise ValueError("at least one column has the role feature")
        _check_distinct(self.encoded_columns, "these names are the same after encoding, in lower case")
        for feature in self.features:
            if isinstance(feature, CategoricalFeature):
                both = set(feature.codes) & {*self.missing_markers, *feature.missing_markers}
                if both:
                    raise ValueError(f"{feature.name}: {', '.join(sorted(both))} is both a code and a missing marker")
        return self

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features in declared order."""
        return tuple(column for column in self.columns if isinstance(column, NumericFeature | CategoricalFeature))

    @property
    def target(self) -> Target:
        """The one target."""
        return next(
            column for column in self.columns if isinstance(column, BinaryTarget | MultiClassTarget | RegressionTarget)
        )

    @property
    def patient(self) -> PatientColumn | None:
        """The column that says who a row belongs to, if there is one."""
        return next((column for column in self.columns if isinstance(column, PatientColumn)), None)

    @property
    def encoded_columns(self) -> tuple[str, ...]:
        """The names of all columns after encoding; they depend on the contract alone, on no row."""
        return tuple(name for feature in self.features for name in feature.encoded_columns)


def read_contract(path: Path) -> Contract:
    """The contract a data manager wrote.

    Raises:
        ConfigurationError: the file cannot be read or is wrong; every mistake with line and column.
    """
    return read_document(path, Contract, consequence="The table was not read and nothing left this site.")


def _check_codes(codes: tuple[str, ...], *, fewest: int) -> None:
    if len(codes) < fewest:
        raise ValueError(f"at least {fewest} code{'s are' if fewest > 1 else ' is'} needed")
    if "" in codes:
        raise ValueError("a code cannot be empty; an empty cell is a missing value")
    _check_distinct(codes, "these codes are the same (numbers compare by value)")


def _check_distinct(names: list[str] | tuple[str, ...], words: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{words}: {', '.join(twice[:5])}")
