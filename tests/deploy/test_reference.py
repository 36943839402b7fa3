"""Generated pages are current, wrong words are one error, and the environment gives only paths of secrets."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import click
import pytest

from coordinator.commands.configuration import read_configuration
from coordinator.commands.coordinator_cli import cli as coordinator
from host.command_line import finish
from pki.pki_cli import commands as pki
from site_agent.hospital import read_hospital
from site_agent.site_cli import cli as site_agent

ROOT = Path(__file__).parents[2]
PROGRAMS: dict[str, click.Command] = {"coordinator": coordinator, "pki": pki, "site-agent": site_agent}


def test_the_page_of_the_configuration_is_current() -> None:
    """The file in docs equals the program's output; otherwise run `python deploy/configuration_page.py`."""
    made = runpy.run_path(str(ROOT / "deploy/configuration_page.py"), run_name="generator")["page"]()

    assert (ROOT / "docs/configuration.md").read_text() == made


@pytest.mark.parametrize("words", [["dance"], ["check", "--confg", "x"], ["check"], []])
@pytest.mark.parametrize("program", ["coordinator", "site-agent"])
def test_wrong_words_are_one_sentence(program: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the fault, states that nothing was done, and names the help. The status is 2."""
    assert finish(program, PROGRAMS[program], words) == 2

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert re.fullmatch(rf"{program}: [^\n]+[^.][.?] \[E002\]", lines[0])
    assert lines[1:] == ["  Nothing was done. The exit status is 2.", lines[2]]
    assert re.fullmatch(rf"  Run `{program}( check)? --help`\.", lines[2])


def test_the_environment_replaces_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a program does follows from its file alone."""
    examples = ROOT / "deploy/examples"
    before = read_hospital(examples / "hospital.yaml"), read_configuration(examples / "coordinator.yaml")
    for name in ("STATE", "POLICY", "SITE", "LISTEN", "PLANS", "INVITATION", "AUTHORITY"):
        monkeypatch.setenv(f"GLOBAL_LAYERS_{name}", "elsewhere")

    assert (read_hospital(examples / "hospital.yaml"), read_configuration(examples / "coordinator.yaml")) == before
