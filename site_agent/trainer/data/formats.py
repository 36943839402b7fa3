"""Defines the sources of a table: a text file, a spreadsheet, a Parquet file, or one query to a database.

Each format states how its cells are written. All cells become text and are parsed as the columns declare. So a value
has the same meaning in every format.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Discriminator, StringConstraints, Tag, model_validator

from protos.plan.documents import Document

_READS: Final = re.compile(r"\s*(select|with)\b", re.IGNORECASE)


def _one_reading_query(text: str) -> str:
    if not _READS.match(text) or ";" in text.strip().removesuffix(";"):
        raise ValueError("one query that begins with SELECT or WITH, without a semicolon inside")
    return text


class TableFormat(Document):
    """The format of a text file. The encoding utf-8 accepts a byte order mark."""

    kind: Literal["text"] = "text"
    header: bool
    delimiter: Literal[",", ";", "\t", "|"] = ","
    encoding: Literal["utf-8", "utf-16", "iso-8859-1", "windows-1252"] = "utf-8"
    decimal: Literal[".", ","] = "."

    @model_validator(mode="after")
    def _distinct(self) -> TableFormat:
        if self.decimal == self.delimiter:
            raise ValueError("delimiter and decimal cannot be the same character")
        return self


class ExcelFormat(Document):
    """A sheet of an Excel workbook (xlsx), with the names in its first row. Without `sheet` the first sheet is read.

    `decimal` is for numbers that were typed as text. For a formula, the value that Excel saved is read.
    """

    kind: Literal["excel"]
    sheet: Annotated[str, StringConstraints(min_length=1, max_length=31)] | None = None
    decimal: Literal[".", ","] = "."
    header: ClassVar[Literal[True]] = True


class ParquetFormat(Document):
    """A Parquet file, which contains its column names."""

    kind: Literal["parquet"]
    header: ClassVar[Literal[True]] = True
    decimal: ClassVar[Literal["."]] = "."  # the file does not store numbers as text


class SqlFormat(Document):
    """One query to a database. The query can only read.

    The table in hospital.yaml is an SQLite file, or a file with one line: the URL. The database itself refuses to write
    in the query's transaction. The columns have the names in the query's result.
    """

    kind: Literal["sql"]
    query: Annotated[str, StringConstraints(max_length=100_000), AfterValidator(_one_reading_query)]
    header: ClassVar[Literal[True]] = True
    decimal: ClassVar[Literal["."]] = "."  # a query does not return numbers as text

    @property
    def query_digest(self) -> str:
        """The SHA-256 of the query's text, in hexadecimal. Each record about the data contains it."""
        return hashlib.sha256(self.query.encode()).hexdigest()


def _kind(value: Any) -> str:  # pydantic's input before any check
    return str(value.get("kind", "text") if isinstance(value, dict) else getattr(value, "kind", "text"))


Format = Annotated[
    Annotated[TableFormat, Tag("text")]
    | Annotated[ExcelFormat, Tag("excel")]
    | Annotated[ParquetFormat, Tag("parquet")]
    | Annotated[SqlFormat, Tag("sql")],
    Discriminator(_kind),
]
