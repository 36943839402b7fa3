"""Tables for the tests: written by hand, scikit-learn's breast cancer data, or the shared ones."""

from __future__ import annotations

import csv
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sklearn.datasets import load_breast_cancer

from protos.plan.documents import parse_document
from site_agent.trainer.data.contract import Contract

REPOSITORY = Path(__file__).parents[4]
HEART = REPOSITORY.parent / "shared" / "data" / "heart"
POSTGRES = Path("/usr/lib/postgresql")
needs_postgres = pytest.mark.skipif(
    not list(POSTGRES.glob("*/bin/initdb")) or shutil.which("setpriv") is None,
    reason="no PostgreSQL server is installed (Debian: apt install postgresql), so it is not tested",
)

SMALL = """
format: {header: true}
missing_markers: ["?"]
columns:
  - {name: Age, role: feature, type: numeric, range: [0, 120]}
  - {name: chol, role: feature, type: numeric, missing: median-and-flag, missing_markers: [0]}
  - {name: cp, role: feature, type: categorical, codes: [1, 2, 3]}
  - {name: smoker, role: feature, type: categorical, codes: [no, yes], encoding: one-hot}
  - {name: note, role: ignore}
  - {name: sick, role: target, task: binary, positive: [1, 2], negative: [0]}
""".replace("[no, yes]", '["no", "yes"]')

SMALL_ROWS = [
    ["63.0", "233", "1.0", "no", "Zebra", "0"],
    ["67", " 286", "3.0", "yes", "Zebra", "2"],
    ["41", "0", "2", "no", "Zebra", "0"],
    ["37", "?", "3", "no", "Zebra", "0"],
    ["56", "236", "2", "yes", "Zebra", "1"],
    ["62", "268", "", "no", "Zebra", "1"],
    ["57", "354", "1", "yes", "Zebra", "0"],
    ["44", "254", "1", "no", "Zebra", "0"],
    ["53", "203", "2", "yes", "Zebra", "1"],
    ["58", "192", "3", "no", "Zebra", "1"],
    ["29", "211", "2", "?", "Zebra", "0"],
    ["70", "0.0", "1", "no", "Zebra", "1"],
]
SMALL_HEADER = ["Age", "chol", "cp", "smoker", "note", "sick"]


def contract_from(text: str) -> Contract:
    """The contract in a text, checked."""
    return parse_document(text.encode(), Contract, source="contract.yaml", consequence="Nothing was sent.")


@pytest.fixture
def small_contract() -> Contract:
    """Every kind of feature and a binary target."""
    return contract_from(SMALL)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes rows, under a header unless it is None, and gives the path."""

    def write_rows(rows: list[list[str]], header: list[str] | None = SMALL_HEADER) -> Path:
        path = tmp_path / "table.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *rows] if header else rows)
        return path

    return write_rows


@pytest.fixture
def breast_cancer(write: Callable[..., Path]) -> tuple[Path, Contract]:
    """569 rows, 30 numbers, benign or malignant."""
    data = load_breast_cancer()
    names = [str(name) for name in data.feature_names]
    rows = [[*map(repr, map(float, row)), str(label)] for row, label in zip(data.data, data.target, strict=True)]
    columns = "\n".join(f"  - {{name: {name}, role: feature, type: numeric}}" for name in names)
    target = "  - {name: benign, role: target, task: binary, positive: [1], negative: [0]}"
    contract = contract_from(f"format: {{header: true}}\ncolumns:\n{columns}\n{target}\n")
    return write(rows, [*names, "benign"]), contract


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A real server behind a socket; called with SQL, it runs that and gives the file with its URL."""
    # Not below pytest's own folder, which every other run of pytest closes to other accounts.
    home = Path(tempfile.mkdtemp(prefix="postgresql-"))
    shutil.chown(home, "nobody")
    programs = max(POSTGRES.glob("*/bin"))

    def run(*words: object, statements: bytes = b"") -> None:
        as_nobody = ["setpriv", "--reuid=nobody", "--clear-groups"]
        subprocess.run([*as_nobody, *map(str, words)], check=True, capture_output=True, cwd="/", input=statements)

    settings = f"-k {home} -c listen_addresses= -c fsync=off"
    run(programs / "initdb", "-D", home / "data", "-U", "nobody", "--auth=trust", "--no-sync")
    run(programs / "pg_ctl", "-D", home / "data", "-l", home / "log", "-o", settings, "-w", "start")
    url = tmp_path / "database.url"
    url.write_text(f"postgresql://nobody@/postgres?host={home}\n")

    def fill(sql: str) -> Path:
        options = ["-U", "nobody", "-d", "postgres", "-v", "ON_ERROR_STOP=1"]
        run(programs / "psql", "-h", home, *options, statements=sql.encode())
        return url

    try:
        yield fill
    finally:
        run(programs / "pg_ctl", "-D", home / "data", "-m", "immediate", "-w", "stop")
        shutil.rmtree(home)
