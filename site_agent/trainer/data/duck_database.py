"""Reads the rows of a query to a DuckDB file, or to files in one folder: FHIR resources (NDJSON), Parquet, CSV.

Each file of such a folder is a table with its name up to the first point: `Observation.000.ndjson` and
`Observation.001.ndjson` are the table Observation, with one JSON value in each row of its column `r`. CSV files have
texts. The rules:

* DuckDB reads these files and no others, and writes nowhere, not even temporary files;
* its own types that Python cannot hold, such as a day without end, are read as the text that DuckDB writes;
* a line that is no JSON object, or a Bundle, is an error that names its file and number;
* no word of DuckDB is shown: after its error the files are looked at, and its kind selects a sentence of ours.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as arrow
from pyarrow.parquet import read_schema

from protos.errors import OperatorError, UnavailableError
from site_agent.trainer.data.contract import SqlFormat
from site_agent.trainer.data.mistakes import not_installed, unusable
from site_agent.trainer.data.table_sources import Row

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_MARK: Final = b"DUCK"  # from byte 8
_READERS: Final = {
    ".ndjson": "SELECT json AS r FROM read_ndjson_objects(%s)",
    ".parquet": "SELECT * FROM read_parquet(%s)",
    ".csv": "SELECT * FROM read_csv(%s, header=true, skip=0, all_varchar=true, comment='', quote='\"', escape='\"')",
}
_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MOST_MEMORY: Final = "4GB"
_CLOSED: Final[dict[str, str | bool | int | float | list[str]]] = {
    "python_enable_replacements": False,
    "autoload_known_extensions": False,
    "autoinstall_known_extensions": False,
    "temp_directory": "",
    "memory_limit": _MOST_MEMORY,
}
_EXACT: Final = re.compile(r"BOOLEAN|U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|DECIMAL\(\d+,\d+\)|VARCHAR")
_BY_HAND: Final = "Run the contract's query by hand, and correct the query or the file."
_COPY: Final = "Copy the file again, or write it with the version of DuckDB that is installed here."
_FAILURES: Final = {
    "CatalogException": (
        "The query names a table or a function that is not there.",
        "A file's table has its name up to the first point, if that is one word in letters, digits and _, and the file "
        "is not packed. Correct the query or the file.",
    ),
    "BinderException": (
        "The query names a column that is not there, or computes with texts. All cells of CSV files are texts.",
        "Write CAST(value AS DOUBLE) for a number from a CSV file, AS DATE for a day. Or correct the name.",
    ),
    "ParserException": ("The query has a mistake in its syntax.", _BY_HAND),
    "ConversionException": (
        "The query converts a value to a type that it does not fit.",
        "Find its rows with WHERE TRY_CAST(column AS DOUBLE) IS NULL, and correct the query or the file.",
    ),
    "InvalidInputException": ("A file has a value that its type cannot have.", _BY_HAND),
    "PermissionException": ("The query reads or writes outside the files of the table.", "Let it only read them."),
    "OutOfMemoryException": (f"The query needs more than {_MOST_MEMORY} of memory.", "Let it select fewer rows first."),
    **dict.fromkeys(("SerializationException", "Error"), ("The DuckDB file is damaged or of another version.", _COPY)),
}


def reads(path: Path, start: bytes) -> bool:
    """Return whether a table of `kind: sql` with these first bytes is a DuckDB file, or one of a folder of files."""
    return start[8:12] == _MARK or path.suffix.lower() in _READERS


def duck_records(path: Path, form: SqlFormat, start: bytes) -> Generator[Row, None, None]:
    """Yield the query's names as row 1, and rows from 2. Raise OperatorError if it fails, or a file is damaged."""
    try:
        import duckdb
    except ImportError as cause:
        raise not_installed("duckdb", "site,databases") from cause
    is_file = start[8:12] == _MARK
    tables = {} if is_file else _tables(path.parent)
    lines = [file for view, files in tables.items() if _READERS[".ndjson"] in view for file in files]
    for files in tables.values():
        if len(files) > 1 and any(not Path(file).stat().st_size and not file.endswith("json") for file in files):
            _require_whole(list(map(Path, files)))
    _require_objects(lines, 1)
    failure: OperatorError
    try:
        with duckdb.connect(str(path) if is_file else ":memory:", read_only=is_file, config=_CLOSED) as connection:
            _close(connection, tables)
            yield from _rows(connection, form.query)
        return
    except duckdb.Error as error:  # its text can quote a value
        failure = _failure_of(type(error).__name__, is_file=is_file)
    _require_objects(lines, None)
    for files in tables.values():
        _require_whole([Path(file) for file in files if not file.lower().endswith(".ndjson")])
    raise failure


