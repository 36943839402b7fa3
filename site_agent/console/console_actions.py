"""Defines the actions of the console. Each action runs one command of `site-agent`, as a person would type it.

This file decides and reads nothing. The command checks, acts and writes the audit log. The command is a process of its
own. So the process that serves a browser never has a patient's row, and a command can give up the network first, as
always. Text that was typed on a page becomes the value of a known option, never an option.

Commands write for a terminal, where the next step is another command. On a page of the console that step is often a
button, so the text shows the button's name instead. Words about actions that the console does not offer stay unchanged.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from site_agent.console.console_links import ROLE_NAMES, Role
from site_agent.console.console_requests import RefusedRequest

_LONGEST_SECONDS: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class Act:
    """An action that a person can start in the console, and the command that it runs.

    Attributes:
        name: the value of the field `action` in its form.
        label: the text of its button.
        role: the role that may do this.
        words: the command.
        needs: fields of the form that become options.
        may_have: fields that become options unless they are empty.
        has_plan: whether it is about a plan, which the field `plan` names by its digest.
        page: the option that names the page to write; empty if the command writes none.
        facts: the option that names the file of facts to write, as JSON; empty if the command writes none.
        is_decision: whether it only records what a person decided about a plan. It never waits for another action.
    """

    name: str
    label: str
    role: Role
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    may_have: tuple[str, ...] = ()
    has_plan: bool = False
    page: str = ""
    facts: str = ""
    is_decision: bool = False

    def require_fields(self, form: Mapping[str, str]) -> None:
        """Check that a form has all fields that its command needs. Raises RefusedRequest: a field is missing."""
        if missing := [name for name in self.needs if name not in form]:
            raise RefusedRequest(400, f"The form lacks: {', '.join(missing)}.")

    def command(self, config: Path, folder: Path, form: Mapping[str, str]) -> list[str]:
        """Return the command that this action runs, with its options, as a list of words.

        Args:
            config: hospital.yaml.
            folder: the folder with the plan (`plan.json`), to which page and facts are written.
            form: the typed values, with all fields of this action.
        """
        options = {name: form[name] for name in self.needs if name != "model"}
        options |= {name: form[name] for name in self.may_have if form.get(name)}
        words = [*self.words, f"--config={config}", *(f"--{name}={text}" for name, text in options.items())]
        words += [f"--plan={folder / 'plan.json'}"] if self.has_plan else []
        words += [f"{self.page}={folder / 'page.html'}"] if self.page else []
        words += [f"{self.facts}={folder / 'facts.json'}"] if self.facts else []
        return [*words, "--", form["model"]] if "model" in self.needs else words


def _decision(words: str, label: str, needs: tuple[str, ...] = ("by",), may_have: tuple[str, ...] = ()) -> Act:
    """Return an action that records the officer's decision about a plan. Its name is its first word."""
    return Act(
        name=words.split()[0], label=label, role=Role.OFFICER, words=tuple(words.split()), needs=needs,
        may_have=may_have, has_plan=True, is_decision=True,
    )  # fmt: skip


EXAMINE: Final = Act(
    name="examine", label="Examine the table", role=Role.DATA_MANAGER, words=("data", "check"), page="--html",
    facts="--json",
)  # fmt: skip
REVIEW: Final = Act(
    name="review", label="Review and decide", role=Role.OFFICER, words=("review",), has_plan=True, page="--html"
)
APPROVE: Final = _decision("approve --yes", "Approve", may_have=("until",))
COMPARE: Final = Act(
    name="compare", label="Compare models", role=Role.CLINICIAN, words=("adopt", "--json"), may_have=("run",)
)
# All actions, by the name that a form sends in its field `action`. No other actions can run.
ACTS: Final[Mapping[str, Act]] = {
    act.name: act
    for act in (
        EXAMINE,
        Act(name="accept", label="Accept the warnings", role=Role.DATA_MANAGER, words=("data", "accept"),
            needs=("by", "digest")),
        REVIEW,
        APPROVE,
        _decision("refuse", "Refuse", needs=("by", "because")),
        _decision("withdraw", "Withdraw"),
        Act(name="log", label="Read the audit log", role=Role.OFFICER, words=("audit", "export"), page="--output"),
        Act(name="report", label="Read the report", role=Role.CLINICIAN, words=("report",), may_have=("run",),
            page="--html"),
        COMPARE,
        Act(name="adopt", label="Adopt this model", role=Role.CLINICIAN, words=("adopt",),
            needs=("by", "run", "model")),
    )
}  # fmt: skip


