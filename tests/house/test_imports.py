"""Who may import whom: the contracts of pyproject.toml, and programs that start without what they may not load."""

from __future__ import annotations

import subprocess
import sys

import pytest
from importlinter.application.use_cases import SUCCESS, lint_imports
from importlinter.configuration import configure

from tests.house.imports import HOUSE

HEAVY = ("torch", "pandas", "sklearn")
BLOCKER = """
import importlib.abc, sys

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(name + " cannot be loaded here")

sys.meta_path.insert(0, Blocker())
"""


def start(modules: tuple[str, ...], blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Import modules in a fresh interpreter where some packages cannot be imported."""
    program = BLOCKER.format(blocked=set(blocked)) + "\n".join(f"import {name}" for name in modules)
    return subprocess.run([sys.executable, "-c", program], cwd=HOUSE, capture_output=True, text=True, check=False)


def test_imports_point_downwards() -> None:
    """Every contract in pyproject.toml is kept, also by imports inside functions and through other modules."""
    configure()

    assert lint_imports(config_filename=str(HOUSE / "pyproject.toml"), is_debug_mode=False) is SUCCESS


@pytest.mark.parametrize(
    ("modules", "blocked"),
    [
        (("coordinator.__main__", "coordinator.commands.serve", "pki.__main__"), (*HEAVY, "rich")),
        (("site_agent.__main__", "site_agent.service.joining", "site_agent.agent.__main__"), (*HEAVY, "rich")),
        (("site_agent.trainer_process", "site_agent.trainer.worker"), ("grpc", "coordinator", "rich")),
    ],
    ids=["coordinator", "gate-and-agent", "trainer"],
)
def test_a_program_starts_without_what_it_may_not_load(modules: tuple[str, ...], blocked: tuple[str, ...]) -> None:
    """Coordinator, gate and agent load no library for tables, the trainer no network, and no service draws."""
    done = start(modules, blocked)

    assert done.returncode == 0, done.stderr


def test_the_blocked_interpreter_does_block() -> None:
    """A blocked package cannot be imported, so the test above is able to fail."""
    assert "cannot be loaded here" in start(("pandas",), HEAVY).stderr
