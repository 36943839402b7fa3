"""Everything that the documentation tells people to type and to read exists."""

from __future__ import annotations

import ast
import functools
import inspect
import json
import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from pydantic import TypeAdapter

from coordinator.commands.coordinator_cli import cli as coordinator
from pki.pki_cli import commands as pki
from protos.plan.architecture import Part
from protos.plan.ingredients import Method, Parts
from protos.plan.plan import plan_from_json
from protos.plan.statistics_plan import StatisticsPlan
from site_agent.site_cli import cli as site_agent
from tests.rehearsal.study import made_up_identity

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = {"tests/run.sh", "deploy/quickstart.sh"}


@functools.cache
def programs() -> dict[str, click.Command]:
    """Every command line that the documentation may show, by its name there."""
    quickstart = runpy.run_path(str(ROOT / "deploy/quickstart"), run_name="rehearsal")["rehearse"]
    return {"coordinator": coordinator, "pki": pki, "site-agent": site_agent, "deploy/quickstart.sh": quickstart}


def fenced(page: Path, language: str) -> Iterator[str]:
    """The contents of a page's fenced blocks in one language."""
    return iter(re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL))


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command of ours in the pages: in fenced blocks, and in backquotes with arguments."""
    names = {*programs(), *SCRIPTS}
    for page in PAGES:
        lines = [line for block in fenced(page, "console") for line in block.splitlines()]
        prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        lines += [span for span in re.findall(r"`([^`\n]+)`", prose) if span.split()[0] in names]
        for line in lines:
            words = shlex.split(line, comments=True)
            for redirection in {">", ">>"} & set(words):  # redirection into a file is the shell's task
                words = words[: words.index(redirection)]
            words = words[3:] if words[:2] == ["sudo", "-u"] else words
            words = words[4:] if words[:2] == ["runuser", "-u"] and words[3] == "--" else words
            if words and words[0] in names and len(words) > 1:
                yield page.name, words


def refusal(words: list[str]) -> str | None:
    """Why a program would not understand its command line, or None."""
    command, arguments = programs()[words[0]], words[1:]
    context = click.Context(command, info_name=words[0])
    try:
        while isinstance(command, click.Group):
            _, inner, arguments = command.resolve_command(context, arguments)
            assert inner is not None
            command, context = inner, click.Context(inner, info_name=inner.name, parent=context)
        if arguments:  # a command that is only named, as in "run `pki list`", is complete
            command.parse_args(context, list(arguments))
    except click.exceptions.Exit:
        return None  # --help and --version end where they are read
    except click.ClickException as error:
        return error.format_message()
    return None


@pytest.mark.parametrize(("page", "words"), list(commands()), ids=lambda value: str(value)[:60])
def test_every_command_is_understood(page: str, words: list[str]) -> None:
    """Each shown command has the options, arguments and choices that its program has."""
    if words[0] in SCRIPTS - programs().keys():
        assert (ROOT / words[0]).is_file()
        return

    assert refusal(words) is None, f"{page}: {shlex.join(words)}"


def _first_acts(command: click.Command) -> list[str]:
    assert command.callback is not None
    (function,) = ast.parse(inspect.getsource(inspect.unwrap(command.callback))).body
    assert isinstance(function, ast.FunctionDef)
    found = []
    for node in (inner for statement in function.body for inner in ast.walk(statement)):
        if isinstance(node, ast.ImportFrom):
            found.append(str(node.module))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            found.append(node.func.id)
    return found


def test_a_command_that_reads_patients_first_gives_up_its_network() -> None:
    """The data manager's page and the one after the run promise this of their commands."""
    lines = [line for page in ("data-manager", "after-the-run") for line in fenced(ROOT / f"docs/{page}.md", "console")]
    typed = [shlex.split(line)[1:] for block in lines for line in block.splitlines() if line.startswith("site-agent ")]
    names = {"init", *(" ".join(words[: 1 + (words[0] == "data")]) for words in typed)}
    assert {"data check", "report", "predict"} <= names

    for name in sorted(names):
        command: click.Command = site_agent
        for word in name.split():
            assert isinstance(command, click.Group)
            command = command.commands[word]
        harmless = {"read_hospital", "site_agent.trainer.isolation"}

        assert [act for act in _first_acts(command) if act not in harmless][:1] == ["give_up_network"], name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    """Files and headings that a page links to exist."""
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if "://" in target:
            continue
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)

    assert broken == []


def anchors(page: Path) -> set[str]:
    """The names of a page's headings as links spell them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_contributors_method_works_as_it_stands(tmp_path: Path) -> None:
    """The class on the contributor's page, put where the page says, is a method that a plan may name."""
    (example,) = fenced(ROOT / "docs" / "contributor.md", "python")
    catalogue = (ROOT / "protos" / "plan" / "methods.py").read_text()
    place, last = "\n\nMethodChoice: TypeAlias", "    | LocalOnly,\n"
    assert (catalogue.count(place), catalogue.count(last)) == (1, 1)
    ingredients = (
        "from typing import Literal\nfrom protos.plan.architecture import Part\n"
        "from protos.plan.documents import Document\nfrom protos.plan.ingredients import Method, Parts\n"
    )
    extended = tmp_path / "methods.py"
    extended.write_text(
        catalogue.replace(place, f"\n{ingredients}\n\n{example}{place}").replace(
            last, "    | LocalOnly\n    | HalfWay,\n"
        )
    )

    names = runpy.run_path(str(extended))
    chosen = TypeAdapter(names["MethodChoice"]).validate_python({"name": "half-way"})

    assert "half-way" in names["METHOD_NAMES"]
    assert chosen.method() == Method(federated=Parts((Part.BODY,)), update_rate=0.5)


def test_the_documented_statistics_are_a_plan() -> None:
    """The plan on the page for biostatisticians is whole once it has sites."""
    (text,) = fenced(ROOT / "docs" / "statistics.md", "yaml")
    sites = [{"name": name, "identity": made_up_identity(name)} for name in ("ahus", "berlin", "cluj", "delft")]

    found = plan_from_json(json.dumps(yaml.safe_load(text) | {"sites": sites}))

    assert isinstance(found, StatisticsPlan)
    assert len(found.analyses) + len(found.concepts) == text.count("name:")
