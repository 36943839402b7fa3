"""The trainer as a process of its own: the work of its command before the first request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plan_changes import POLICY


def hospital_yaml(folder: Path, **changes: object) -> Path:
    """A configuration in a folder; YAML reads JSON."""
    document = {
        "site": "a",
        "state": "state",
        "policy": POLICY | {"methods": ["global-layers"]},
        "data": {"table": "patients.csv", "contract": "contract.yaml", "split": {"seed": 0}},
    }
    path = folder / "hospital.yaml"
    path.write_text(json.dumps(document | changes))
    return path


def trainer(path: Path) -> subprocess.CompletedProcess[str]:
    """The command, to its end."""
    command = [sys.executable, "-m", "site_agent.trainer_process", "--config", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("place", ["patients.csv", "folder"])
def test_only_a_socket_makes_room_for_the_trainers_socket(tmp_path: Path, place: str) -> None:
    """A trainer_socket that names the table, or a folder, removes neither; three sentences report it."""
    table = tmp_path / "patients.csv"
    table.write_text("age\n63\n")
    (tmp_path / "folder").mkdir()

    done = trainer(hospital_yaml(tmp_path, trainer_socket=place))

    assert done.returncode == 78
    assert f"The path in trainer_socket, {place}, exists but is not a socket." in done.stderr
    assert "Traceback" not in done.stderr
    assert table.read_text() == "age\n63\n"
