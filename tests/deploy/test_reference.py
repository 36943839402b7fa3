"""Generated files are current: the pages of the documentation, manual pages, completions, exit codes."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from coordinator.configuration import AUTHORITY_VARIABLE, CoordinatorConfiguration, read_configuration
from coordinator.coordinator_cli import cli as coordinator
from host.command_line import finish
from host.message_catalogue import EXIT_CODES
from pki.pki_cli import commands as pki
from protos.errors import OperatorError
from site_agent.hospital import INVITATION_VARIABLE, Hospital, read_hospital
from site_agent.site_cli import cli as site_agent
from tests.deploy.test_examples import models_in
from tests.host.test_message_catalogue import error_kinds

ROOT = Path(__file__).parents[2]
PROGRAMS: dict[str, click.Command] = {"coordinator": coordinator, "pki": pki, "site-agent": site_agent}


@pytest.fixture(scope="module")
def reference() -> dict[str, Any]:
    """The generator's own names."""
    return runpy.run_path(str(ROOT / "deploy/reference"), run_name="generator")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, reference: dict[str, Any]) -> Path:
    """Everything that is generated, in a folder."""
    folder = tmp_path_factory.mktemp("reference")
    words = ["--docs", folder, "--manuals", folder / "manuals", "--completions", folder / "completions"]
    done = CliRunner().invoke(reference["write"], [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("page", ["configuration.md", "messages.md"])
def test_the_pages_are_current(made: Path, page: str) -> None:
    """The files in docs equal the programs' present output; otherwise run `python deploy/reference --docs docs`."""
    assert (ROOT / "docs" / page).read_text() == (made / page).read_text()


def test_the_help_that_needs_no_environment_is_the_programs_own() -> None:
    """`deploy/quickstart.sh --help` prints the program's help; if not, write that to deploy/quickstart/help.txt."""
    command = runpy.run_path(str(ROOT / "deploy/quickstart"), run_name="rehearsal")["rehearse"]

    help_text = CliRunner().invoke(command, ["--help"], prog_name="deploy/quickstart.sh", terminal_width=80).output

    assert (ROOT / "deploy/quickstart/help.txt").read_text() == help_text
    shown = subprocess.run([ROOT / "deploy/quickstart.sh", "--help"], capture_output=True, text=True, check=True)
    assert shown.stdout == help_text


@pytest.mark.parametrize("model", [CoordinatorConfiguration, Hospital])
def test_every_key_has_its_row(made: Path, model: type[Any]) -> None:
    """Each key of each record is in the page, with a type, a default and a reason."""
    rows = re.findall(
        r"^\| `([a-z_.]+)` \| (.+) \| (.+) \| (.*) \| (.+) \|$", (made / "configuration.md").read_text(), re.M
    )

    last_words = {name.rpartition(".")[2] for name, *_ in rows}
    groups = {
        name
        for record in models_in(model)
        for name, field in record.model_fields.items()
        if models_in(field.annotation)
    }
    wanted = {name for record in models_in(model) for name in record.model_fields} - groups
    assert wanted <= last_words
    assert all(kind and default and reason for _, kind, default, _, reason in rows)
    # A key without a comment of its own would get the words about its whole section.
    assert not [name for name, *_, reason in rows if reason.startswith("This section")]
    assert all(unit for _, kind, _, unit, _ in rows if "number" in kind)


def test_every_command_has_a_manual_page(made: Path) -> None:
    """Each command and group has a page with its options and the exit codes, and the page's reader reports no fault."""
    pages = {path.stem: path.read_text() for path in (made / "manuals").iterdir()}

    for program, command in PROGRAMS.items():
        assert isinstance(command, click.Group)
        assert program in pages
        for name, inner in command.commands.items():
            text = pages[f"{program}-{name}"].replace("\\-", "-")
            assert all(option in text for item in inner.params for option in item.opts if option.startswith("--"))
            assert all(f".B {code.number}\n" in text for code in EXIT_CODES)


@pytest.mark.skipif(shutil.which("man") is None, reason="there is no reader of manual pages")
def test_a_manual_page_is_read_without_a_warning(made: Path) -> None:
    """The system's own reader shows a page without a warning."""
    page = made / "manuals" / "site-agent-doctor.1"

    done = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert "Also write a file for a person who helps you" in re.sub(r"\s+", " ", done.stdout)


def test_completions_know_the_commands(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each shell's script asks the program, which answers with its commands."""
    scripts = sorted(str(path.relative_to(made)) for path in (made / "completions").rglob("*") if path.is_file())
    assert len(scripts) == 9
    bash = (made / "completions/bash/site-agent").read_text()
    assert subprocess.run(["bash", "-n"], input=bash, text=True, check=False).returncode == 0
    monkeypatch.setenv("_SITE_AGENT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "site-agent doc")
    monkeypatch.setenv("COMP_CWORD", "1")

    with pytest.raises(SystemExit):
        finish("site-agent", site_agent)

    assert "plain,doctor" in capsys.readouterr().out


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


def test_exit_codes_are_those_of_the_errors() -> None:
    """Each kind of error ends with a documented status.

    A service is not restarted after an error that a restart cannot correct.
    """
    documented = {code.number: code for code in EXIT_CODES}

    assert {kind.exit_status for kind in error_kinds(OperatorError)} <= documented.keys()
    assert [documented[status].is_restarted for status in (1, 77, 78)] == [True, False, False]


def test_the_environment_gives_places_of_secrets_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment may give the paths of the invitation and the authority, and nothing else."""
    examples = ROOT / "deploy/examples"
    before = read_hospital(examples / "hospital.yaml"), read_configuration(examples / "coordinator.yaml")
    for name in ("STATE", "POLICY", "SITE", "LISTEN", "PLANS"):
        monkeypatch.setenv(f"GLOBAL_LAYERS_{name}", "elsewhere")
    monkeypatch.setenv(INVITATION_VARIABLE, "/run/credentials/invitation")
    monkeypatch.setenv(AUTHORITY_VARIABLE, "/run/credentials/authority")

    hospital, configuration = (
        read_hospital(examples / "hospital.yaml"),
        read_configuration(examples / "coordinator.yaml"),
    )

    assert hospital == before[0].model_copy(update={"invitation": "/run/credentials/invitation"})
    assert configuration == before[1].model_copy(update={"authority": "/run/credentials/authority"})
