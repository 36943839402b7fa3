"""Tells what kind of file a table is by its first bytes, if this is not the declared kind or a kind that is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from protos.errors import DataError
from site_agent.trainer.data.labelled_files import labelled_kind
from site_agent.trainer.data.mistakes import unusable

START_BYTES: Final = 4096
_EXPORT: Final = "Export the table as CSV, with codes and not with labels, and name this file."
_SAVE: Final = "Save it as xlsx without a password, or as CSV."
_UNPACK: Final = "Unpack it, and name the file inside."
_PACKED: Final = "a packed file or an archive"
_RESTORE: Final = "Ask the database's administrator to export the table as Parquet or CSV."
_QUERY: Final = "Declare `kind: sql` with a query in the contract's format, or give it with --query."


@dataclass(frozen=True)
class FileKind:
    """A kind of file: the `kind` of the contract's format that reads it (None: it is not read), and what to do."""

    name: str
    form: str | None
    remedy: str


_LABELLED: Final = {
    "sas7bdat": "a SAS table (sas7bdat)",
    "xport": "a SAS transport file (xpt)",
    "sav": "an SPSS file (sav)",
    "por": "a portable SPSS file (por)",
    "dta": "a Stata file (dta)",
}
# The place of a mark, the mark, and what has it there.
_MARKS: Final = (
    (0, b"PAR1", FileKind("a Parquet file", "parquet", "Declare `kind: parquet` in the contract's format.")),
    (0, b"PARE", FileKind("an encrypted Parquet file", None, "Write it without encryption.")),
    (0, b"SQLite format 3\0", FileKind("an SQLite database", "sql", _QUERY)),
    (8, b"DUCK", FileKind("a DuckDB database", "sql", _QUERY)),
    (4, b"Standard Jet DB", FileKind("an Access database (mdb)", None, _EXPORT)),
    (4, b"Standard ACE DB", FileKind("an Access database (accdb)", None, _EXPORT)),
    (30, b"mimetypeapplication/vnd.oasis", FileKind("an OpenDocument file (ods, odt)", None, _SAVE)),
    (0, b"\xd0\xcf\x11\xe0", FileKind("an old Excel workbook, or one with a password", None, _SAVE)),
    (0, b"{\\rtf", FileKind("a text document (rtf)", None, _EXPORT)),
    (0, b"%PDF-", FileKind("a document (pdf)", None, "Ask for the table behind it, as CSV.")),
    (128, b"DICM", FileKind("a DICOM image", None, "Make a table with a row for each image and its path.")),
    (0, b"\x1f\x8b", FileKind(_PACKED, None, f"{_UNPACK} If it is of R (rds, RData): write.csv(TABLE, 'table.csv').")),
    *((0, mark, FileKind(_PACKED, None, _UNPACK)) for mark in (b"BZh", b"\xfd7zXZ\0", b"7z\xbc\xaf", b"Rar!\x1a")),
    (0, b"**COMPRESSED** **COMP", FileKind("a file of PROC CPORT", None, "Write it with the engine XPORT of SAS.")),
    (0, b"\0" * 12 + b"\xc2\xea\x81\x63", FileKind("a SAS catalogue", None, "Name the table (sas7bdat) beside it.")),
    *((0, mark, FileKind("a file of R", None, "Write the table with write.csv.")) for mark in (b"RDX2\n", b"RDX3\n")),
    (0, b"PGDMP", FileKind("a dump of PostgreSQL", None, _RESTORE)),
    (0, b"TAPE\0\0", FileKind("a backup of SQL Server", None, _RESTORE)),
    (0, b"\1\x0f\0\0", FileKind("a database file of SQL Server", None, _RESTORE)),
    (0, b"MSH|", FileKind("a file of HL7 messages", None, _EXPORT)),
)  # fmt: skip
_WORKBOOK: Final = FileKind("an Excel workbook", "excel", "Declare `kind: excel` in the contract's format.")
_NUMBERS: Final = FileKind("an Apple Numbers document", None, "Export it as CSV or xlsx.")
_NUMBERS_PARTS: Final = (b".iwa", b"Index.zip", b"preview.jpg", b"preview-micro.jpg", b"preview-web.jpg")
_WORKBOOK_PARTS: Final = (b"xl/", b"[Content_Types].xml", b"_rels/", b"docProps/", b"sheet1.xml")
_FHIR: Final = re.compile(rb'\s*\{[^\n]{0,4000}?"resourceType"\s*:')
_MARKUP: Final = re.compile(rb"\s*<(\?xml|!doctype|html|table|workbook)\b", re.IGNORECASE)
_SCRIPT: Final = re.compile(
    rb"\s*(--|/\*|SET |CREATE |INSERT ).{0,3000}?\b(INSERT INTO|CREATE TABLE|COPY)\b", re.DOTALL
)
_JSON: Final = re.compile(rb'\s*(\[\s*)?\{\s*"[^"\n]{0,200}"\s*:')


def kind_of(start: bytes) -> FileKind | None:
    """Return the kind of a file that is no delimited text, by its first bytes, or None."""
    if (labelled := labelled_kind(start)) is not None:
        remedy = "Declare `kind: sas-spss-stata` in the contract's format."
        return FileKind(_LABELLED[labelled], "sas-spss-stata", remedy)
    for place, mark, kind in _MARKS:
        if start.startswith(mark, place):
            return kind
    if start.startswith(b"PK\3\4"):
        if any(part in start for part in _WORKBOOK_PARTS):
            return _WORKBOOK
        return FileKind(_PACKED, None, _UNPACK) if not any(part in start for part in _NUMBERS_PARTS) else _NUMBERS
    text = start.removeprefix(b"\xef\xbb\xbf")
    if _FHIR.match(text):
        return FileKind("a file of FHIR resources", "sql", f"{_QUERY} The examples have contract-fhir.yaml.")
    if b'"resourceType"' in text and _JSON.match(text):
        told = "Export NDJSON, with one resource in each line: jq -c '.entry[].resource' FILE > Observation.ndjson"
        return FileKind("a FHIR resource over several lines, such as a bundle", None, told)
    if _MARKUP.match(text):
        return FileKind("a page or a file in XML, also if its name ends in xls", None, _SAVE)
    if _SCRIPT.match(text):
        return FileKind("a dump of a database in SQL", None, _RESTORE)
    return FileKind("a file in JSON", None, _EXPORT) if _JSON.match(text) else None


def another_kind(path: Path, kind: FileKind) -> DataError:
    """Return the error about a table that is a file of another kind than the declared one."""
    return unusable(what=f"The table {path} is {kind.name}.", remedy=kind.remedy)


def check_kind(path: Path, file: BinaryIO, form: str) -> None:
    """Raise DataError if an open file, whose format has this `kind`, is of another kind that is known here."""
    kind = kind_of(file.read(START_BYTES))
    file.seek(0)
    if kind is not None and kind.form != form:
        raise another_kind(path, kind)
