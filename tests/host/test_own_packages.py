"""A foreign package with the name of one of ours ends every program with a clear error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def started(folder: Path, module: str = "coordinator") -> subprocess.CompletedProcess[str]:
    """A module imported in a fresh interpreter that searches this folder before all others."""
    program = f"import sys; sys.path.insert(0, {str(folder)!r}); import {module}"
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_foreign_package_in_front_of_ours_is_named(tmp_path: Path) -> None:
    """Each of the packages, replaced, ends each program with status 78 and three sentences."""
    for module, name in (("coordinator", "protos"), ("coordinator", "pki")):
        foreign = tmp_path / name / name
        foreign.mkdir(parents=True)
        (foreign / "__init__.py").write_text("")

        ended = started(foreign.parent, module)

        assert ended.returncode == 78, (name, ended.stderr)
        assert f"the Python package {name} in {foreign / '__init__.py'} belongs to another project" in ended.stderr
        assert "Traceback" not in ended.stderr
