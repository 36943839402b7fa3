"""All sources give the same values, and no source can be written to."""

from __future__ import annotations

import errno
import io
import os
import re
import signal
import sqlite3
import traceback
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pyarrow.parquet.encryption as encryption
import pytest
from openpyxl import Workbook

from protos.errors import ConfigurationError, DataError, OperatorError, UnavailableError
from site_agent.hospital import Split
from site_agent.trainer.data import database
from site_agent.trainer.data.cell_rules import ZONED as ZONED_TIME
from site_agent.trainer.data.contract import Contract, SqlFormat, TableFormat, read_contract
from site_agent.trainer.data.dataset import split_rows
from site_agent.trainer.data.run_table import table_digest
from site_agent.trainer.data.table_sources import Doubt, open_rows, text_of
from site_agent.trainer.data.tables import Table, read_table, survey_table
from tests.for_each import for_each

from .conftest import SMALL, SMALL_HEADER, SMALL_ROWS, contract_from, needs_postgres

Write = Callable[..., Path]


def _with_format(form: str) -> Contract:
    return contract_from(SMALL.replace("format: {header: true}", f"format: {form}"))


def _assert_same(one: Table, other: Table) -> None:
    assert one.target is not None
    assert other.target is not None
    assert other.row_numbers is not None
    order = np.argsort(other.row_numbers)  # the rows of a query are sorted
    for name, values in one.features.items():
        np.testing.assert_array_equal(values, other.features[name][order])
    np.testing.assert_array_equal(one.target, other.target[order])


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


def test_numbers_of_a_parquet_file_are_read_as_text_would_be(tmp_path: Path, small_contract: Contract) -> None:
    """Integers, floats of both widths, decimals (no thousands), truth, dictionaries, nulls: as such cells of texts."""
    rows = 12
    columns: dict[str, arrow.Array] = {
        "Age": arrow.array([63.1] * (rows - 2) + [None, float("inf")], arrow.float32()),
        "chol": arrow.array([Decimal("233.500")] * (rows - 1) + [None]),
        "cp": arrow.array([1.0, 2.0, 3.0] * 4),
        "smoker": arrow.array(["yes", None] * 6).dictionary_encode(),
        "note": arrow.array([[1]] * rows),  # nobody reads it
        "sick": arrow.array([0, 1] * 6, arrow.int8()),
    }
    for place in range(2):  # a person is asked whether the other part is wanted too
        parquet.write_table(arrow.table(columns), tmp_path / f"part-{place}.parquet")
    cells = {name: [text_of(value) or "" for value in column.to_pylist()] for name, column in columns.items()}
    cells["Age"] = ["63.1"] * (rows - 2) + ["", "inf"]
    lines = [",".join(SMALL_HEADER), *(",".join(cells[name][row] for name in SMALL_HEADER) for row in range(rows))]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    found = survey_table(tmp_path / "part-0.parquet", _with_format("{kind: parquet}"))
    assert len(found.doubts) == 1
    wanted = survey_table(tmp_path / "table.csv", small_contract)
    _assert_same(wanted.table, found.table)
    assert found.mistakes == wanted.mistakes


NAMES = {
    **dict.fromkeys(("{}_patients", "2026-1{}-01_patients", "part_2026-1{}-01", "depart{}"), False),
    **dict.fromkeys(("part-0000{}-1b2c", "part-0000{}", "patients_part{}", "chunk{}", "labs.split_{}"), True),
}


@pytest.mark.parametrize("name", NAMES)
def test_parts_of_one_table_have_numbers_and_no_dates(name: str, tmp_path: Path) -> None:
    """Two exports of different days, or two numbered tables, are no parts."""
    doubts = list[Doubt]()
    for path in (tmp_path / f"{name.format(place)}.csv" for place in range(2)):
        path.write_text("a\n1\n")
    with open_rows(path, TableFormat(header=True), doubts):
        assert len(doubts) == NAMES[name]


DAMAGED_SHEETS = {
    "half a sheet": (rb"(?s)(<row r=.3.).*", rb"\1"),
    "an unknown entity": (rb"<sheetData>", rb"<sheetData>&Zebra;"),
    "no place": (rb'r="A3"', rb'r="Zebra"'),
    "no column": (rb'r="A3"', rb'r="3"'),
}


