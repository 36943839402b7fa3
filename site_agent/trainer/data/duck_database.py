"""Reads the rows of a query to a DuckDB file, or to files in one folder: FHIR resources (NDJSON), Parquet, CSV.

Each file of such a folder is a table with its name up to the first point: `Observation.000.ndjson` and
`Observation.001.ndjson` are the table Observation, with one JSON value in each row of its column `r`. CSV files have
texts. The rules:

* DuckDB reads these files and no others, and writes nowhere, not even temporary files;
* its own types that Python cannot hold, such as a day without end, are read as the text that DuckDB writes;
* a line that is no JSON object, or a Bundle, is an error that names its file and number;
* no word of DuckDB is shown; the kind of its error selects a sentence of ours.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Generator, Iterable
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

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
_ROWS_AT_ONCE: Final = 5000
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
        "The query names a table or a function that is not there. Compressed files are no tables.",
        _BY_HAND,
    ),
    "BinderException": (
        "The query names a column that is not there, or computes with texts. All cells of CSV files are texts.",
        "Write CAST(value AS DOUBLE) for a number from a CSV file, AS DATE for a day. Or correct the name.",
    ),
    "ParserException": ("The query has a mistake in its syntax.", _BY_HAND),
    "ConversionException": ("The query converts a value to a type that it does not fit.", _BY_HAND),
    "InvalidInputException": (
        "A file has a line that is no JSON or no row, or a value that its type cannot have.",
        _BY_HAND,
    ),
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
    _require_utf8(file for view, files in tables.items() if _READERS[".csv"] in view for file in files)
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


def _require_utf8(files: Iterable[str]) -> None:
    for path in map(Path, files):
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if "\ufffd" in line.decode(errors="replace"):
                    what = f"{path.name} has in line {number} no text in UTF-8."
                    raise unusable(
                        what=what, remedy="Write the file as UTF-8, for example with: iconv -f WINDOWS-1252 -t UTF-8."
                    )


def _close(connection: DuckDBPyConnection, tables: dict[str, list[str]]) -> None:
    """Let a connection read the files of these tables, and then nothing else."""
    places = {
        view: "[" + ", ".join("'" + one.replace("'", "''") + "'" for one in some) + "]" for view, some in tables.items()
    }
    if tables:
        everything = ", ".join(place[1:-1] for place in places.values())
        connection.execute(f"SET allowed_paths = [{everything}]")
    connection.execute("SET enable_external_access = false")
    for view, some in places.items():
        connection.execute(view % some)  # the names of files and tables are quoted above
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")


def _rows(connection: DuckDBPyConnection, query: str) -> Generator[Row, None, None]:
    described = connection.execute(f"DESCRIBE {query}").fetchall()
    names = [str(one[0]) for one in described]
    yield 1, names
    kept = ", ".join(_exact(f"#{place}", str(one[1])) for place, one in enumerate(described, start=1))
    result = connection.execute(f"SELECT {kept} FROM ({query}\n)")  # noqa: S608  # the contract's own query
    yield from enumerate(chain.from_iterable(iter(lambda: result.fetchmany(_ROWS_AT_ONCE), [])), start=2)


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
