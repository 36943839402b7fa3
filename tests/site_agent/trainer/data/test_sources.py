"""Whichever way a table comes, the same values are read; and no source can be written to."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from openpyxl import Workbook

from protos.errors import ConfigurationError, DataError, OperatorError
from site_agent.trainer.data.contract import Contract, read_contract
from site_agent.trainer.data.sources.records import text_of
from site_agent.trainer.data.tables import Table, read_table

from .conftest import REPOSITORY, SMALL, SMALL_HEADER, SMALL_ROWS, contract_from

Write = Callable[..., Path]
POSTGRES = Path("/usr/lib/postgresql")
needs_postgres = pytest.mark.skipif(
    not list(POSTGRES.glob("*/bin/initdb")) or shutil.which("setpriv") is None,
    reason="no PostgreSQL server is installed (Debian: apt install postgresql), so it is not tested",
)


def _with_format(form: str) -> Contract:
    return contract_from(SMALL.replace("format: {header: true}", f"format: {form}"))


def _assert_same(one: Table, other: Table) -> None:
    for name, values in one.features.items():
        np.testing.assert_array_equal(values, other.features[name])
    assert one.target is not None
    assert other.target is not None
    np.testing.assert_array_equal(one.target, other.target)


def _typed(cell: str) -> object:
    """A cell as a program would store it: nothing, a number, or text."""
    text = cell.strip()
    try:
        return None if not text else float(text) if "." in text else int(text)
    except ValueError:
        return text


@pytest.fixture
def plain(write: Write, small_contract: Contract) -> Table:
    """The small table as CSV."""
    return read_table(write(SMALL_ROWS), small_contract)


def test_a_workbook_is_the_same_table(tmp_path: Path, plain: Table) -> None:
    """Numbers, texts and empty cells of a sheet, behind an empty row and beside another sheet."""
    workbook = Workbook()
    sheet = workbook.create_sheet("Patients")
    for row in [SMALL_HEADER, [], *([_typed(cell) for cell in row] for row in SMALL_ROWS)]:
        sheet.append(row)
    workbook.save(tmp_path / "table.xlsx")

    table = read_table(tmp_path / "table.xlsx", _with_format("{kind: excel, sheet: Patients}"))

    _assert_same(plain, table)
    assert table.row_numbers is not None
    assert table.row_numbers[0] == 3
    with pytest.raises(DataError, match="no sheet of the declared name"):
        read_table(tmp_path / "table.xlsx", _with_format("{kind: excel, sheet: Other}"))


def test_a_parquet_file_is_the_same_table(tmp_path: Path, plain: Table) -> None:
    """Columns of numbers and of text, with nulls."""
    columns: dict[str, object] = {}
    for place, name in enumerate(SMALL_HEADER):
        cells = [_typed(row[place]) for row in SMALL_ROWS]
        is_text = any(isinstance(cell, str) for cell in cells)
        columns[name] = [str(cell) if is_text and cell is not None else cell for cell in cells]
    parquet.write_table(arrow.table(columns), tmp_path / "table.parquet")

    table = read_table(tmp_path / "table.parquet", _with_format("{kind: parquet}"))

    _assert_same(plain, table)


@pytest.mark.parametrize("kind", ["excel", "parquet"])
def test_what_is_no_such_file_is_refused(tmp_path: Path, kind: str) -> None:
    """A text file under another name is an error in three sentences."""
    path = tmp_path / "table"
    path.write_text("Age,Zebra\n1,2\n")

    with pytest.raises(DataError) as error:
        read_table(path, _with_format(f"{{kind: {kind}}}"))

    assert "Zebra" not in str(error.value)


def _filled(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE visits ({', '.join(SMALL_HEADER)})")
        rows = [[_typed(cell) for cell in row] for row in SMALL_ROWS]
        database.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.commit()
    return path


def test_a_query_to_sqlite_is_the_same_table(tmp_path: Path, plain: Table) -> None:
    """One query, with a colon in a text of it, which is no parameter."""
    path = _filled(tmp_path / "hospital.sqlite")

    contract = _with_format("{kind: sql, query: \"SELECT * FROM visits WHERE note <> 'a:b'\"}")

    _assert_same(plain, read_table(path, contract))


@pytest.mark.parametrize("query", ["DELETE FROM visits", "SELECT 1; DROP TABLE visits", "PRAGMA user_version = 3", ""])
def test_a_contract_takes_no_query_that_is_not_one_reading(query: str) -> None:
    """What does not begin with SELECT or WITH, or has two statements, is refused before any connection."""
    with pytest.raises(ConfigurationError, match="one query that begins with SELECT or WITH"):
        _with_format(f'{{kind: sql, query: "{query}"}}')


def test_a_query_that_writes_changes_nothing(tmp_path: Path) -> None:
    """A statement that begins with WITH and deletes is stopped by the database itself."""
    path = _filled(tmp_path / "hospital.sqlite")
    before = path.read_bytes()

    with pytest.raises(DataError, match="does not run the contract's query"):
        read_table(path, _with_format('{kind: sql, query: "WITH one AS (SELECT 1) DELETE FROM visits"}'))

    assert path.read_bytes() == before


def test_only_known_databases_are_opened(tmp_path: Path) -> None:
    """A URL of another kind is refused, and neither it nor a password in it is repeated."""
    path = tmp_path / "database.url"
    path.write_text("mysql://user:Zebra@somewhere/hospital\n")

    with pytest.raises(ConfigurationError) as error:
        read_table(path, _with_format('{kind: sql, query: "SELECT 1"}'))

    assert "Zebra" not in str(error.value)


def test_a_server_that_is_not_there_is_told_without_its_password(tmp_path: Path) -> None:
    """The driver's own words would quote the URL."""
    path = tmp_path / "database.url"
    path.write_text(f"postgresql://user:Zebra@/hospital?host={tmp_path}\n")

    with pytest.raises(OperatorError) as error:
        read_table(path, _with_format('{kind: sql, query: "SELECT 1"}'))

    assert "Zebra" not in str(error.value)
    assert error.value.__cause__ is None