@pytest.mark.parametrize("damage", DAMAGED_SHEETS)
def test_a_damaged_sheet_is_refused_without_a_cell(tmp_path: Path, damage: str) -> None:
    """A sheet is unpacked row by row, and its parser's errors quote what they met."""
    workbook = Workbook()
    sheet = workbook.create_sheet("Patients", 0)
    for row in [SMALL_HEADER, *SMALL_ROWS]:
        sheet.append(row)
    workbook.save(tmp_path / "whole.xlsx")
    pattern, replacement = DAMAGED_SHEETS[damage]
    with zipfile.ZipFile(tmp_path / "whole.xlsx") as whole, zipfile.ZipFile(tmp_path / "table.xlsx", "w") as damaged:
        for name in whole.namelist():
            content = whole.read(name)
            is_sheet = name == "xl/worksheets/sheet1.xml"
            damaged.writestr(name, re.sub(pattern, replacement, content) if is_sheet else content)

    with pytest.raises(DataError, match="sheet is damaged") as error:
        read_table(tmp_path / "table.xlsx", _with_format("{kind: excel}"))

    assert "Zebra" not in "".join(traceback.format_exception(error.value))


@for_each("seed", range(40))
def test_a_damaged_parquet_file_is_read_or_refused(tmp_path: Path, seed: int) -> None:
    """Whatever bytes are changed, the only result is three sentences without a cell."""
    generator = np.random.default_rng(seed)
    cells = {name: [row[place] for row in SMALL_ROWS] for place, name in enumerate(SMALL_HEADER)}
    parquet.write_table(arrow.table(cells), tmp_path / "table.parquet", compression="none")
    raw = bytearray((tmp_path / "table.parquet").read_bytes())
    for place in generator.integers(0, len(raw), 3):
        raw[place] = generator.integers(0, 256)
    (tmp_path / "table.parquet").write_bytes(raw)
    try:
        read_table(tmp_path / "table.parquet", _with_format("{kind: parquet}"))
    except OperatorError as error:
        told = "".join(traceback.format_exception(error))
        assert "Zebra" not in told  # it may also be read


def _filled(path: Path, lines: Sequence[Sequence[str]] = SMALL_ROWS) -> Path:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE visits ({', '.join(SMALL_HEADER)})")
        rows = [[_typed(cell) for cell in row] for row in lines]
        database.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?)", rows)
        database.commit()
    return path


def test_a_query_to_sqlite_is_the_same_table(tmp_path: Path, plain: Table) -> None:
    """One query, with a colon and a semicolon in a text of it, which are no parameter and no end, and comments."""
    path = _filled(tmp_path / "hospital.sqlite")
    contract = _with_format("{kind: sql, query: \"-- it's\\nSELECT * FROM visits WHERE note <> 'a:b;'; -- x;\"}")
    _assert_same(plain, read_table(path, contract))
    (_, (_, cells)) = database.query_records(path, SqlFormat(kind="sql", query="SELECT CAST(x'4dfc' AS TEXT)"))
    assert text_of(cells[0]) is None  # it is no UTF-8


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM visits", "SELECT 1; DROP TABLE visits", "PRAGMA user_version = 3", "", "SELECT 1;;", "-- SELECT 1",
        r"SELECT '\\'' ; DELETE FROM visits; --'", "SELECT $a$ ' $a$; COMMIT; SELECT $b$ ' $b$",
        "SELECT /* /* */ ' */ 1; DELETE FROM visits; -- '", "SELECT 1 -- '\\n; DELETE FROM visits --'",
    ],
)  # fmt: skip
def test_a_contract_takes_no_query_that_is_not_one_reading(query: str) -> None:
    """Not SELECT or WITH, or two statements, also in a text or comment: databases differ in where these end."""
    with pytest.raises(ConfigurationError, match="one query that begins with SELECT or WITH"):
        _with_format(f'{{kind: sql, query: "{query}"}}')


