"""Every notebook runs from its first cell to its last, in a process of its own (slow; `.ci/run` runs it)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def _cells(notebook: Path, kind: str) -> list[str]:
    cells = json.loads(notebook.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_results(notebook: Path) -> None:
    """It is valid JSON with text and code. It has no output that could be outdated or name a folder."""
    assert _cells(notebook, "markdown")
    assert _cells(notebook, "code")
    assert not any(cell.get("outputs") for cell in json.loads(notebook.read_text())["cells"])


@pytest.mark.slow
@pytest.mark.timeout(1600)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path) -> None:
    """All cells in their order; the last value is a table with a row for each clinic."""
    *code, last = _cells(notebook, "code")
    lines, _, value = last.rstrip().rpartition("\n")

    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*code, lines, f"print(({value}).to_json())"])],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        check=False,
        timeout=1500,
    )

    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout.splitlines()[-1])
    assert set(table["gain, points"]) == {"cleveland", "hungarian", "switzerland", "va"}
    assert all(-40 < points < 40 for points in table["gain, points"].values())