@pytest.fixture
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """A real server behind a socket; called with SQL, it runs that and gives the file with its URL."""
    folder = tmp_path_factory.mktemp("pg")
    for parent in (folder, folder.parent, folder.parent.parent):
        parent.chmod(0o755)
    home = folder / "server"
    home.mkdir()
    shutil.chown(home, "nobody")
    programs = max(POSTGRES.glob("*/bin"))

    def run(*words: object) -> None:
        as_nobody = ["setpriv", "--reuid=nobody", "--clear-groups"]
        subprocess.run([*as_nobody, *map(str, words)], check=True, capture_output=True, cwd="/")

    settings = f"-k {home} -c listen_addresses= -c fsync=off"
    run(programs / "initdb", "-D", home / "data", "-U", "nobody", "--auth=trust", "--no-sync")
    run(programs / "pg_ctl", "-D", home / "data", "-l", home / "log", "-o", settings, "-w", "start")
    url = folder / "database.url"
    url.write_text(f"postgresql://nobody@/postgres?host={home}\n")

    def fill(statements: str) -> Path:
        run(programs / "psql", "-h", home, "-U", "nobody", "-d", "postgres", "-v", "ON_ERROR_STOP=1", "-c", statements)
        return url

    try:
        yield fill
    finally:
        run(programs / "pg_ctl", "-D", home / "data", "-m", "immediate", "-w", "stop")


@needs_postgres
@pytest.mark.slow
def test_a_query_to_postgresql_is_the_same_table_and_cannot_write(
    postgres: Callable[[str], Path], plain: Table, tmp_path: Path
) -> None:
    """Through a Unix socket of a real server: equal values, and a deleting query changes nothing."""
    rows = ", ".join(
        "(" + ", ".join("NULL" if not cell else f"'{cell.strip()}'" for cell in row) + ")" for row in SMALL_ROWS
    )
    columns = ", ".join(f'"{name}" text' for name in SMALL_HEADER)
    url = postgres(f"CREATE TABLE visits ({columns}); INSERT INTO visits VALUES {rows}")
    reading = _with_format('{kind: sql, query: "SELECT * FROM visits"}')
    writing = "WITH gone AS (DELETE FROM visits RETURNING *) SELECT * FROM gone"

    table = read_table(url, reading)
    with pytest.raises(DataError, match="does not run the contract's query"):
        read_table(url, _with_format(f'{{kind: sql, query: "{writing}"}}'))

    _assert_same(plain, table)
    _assert_same(plain, read_table(url, reading))


OMOP = """
CREATE TABLE person (person_id INTEGER, birth_datetime TEXT, gender_concept_id INTEGER);
CREATE TABLE visit_occurrence (person_id INTEGER, visit_start_date TEXT, visit_concept_id INTEGER);
CREATE TABLE measurement (person_id INTEGER, measurement_concept_id INTEGER, value_as_number REAL,
                          measurement_date TEXT);
CREATE TABLE death (person_id INTEGER, death_date TEXT);
"""


def test_omop_tables_fill_a_contract(tmp_path: Path) -> None:
    """The example's query makes one row of each patient: age at the first visit, sex, a pressure, death."""
    with closing(sqlite3.connect(tmp_path / "omop.sqlite")) as database:
        database.executescript(OMOP)
        for number in range(1, 21):
            database.execute("INSERT INTO person VALUES (?, ?, ?)", (number, "1950-06-01", 8507 + 25 * (number % 2)))
            for day in ("2020-06-01", "2021-01-01"):
                database.execute("INSERT INTO visit_occurrence VALUES (?, ?, 9201)", (number, day))
            if number > 1:
                pressure = (number, 3004249, 100.0 + number, "2020-06-01")
                database.execute("INSERT INTO measurement VALUES (?, ?, ?, ?)", pressure)
            if number % 4 == 0:
                database.execute("INSERT INTO death VALUES (?, '2022-01-01')", (number,))
        database.commit()

    table = read_table(
        tmp_path / "omop.sqlite", read_contract(REPOSITORY / "deploy" / "examples" / "contract-omop.yaml")
    )

    assert table.rows == 20
    np.testing.assert_allclose(table.features["born"], 70, atol=0.01)
    assert np.isnan(table.features["systolic"][0])
    assert table.features["systolic"][1] == 102
    assert table.target is not None
    assert table.target.sum() == 5
    assert table.groups["sex"][:2] == ("female", "male")


def test_values_of_other_programs_are_spelt_as_in_a_text_file() -> None:
    """Missing, truth, numbers with all digits, dates with the time only where there is one; bytes are no cell."""
    values = [None, float("nan"), True, 63, 0.1, date(2020, 1, 31), datetime(2020, 1, 31), datetime(2020, 1, 31, 9, 5)]

    assert [text_of(value) for value in values] == [
        "",
        "",
        "true",
        "63",
        "0.1",
        "2020-01-31",
        "2020-01-31",
        "2020-01-31 09:05:00",
    ]
    assert text_of(b"x") is None