def test_a_query_that_writes_changes_nothing(tmp_path: Path) -> None:
    """A statement that begins with WITH and deletes is stopped by the database itself."""
    path = _filled(tmp_path / "hospital.sqlite")
    before = path.read_bytes()
    with pytest.raises(DataError):
        read_table(path, _with_format('{kind: sql, query: "WITH one AS (SELECT 1) DELETE FROM visits"}'))

    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("url", "kind"),
    [("oracle://user:Zebra@there/a", ConfigurationError), ("postgresql://user:Zebra@/a?host=/tmp/0", UnavailableError)],
)
def test_an_unknown_database_or_an_absent_server_is_told_without_its_password(
    tmp_path: Path, url: str, kind: type[OperatorError]
) -> None:
    """The driver's own words would quote the URL."""
    path = tmp_path / "database.url"
    path.write_text(f"{url}\n")
    with pytest.raises(kind) as error:
        read_table(path, _with_format('{kind: sql, query: "SELECT 1"}'))

    assert "Zebra" not in str(error.value)
    assert error.value.__cause__ is None


@pytest.mark.parametrize(
    "password", ["plain", "p@ss:w%rd#1/?", "p%40ss%3Aw%25rd%231%2F%3F", "pä:@", "p%C3%A4%3A%40", ""]
)
@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_a_password_may_have_any_character(scheme: str, password: str) -> None:
    """As it is or written %XX, before the last @ of the line."""
    url = database._server(f"{scheme}://reader:{password}@/hospital?host=/run/postgresql\n".encode()).url
    assert (url.username, url.password or "", url.database) == ("reader", unquote(password), "hospital")
    assert url.query["host"] == "/run/postgresql"


def test_a_locked_database_is_busy_and_not_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program writes: a later attempt can succeed."""
    monkeypatch.setattr(database, "_LOCK_SECONDS", 0.05)
    path, reading = _filled(tmp_path / "hospital.sqlite"), _with_format('{kind: sql, query: "SELECT * FROM visits"}')
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(UnavailableError):
            read_table(path, reading)

    assert read_table(path, reading).rows


def test_a_database_in_wal_mode_that_cannot_be_shared_is_named() -> None:
    """Beside a file in this mode SQLite makes others, and in this folder it cannot."""
    with TemporaryDirectory() as name:
        path = _filled(Path(name) / "hospital.sqlite")
        with closing(sqlite3.connect(path)) as one:
            one.execute("PRAGMA journal_mode = WAL")
        reading = _with_format('{kind: sql, query: "SELECT * FROM visits"}')
        # It also loads the libraries, which another account may not be allowed to read.
        assert read_table(_filled(Path(name) / "other.sqlite"), reading).rows
        path.parent.chmod(0o555)
        account = os.geteuid()
        try:
            if account == 0:
                os.seteuid(65534)  # root could write to the folder
            with pytest.raises(DataError, match="WAL"):
                read_table(path, reading)
        finally:
            os.seteuid(account)


def test_a_table_that_is_not_there_yet_is_unavailable(tmp_path: Path, small_contract: Contract) -> None:
    """A drive may be mounted later; a folder in its place is a mistake."""
    with pytest.raises(UnavailableError):
        read_table(tmp_path / "later.csv", small_contract)
    with pytest.raises(DataError):
        read_table(tmp_path, small_contract)


def test_a_drive_that_fails_is_unavailable(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the kind of the file: a network drive that lost its server may be there later."""
    write(SMALL_ROWS)
    parquet.write_table(arrow.table({"age": [1]}), tmp_path / "table.parquet")
    opened, is_lost = Path.open, False

    class Lost(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def lost(path: Path, *words: Any, **more: Any) -> Any:  # Any: every form of Path.open
        if is_lost:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return Lost(opened(path, *words, **more).read())

    monkeypatch.setattr(Path, "open", lost)
    with pytest.raises(UnavailableError):
        read_table(tmp_path / "table.parquet", _with_format("{kind: parquet}"))
    is_lost = True
    with pytest.raises(UnavailableError):
        read_contract(tmp_path / "contract.yaml")


def test_encrypted_columns_of_a_parquet_file_are_named(tmp_path: Path) -> None:
    """Its footer can be in the clear, as that of any Parquet file."""
    path, cells = tmp_path / "t.parquet", {name: [1] for name in SMALL_HEADER}
    keys = encryption.EncryptionConfiguration("f", column_keys={"k": SMALL_HEADER[:1]}, plaintext_footer=True)
    client = type("_Keys", (encryption.KmsClient,), {"wrap_key": lambda _, key, __: key.hex()})
    factory = encryption.CryptoFactory(lambda _: client())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), keys)
    parquet.write_table(arrow.table(cells), path, encryption_properties=properties)
    with pytest.raises(DataError, match="encrypted"):
        read_table(path, _with_format("{kind: parquet}"))


