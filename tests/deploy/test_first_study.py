"""The first study, exactly as in docs/first-study.md; the test counts what a hospital types and edits."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.deploy.test_documentation import ROOT
from tests.deploy.test_walkthrough import EXAMPLE, HOSPITALS, OFFICE, Walk
from tests.institutions.runbook import Commands, File, steps

PAGE: Final = ROOT / "docs" / "first-study.md"
MOST_COMMANDS: Final = 5
MOST_EDITED_FILES: Final = 1


def headings() -> list[str]:
    """The sections of the page."""
    return re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE)


def test_a_hospital_types_five_commands_and_edits_one_file() -> None:
    """All that the page has a hospital type or write, counted."""
    own = [step for heading in headings() for step in steps(heading, PAGE) if step.where.endswith("hospital")]
    typed = [step for step in own if isinstance(step, Commands) and step.how != "in an editor"]
    edited = [step for step in own if isinstance(step, File) or step.how == "in an editor"]

    assert sum(len(step.lines) for step in typed) == MOST_COMMANDS
    assert len(edited) == MOST_EDITED_FILES


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_study(tmp_path: Path) -> None:
    """Every block, typed unchanged, has the effect and the output of the page, and a hospital gets its report."""
    with ExitStack() as stack:
        walk = Walk(tmp_path / "walkthrough", stack, PAGE)
        walk.deal()
        for heading in headings():
            walk.follow(heading)

    assert set(walk.statuses.values()) == {0}
    assert set(walk.statuses) == {OFFICE, *HOSPITALS}
    assert not any("Traceback" in walk.log(place) for place in walk.statuses)
    assert any((walk.folder / EXAMPLE / "state" / "reports").iterdir())