def _tables(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(folder.iterdir()):
        name, suffix = file.name.partition(".")[0], file.suffix.lower()
        if suffix in _READERS and _NAME.fullmatch(name) and file.is_file() and not file.is_symlink():
            found[f'CREATE VIEW "{name}" AS {_READERS[suffix]}'].append(str(file.resolve()))
    return found


def _require_objects(files: Iterable[str], most: int | None) -> None:
    """Raise DataError if one of the first lines of these files, at most so many, is no JSON object, or is a Bundle."""
    for path in map(Path, files):
        with path.open("rb") as file:
            for number, line in enumerate(islice(file, most), start=1):
                try:
                    found = json.loads(line) if line.strip() else {}
                except ValueError:
                    found = None
                if not isinstance(found, dict) or found.get("resourceType") == "Bundle":
                    raise unusable(
                        what=f"{path.name} has in line {number} no complete JSON object, or a Bundle of resources.",
                        remedy="Each resource is one whole line. Copy a file again that ends too early, and rewrite a "
                        "Bundle with: jq -c '.entry[].resource' BUNDLE.",
                    )


def _require_whole(parts: Sequence[Path]) -> None:
    """Raise DataError with the name of the first part of a table that is damaged, or lacks names of the first part."""
    wanted = set[str]()
    for path in parts:
        names, flaw = _looked_at(path)
        if told := flaw or f"lacks names of columns that {parts[0].name} has" * bool(wanted - names):
            raise unusable(what=f"{path.name} {told}.", remedy="Write the file again, or move it to another folder.")
        wanted = wanted or names


def _looked_at(path: Path) -> tuple[set[str], str]:
    """Return the names of a file's columns, and what is wrong with it: an empty text if nothing is."""
    if path.suffix.lower() == ".parquet":
        try:
            return {*read_schema(path).names}, ""
        except (arrow.ArrowException, OSError):
            return set(), "is not Parquet, it is damaged, or the user account may not read it"
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as text:
        first = text.readline()
        rows = csv.reader(chain([first], text), delimiter=max(",;\t|", key=first.count), strict=True)
        try:
            names = next(rows, [])
            for row in chain([names], rows):
                if "\ufffd" in "".join(row):
                    return set(), f"has in line {rows.line_num} no text in UTF-8; iconv -f WINDOWS-1252 can convert it"
                if row and len(row) != len(names):
                    return set(), f"has in line {rows.line_num} another number of cells than names"
        except csv.Error:
            return set(), "has a quotation mark that is not closed"
    return {*map(str.strip, names)}, "is empty" * (not names)


def _close(connection: DuckDBPyConnection, tables: dict[str, list[str]]) -> None:
    """Let a connection read the files of these tables, and then nothing else."""
    places = {
        view: "[" + ", ".join("'" + one.replace("'", "''") + "'" for one in some) + "]" for view, some in tables.items()
    }
    if tables:
        connection.execute(f"SET allowed_paths = [{', '.join(place[1:-1] for place in places.values())}]")
    connection.execute("SET enable_external_access = false")
    for view, some in places.items():
        connection.execute(view % some)  # the names of files and tables are quoted above
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")


def _rows(connection: DuckDBPyConnection, query: str) -> Generator[Row, None, None]:
    described = connection.execute(f"DESCRIBE {query}").fetchall()
    yield 1, [str(one[0]) for one in described]
    kept = ", ".join(_exact(f"#{place}", str(one[1])) for place, one in enumerate(described, start=1))
    result = connection.execute(f"SELECT {kept} FROM ({query}\n)")  # noqa: S608  # the contract's own query
    yield from enumerate(chain.from_iterable(iter(lambda: result.fetchmany(5000), [])), start=2)


def _exact(column: str, kind: str) -> str:
    if _EXACT.fullmatch(kind):
        return column
    text = f"CAST({column} AS VARCHAR)"  # of 99.9 as a FLOAT "99.9"
    return f"CAST({text} AS DOUBLE)" if kind == "FLOAT" else f"regexp_replace({text}, ' 00:00:00$', '')"


def _failure_of(kind: str, *, is_file: bool) -> OperatorError:
    if kind == "IOException" and is_file:  # also a file that is too short
        return UnavailableError(
            what="The DuckDB file is open in another program, or it cannot be read.",
            consequence="The table was not used and nothing was sent.",
            remedy=f"A service tries again by itself. Otherwise close the other program. {_COPY}",
        )
    what, remedy = _FAILURES.get(kind, ("DuckDB cannot run the query in the contract.", _BY_HAND))
    return unusable(what=what, remedy=remedy)