def test_a_parquet_file_with_another_sum_is_damaged(tmp_path: Path) -> None:
    """A value that changed on the disk is a value all the same, but the file has sums of its pages."""
    path = tmp_path / "table.parquet"
    columns = dict(zip(SMALL_HEADER, zip(*SMALL_ROWS, strict=True), strict=True))
    parquet.write_table(arrow.table(columns), path, write_page_checksum=True, compression="none", use_dictionary=False)
    assert read_table(path, _with_format("{kind: parquet}")).rows
    path.write_bytes(path.read_bytes().replace(SMALL_ROWS[0][1].encode(), b"332"))
    with pytest.raises(DataError):
        read_table(path, _with_format("{kind: parquet}"))


@needs_postgres
def test_a_server_that_crashes_during_a_query_is_unavailable(postgres: Callable[[str], Path]) -> None:
    """It sends no code, and it may answer the same query later."""
    query = "SELECT pg_backend_pid() AS one FROM generate_series(1, 100000)"
    rows = database.query_records(postgres("SELECT 1"), SqlFormat(kind="sql", query=query))
    next(rows)
    _, (process,) = next(rows)
    os.kill(int(str(process)), signal.SIGKILL)
    with pytest.raises(UnavailableError):
        list(rows)


@needs_postgres
def test_ignored_columns_of_a_postgresql_are_not_read(postgres: Callable[[str], Path], plain: Table) -> None:
    """Values that Python's types cannot hold, in columns that the contract ignores, are nobody's concern."""
    odd = (
        "date 'infinity'", "timestamp '0044-03-15 BC'", "date '10000-01-01'", "interval '1 year'", "time '24:00'",
        "gen_random_uuid()", "'{}'::jsonb", "array[date '-infinity']", "int4range(1, 3)", "decode('00', 'hex')",
    )  # fmt: skip
    rows = ", ".join(
        "(" + ", ".join("NULL" if not cell else f"'{cell.strip()}'" for cell in row) + ")" for row in SMALL_ROWS
    )
    columns = ", ".join(f'"{name}" text' for name in SMALL_HEADER)
    url = postgres(f"CREATE TABLE visits ({columns}); INSERT INTO visits VALUES {rows}")
    wanted = ", ".join(f"{one} AS odd{place}" for place, one in enumerate(odd))
    ignored = "\n".join(f"  - {{name: odd{place}, role: ignore}}" for place in range(len(odd)))
    form = f'{{kind: sql, query: "SELECT *, {wanted} FROM visits"}}'
    small = SMALL.replace("format: {header: true}", f"format: {form}")
    _assert_same(plain, read_table(url, contract_from(f"{small.rstrip()}\n{ignored}\n")))


ZONED: Final = """
format: FORMAT
columns:
  - {name: patient, role: patient, one_row_per_patient: true}
  - {name: born, role: feature, type: date, until: "2020-01-01", unit: days, range: [0, 40000]}
  - {name: sick, role: target, task: binary, positive: [1], negative: [0]}
"""


def _zoned(form: str, zone: str | None) -> Contract:
    return contract_from(ZONED.replace("FORMAT", form.replace("}", f", zone: {zone}}}") if zone else form))


