"""DuckDB, FHIR resources and MariaDB: values are read as they are, and nothing else can be read or written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from protos.errors import DataError, OperatorError, UnavailableError
from site_agent.trainer.data.contract import SqlFormat, read_contract
from site_agent.trainer.data.database import query_records
from site_agent.trainer.data.table_sources import cell_of, open_rows
from site_agent.trainer.data.tables import read_table, survey_table

from .conftest import REPOSITORY

duckdb = pytest.importorskip("duckdb", reason="duckdb is not installed: it is in the extra `databases`")
EXAMPLE: Final = REPOSITORY / "deploy" / "examples" / "contract-fhir.yaml"


def _texts(path: Path, query: str) -> list[list[object]]:
    rows = query_records(path, SqlFormat(kind="sql", query=query))
    next(rows)
    return [[cell_of(cell) for cell in cells] for _, cells in rows]


def test_types_of_duckdb_are_read_without_a_loss(tmp_path: Path) -> None:
    """Its Python library would read a day without end as the last day of the year 9999, and a year as 360 days."""
    path = tmp_path / "table.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT date 'infinity' AS a, 1.50::DECIMAL(9, 2) AS b, 2::HUGEINT ** 100 AS c, "
            "timestamp '2020-02-29' AS d, NULL AS e, 0.1 AS f, true AS g, timestamptz '2020-01-01 00:00:00+01' AS h, "
            "age(date '2005-02-28', date '2004-02-29') AS i, date '0044-03-15 (BC)' AS j, 99.9::FLOAT AS k"
        )
    wanted = ["infinity", "1.50", str(2.0**100), "2020-02-29", "", "0.1", "true", "2019-12-31 23:00:00+00"]
    wanted += ["11 months 28 days", "0044-03-15 (BC)", "99.9"]
    assert _texts(path, "WITH a AS (SELECT * FROM visits) SELECT * FROM a ORDER BY 1;") == [wanted]
    for query in ("SELECT * FROM nowhere", "SELECT nothing FROM visits", "SELECT FROM", "SELECT CAST('x' AS INT)"):
        with pytest.raises(DataError):
            _texts(path, query)
    content = path.read_bytes()
    for damaged, kind in ((content[:20] + b"\xff" + content[21:], DataError), (content[:5000], UnavailableError)):
        path.write_bytes(damaged)
        with pytest.raises(kind, match="DuckDB file"):
            _texts(path, "SELECT 1")


def _resource(kind: str, patient: int, **more: Any) -> str:
    whom = f"Patient/{patient}/_history/2" if patient % 2 else f"urn:uuid:{patient}"
    return json.dumps({"resourceType": kind, "subject": {"reference": whom}, **more}) + "\n"


def _result(patient: int, value: str, day: str, unit: str = "mg/L", **more: Any) -> str:
    code = {"coding": [{"system": "http://loinc.org", "code": "1988-5"}]}
    quantity = {"value": float(value.lstrip("<")), "code": unit} | ({"comparator": "<"} if "<" in value else {})
    found = {"status": "final", "code": code, "effectiveDateTime": day, "valueQuantity": quantity}
    return _resource("Observation", patient, **(found | more))


def test_fhir_resources_become_one_row_of_each_patient(tmp_path: Path) -> None:
    """The last valid result before a day; results that no rule covers are errors of their row and not missing."""
    people = [{"id": str(row), "birthDate": f"19{40 + row}-03-01", "gender": "female"} for row in range(20)]
    for row in range(0, 20, 3):
        people[row]["deceasedDateTime"] = "2024-01-01"
    (tmp_path / "Patient.ndjson").write_text(
        "".join(json.dumps({"resourceType": "Patient"} | one) + "\n" for one in people)
    )
    (tmp_path / "Observation.000.ndjson").write_text(
        _result(0, "5.10", "2020-01-02") + _result(0, "7", "2020-01-03", status="entered-in-error")
    )
    (tmp_path / "Observation.001.ndjson").write_text(
        _result(0, "4", "2019-12-31T10:00:00Z") + _result(0, "9", "2025-06-01") + _result(1, "0.5", "2020-01-01")
    )
    diabetes = {"code": {"coding": [{"code": "E11.9"}]}}
    (tmp_path / "Condition.ndjson").write_text(_resource("Condition", 2, **diabetes))
    contract = read_contract(EXAMPLE)
    table = read_table(tmp_path / "Patient.ndjson", contract)
    assert table.patients is not None
    crp = dict(zip(table.patients, table.features["crp"], strict=True))
    assert (crp["0"], crp["1"]) == (5.1, 0.5)
    assert np.isnan(crp["2"])
    assert dict(zip(table.patients, table.features["diabetes"], strict=True))["2"] == 1
    assert table.target is not None
    assert table.target.sum() == 7
    for flaw in (_result(1, "<5", "2020-02-01"), _result(99, "5", "2021-02-01"), _result(1, "5", "2020")):
        (tmp_path / "Observation.002.ndjson").write_text(flaw)
        assert [one.count for one in survey_table(tmp_path / "Patient.ndjson", contract).mistakes] == [1]
    whole, bundle = _result(1, "5", "2020-02-01"), json.dumps({"resourceType": "Bundle", "entry": people})
    for text, line in ((whole + whole[:-9], 2), (bundle, 1), (json.dumps(people), 1), ("{\n" + whole[1:], 1)):
        (tmp_path / "Observation.002.ndjson").write_text(text)
        with pytest.raises(DataError, match=rf"Observation\.002\.ndjson has in line {line} "):
            read_table(tmp_path / "Patient.ndjson", contract)


@pytest.mark.parametrize(
    ("highest", "is_asked"),
    [
        *((one, True) for one in ("max(crp)", "first(crp ORDER BY crp)", "rank() OVER (ORDER BY crp DESC, died)")),
        *((f"died FROM t WHERE {one} --", True) for one in ("crp > '5'", "'5' <= t.crp", "crp BETWEEN '5' AND '6'")),
        *(
            (one, False)
            for one in ("max(CAST(crp AS DOUBLE))", "row_number() OVER (ORDER BY crp::INT)", "1 ORDER BY 1--")
        ),
        ("n FROM (SELECT row_number() OVER (ORDER BY v) AS n FROM (SELECT CAST(crp AS INT) AS v FROM t)) --", False),
        *((f"died FROM t WHERE {one} --", False) for one in ("crp::INT > '5'", "crp > '2020-01-01'")),
    ],
)
def test_texts_that_a_query_compares_are_asked_about(tmp_path: Path, highest: str, is_asked: bool) -> None:
    """As texts, 95 is above 140, and '95' above '140'."""
    (tmp_path / "t.csv").write_text("crp,died\n" + "95,0\n140,1\n" * 20)
    with open_rows(tmp_path / "t.csv", SqlFormat(kind="sql", query=f"SELECT {highest} FROM t"), doubts := []) as rows:
        list(rows)
    assert bool(doubts) == is_asked


def test_a_query_reads_no_other_file(tmp_path: Path) -> None:
    """Also not beside the table, and not through a link."""
    (tmp_path / "Patient.ndjson").write_text('{"id": "1"}\n')
    (tmp_path / "other.txt").write_text("a,b\n1,2\n")
    (tmp_path / "Link.ndjson").symlink_to("/etc/passwd")
    other, copy = tmp_path / "other.txt", tmp_path / "copy.csv"
    for query in (
        f"SELECT * FROM read_csv('{other}')", f"SELECT * FROM '{other}'", "SELECT * FROM Link",
        "SELECT * FROM glob('/etc/*')", f"WITH a AS (SELECT 1) COPY (SELECT 1) TO '{copy}'",
        "SELECT 1) TO 'x' --", "SELECT getenv('HOME')",
    ):  # fmt: skip
        with pytest.raises(DataError):
            _texts(tmp_path / "Patient.ndjson", query)
    assert not copy.exists()


@pytest.fixture(scope="session")
def maria() -> Iterator[Callable[[str], Path]]:
    """Runs statements in a MariaDB server of its own, and returns the file with its URL."""
    pytest.importorskip("pymysql", reason="pymysql is not installed: it is in the extra `databases`")
    if shutil.which("mariadbd") is None or os.geteuid() != 0:
        pytest.skip("no MariaDB server is installed (Debian: apt install mariadb-server), or this is not root")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o755)
        options = ["--no-defaults", f"--datadir={folder / 'data'}", "--user=root"]
        subprocess.run(["mariadb-install-db", *options], check=True, capture_output=True)
        server = [*options, f"--socket={folder / 's'}", "--skip-networking", f"--pid-file={folder / 'pid'}"]
        with subprocess.Popen(["mariadbd", *server], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            words = ["mariadb", "--no-defaults", f"--socket={folder / 's'}", "--user=root"]
            while subprocess.run([*words, "-e", "SELECT 1"], capture_output=True, check=False).returncode:
                assert process.poll() is None
                time.sleep(0.2)

            def run(statements: str) -> Path:
                subprocess.run(words, input=statements.encode(), check=True, capture_output=True)
                (folder / "url").write_text(f"mariadb://reader:p@s/:%#@/clinic?unix_socket={folder / 's'}\n")
                return folder / "url"

            try:
                yield run
            finally:
                process.terminate()


def test_a_mariadb_is_read_as_it_writes(maria: Callable[[str], Path], tmp_path: Path) -> None:
    """Days that do not exist stay texts; nothing can be written, also no file; a lost value is an error."""
    path = maria(
        "CREATE DATABASE clinic; USE clinic; SET sql_mode = ''; CREATE USER reader@localhost IDENTIFIED BY 'p@s/:%#';"
        "GRANT ALL ON clinic.* TO reader@localhost; GRANT FILE ON *.* TO reader@localhost;"
        "CREATE TABLE visits (born DATE, at DATETIME, dose DECIMAL(9, 3), stay TIME, name TEXT CHARSET utf8mb4, b BIT);"
        "INSERT INTO visits VALUES ('0000-00-00', '2020-01-01', 1.5, '25:00:00', 'M\u00fcller', b'1'),"
        "(NULL, NULL, 0, NULL, '', NULL)"
    )
    wanted = [
        ["0000-00-00", "2020-01-01 00:00:00", "1.500", "25:00:00", "M\u00fcller", "1"],
        ["", "", "0.000", *[""] * 3],
    ]
    assert _texts(path, "WITH a AS (SELECT * FROM visits) SELECT * FROM a ORDER BY dose DESC;") == wanted
    refused = ("nothing FROM visits", "* FROM nowhere", "FROM", "1 AS a, 2 AS a", "CAST('x' AS INT)")
    for query in (*refused, "* FROM mysql.user", f"1 INTO OUTFILE '{path.parent / 'out'}'"):
        with pytest.raises(DataError):
            _texts(path, f"SELECT {query}")
    assert not (path.parent / "out").exists()
    for change in ("p@s", "clinic"):
        (tmp_path / "url").write_text(path.read_text().replace(change, "other"))
        with pytest.raises(DataError):
            _texts(tmp_path / "url", "SELECT 1")
    (tmp_path / "url").write_text("mysql:///clinic?unix_socket=/nowhere")
    with pytest.raises(OperatorError):
        _texts(tmp_path / "url", "SELECT 1")


def test_cells_of_csv_files_in_a_folder_are_texts(tmp_path: Path) -> None:
    """Zeros in front, line ends, and a row that begins as a comment does."""
    (tmp_path / "m.csv").write_text('id,v\n01,"a\nb"\n#2,\n')
    assert _texts(tmp_path / "m.csv", "SELECT * FROM m") == [["01", "a\nb"], ["#2", ""]]