_FIELDS: Final = {
    "by": "Your name",
    "because": "Reason",
    "until": "Last day of the approval",
    "run": "Run",
}
# The command for a terminal, and the action whose button stands for it.
_COMMANDS: Final = {" ".join(word for word in act.words if word[0] != "-"): act for act in ACTS.values()} | {
    "audit show": ACTS["log"],
    "adopt": COMPARE,
}
_COMMAND: Final = re.compile(rf"(\b[Rr]un )?`site-agent ({'|'.join(_COMMANDS)})((?: [A-Z-][^`]*)?)`")
_OPTION: Final = re.compile(rf"(?<![\w-])--({'|'.join(_FIELDS)})\b")


def for_buttons(text: str, roles: frozenset[Role]) -> str:
    """Return a command's text. Names of commands and options are replaced by the console's buttons and fields.

    Args:
        text: what a command printed.
        roles: the reader's own. If the button belongs to another role, the text refers the reader to that person.
    """

    def button(found: re.Match[str]) -> str:
        act = _COMMANDS[found[2]]
        press = {"run ": "press ", "Run ": "Press "}.get(found[1] or "", "")
        return f"{press}“{act.label}”{'' if act.role in roles else f' (a button of the {ROLE_NAMES[act.role]})'}"

    # If the console does not replace a command between backticks, the options of the command also remain.
    parts = _COMMAND.sub(button, text.removeprefix("site-agent: ")).split("`")
    parts[::2] = [_OPTION.sub(lambda found: f"“{_FIELDS[found[1]]}”", part) for part in parts[::2]]
    return "`".join(parts)


@dataclass(frozen=True, kw_only=True)
class Done:
    """The result of a finished command.

    Attributes:
        status: its exit status.
        text: its output.
        problems: its errors and warnings.
        document: the page that it wrote, or None.
        facts: the facts that it wrote, or None.
    """

    status: int
    text: str
    problems: str
    document: str | None
    facts: str | None


async def run_command(words: list[str], folder: Path, patience_seconds: float) -> Done:
    """Run a command of `site-agent` to its end, even if the browser closes the connection.

    Args:
        words: the command with its options.
        folder: the folder to which it writes.
        patience_seconds: how long it may continue after a cancellation.

    Raises:
        TimeoutError: it did not end within an hour and was stopped.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "site_agent", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # A wide terminal is set, so that no sentence is cut at the width of the console's terminal.
        env=os.environ | {"COLUMNS": "1000"},
        # Ctrl-C in this terminal ends the console. The console then decides how the command ends.
        start_new_session=True,
    )
    reading = asyncio.create_task(process.communicate())
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            printed, problems = await asyncio.shield(reading)
    finally:
        try:
            if process.returncode is None:
                await asyncio.wait([reading], timeout=patience_seconds)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with every process that it started
            await reading  # no process writes to the folder any more
    return Done(
        status=process.returncode or 0,
        text=_without(folder, printed),
        problems=_without(folder, problems),
        document=_text_of(folder / "page.html"),
        facts=_text_of(folder / "facts.json"),
    )


def _text_of(place: Path) -> str | None:
    return place.read_text(encoding="utf-8") if place.exists() else None


def _without(folder: Path, output: bytes) -> str:
    """Return the output without the lines that name the temporary folder, because this folder is removed."""
    return "\n".join(line for line in output.decode(errors="replace").splitlines() if str(folder) not in line)