def _zoned_sources(folder: Path, postgres: Callable[[str], Path] | None) -> dict[str, tuple[Path, str]]:
    """Ten patients born at midnight in Berlin, which is another day in UTC, in several kinds of files."""
    times = [datetime(1960, 3, day, 23, tzinfo=UTC) for day in range(1, 11)]
    columns = {"patient": [f"p{day}" for day in range(10)], "born": times, "sick": [0, 1] * 5}
    parquet.write_table(arrow.table(columns), folder / "table.parquet")
    lines = [f"p{day},{born.isoformat().replace('+00:00', 'Z')},{day % 2}" for day, born in enumerate(times)]
    (folder / "table.csv").write_text("\n".join(["patient,born,sick", *lines]))
    found = {"parquet": (folder / "table.parquet", "{kind: parquet}"), "text": (folder / "table.csv", "{header: true}")}
    if postgres is not None:
        rows = ", ".join(f"('p{day}', '{born.isoformat()}', {day % 2})" for day, born in enumerate(times))
        url = postgres(f"CREATE TABLE p (patient text, born timestamptz, sick int); INSERT INTO p VALUES {rows}")
        found["sql"] = (url, '{kind: sql, query: "SELECT * FROM p"}')
    return found


@pytest.mark.parametrize("kind", ["parquet", "text", pytest.param("sql", marks=needs_postgres)])
def test_a_time_with_a_zone_needs_the_place_whose_day_it_is(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Without it no row is read, and none moves by a day in silence."""
    path, form = _zoned_sources(tmp_path, request.getfixturevalue("postgres") if kind == "sql" else None)[kind]
    refused = survey_table(path, _zoned(form, None))
    berlin = read_table(path, _zoned(form, "Europe/Berlin"))
    utc = read_table(path, _zoned(form, "UTC"))
    assert [(mistake.column, mistake.flaw, mistake.count) for mistake in refused.mistakes] == [
        ("born", ZONED_TIME.words, 10)
    ]
    np.testing.assert_array_equal(utc.features["born"] - berlin.features["born"], 1)
    with pytest.raises(ConfigurationError):
        _zoned(form, "Europe/Atlantis")


WRITES = (
    "WITH gone AS (DELETE FROM visits RETURNING *) SELECT * FROM gone",
    "SELECT nextval('numbers')",
    "SELECT writes()",
    "SELECT set_config('transaction_read_only', 'off', false), nextval('numbers')",
)


@needs_postgres
def test_a_query_to_postgresql_is_the_same_table_and_cannot_write(
    postgres: Callable[[str], Path], plain: Table
) -> None:
    """Through a Unix socket of a real server: equal values; what deletes, counts on or calls what writes is stopped."""
    rows = ", ".join(
        "(" + ", ".join("NULL" if not cell else f"'{cell.strip()}'" for cell in row) + ")" for row in SMALL_ROWS
    )
    columns = ", ".join(f'"{name}" text' for name in SMALL_HEADER)
    body = "CREATE FUNCTION writes() RETURNS int LANGUAGE sql AS 'DELETE FROM visits RETURNING 1'"
    url = postgres(
        f"CREATE TABLE visits ({columns}); INSERT INTO visits VALUES {rows}; CREATE SEQUENCE numbers; {body}"
    )
    reading = _with_format('{kind: sql, query: "SELECT * FROM visits"}')
    found = read_table(url, reading)
    for query in WRITES:
        with pytest.raises(DataError):
            read_table(url, _with_format(f'{{kind: sql, query: "{query}"}}'))

    _assert_same(plain, found)
    _assert_same(plain, read_table(url, reading))


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


def test_the_parts_of_a_table_from_a_database_do_not_follow_its_order(tmp_path: Path) -> None:
    """After an UPDATE that changes nothing, or a vacuum, a database returns the same rows in another order."""
    reading = _with_format('{kind: sql, query: "SELECT * FROM visits"}')
    parts, digests = [], set()
    for rows in (SMALL_ROWS, SMALL_ROWS[::-1]):
        table = read_table(_filled(tmp_path / f"{len(parts)}.sqlite", rows), reading)
        split = split_rows(table, Split(test_share=0.25, validation_share=0.25, seed=7))
        features = np.stack(list(table.features.values()), axis=1)
        parts.append([features[rows] for rows in (split.training, split.validation, split.test)])
        digests.add(table_digest(table))

    for one, other in zip(*parts, strict=True):
        np.testing.assert_array_equal(one, other)
    assert len(digests) == 1  # so that a check of the table is found again
