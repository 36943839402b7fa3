"""Extras: folders that most federations do not need, and that can be deleted without harm to other code."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.house.imports import HOUSE, ROOMS

# Package of an extra -> the folder of its tests, and the command that goes with it.
EXTRAS: Final = {
    "site_agent.console": ("tests/site_agent/console", "console"),
    "benchmarks.experiments.tables": ("tests/benchmarks", ""),
}
GUARD: Final = 'with extra("{}"):'


def _unguarded(package: str, folder: str) -> list[str]:
    found = []
    inner = HOUSE / package.replace(".", "/"), HOUSE / folder
    files = [path for room in (*ROOMS, "deploy", "tests") for path in (HOUSE / room).rglob("*.py")]
    for path in files:
        if any(path.is_relative_to(place) for place in inner):
            continue
        text = path.read_text()
        for line in re.findall(rf"(?m)^ *(?:from|import) {re.escape(package)}\b.*", text):
            if line.startswith(" ") and GUARD.format(package) in text:
                continue
            found.append(f"{path.relative_to(HOUSE)}: {line}")
    return found


@pytest.mark.parametrize("package", EXTRAS)
def test_nothing_else_needs_an_extra(package: str) -> None:
    """No package and no test outside an extra imports it, unless its absence is allowed there."""
    assert _unguarded(package, EXTRAS[package][0]) == []
    assert (HOUSE / EXTRAS[package][0]).is_dir()


def test_the_programs_run_without_extras(tmp_path: Path) -> None:
    """Without the folders of all extras the commands start, and only the extras' own commands are missing."""
    for room in ROOMS:
        shutil.copytree(HOUSE / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    before = _commands(tmp_path)

    for package in EXTRAS:
        shutil.rmtree(tmp_path / package.replace(".", "/"), ignore_errors=True)
    after = _commands(tmp_path)

    assert before - after == {command for _, command in EXTRAS.values() if command}
    assert "join" in after


def _commands(folder: Path) -> set[str]:
    """The commands of `site-agent --help`, from the packages in this folder."""
    # An editable installation would find in the checkout what was deleted here.
    program = "import sys; sys.meta_path = [each for each in sys.meta_path if 'Editable' not in str(each)]; "
    program += (
        "import coordinator.commands.coordinator_cli, pki.pki_cli, site_agent.site_cli as one; print(*one.cli.commands)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
