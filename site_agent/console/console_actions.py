"""Defines the actions of the console. Each action runs one command of `site-agent`, as a person would type it.

This file decides and reads nothing. The command checks, acts and writes the audit log. The command is a process of its
own. So the process that serves a browser never has a patient's row, and a command can give up the network first, as
always. Text that was typed on a page becomes the value of a known option, never an option.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from site_agent.console.console_links import Role
from site_agent.console.console_requests import RefusedRequest

_LONGEST_SECONDS: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class Act:
    """An action that a person can start in the console, and the command that it runs.

    Attributes:
        role: the role that may do this.
        words: the command.
        needs: fields of the form that become options.
        may_have: fields that become options unless they are empty.
        has_plan: whether it is about a plan, which the field `plan` names by its digest.
        page: the option that names the page to write; empty if the command writes none.
        facts: the option that names the file of facts to write, as JSON; empty if the command writes none.
        is_decision: whether it only records what a person decided about a plan. It never waits for another action.
    """

    role: Role
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    may_have: tuple[str, ...] = ()
    has_plan: bool = False
    page: str = ""
    facts: str = ""
    is_decision: bool = False

    def require_fields(self, form: Mapping[str, str]) -> None:
        """Check that a form has the fields that the command needs.

        Raises:
            RefusedRequest: a field is missing.
        """
        if missing := [name for name in self.needs if name not in form]:
            raise RefusedRequest(400, f"The form lacks: {', '.join(missing)}.")

    def command(self, config: Path, folder: Path, form: Mapping[str, str]) -> list[str]:
        """Return the command of this action with its options, as a list of words.

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


def _decision(*words: str, needs: tuple[str, ...] = ("by",), may_have: tuple[str, ...] = ()) -> Act:
    """Return an action that records the officer's decision about a plan."""
    return Act(role=Role.OFFICER, words=words, needs=needs, may_have=may_have, has_plan=True, is_decision=True)


EXAMINE: Final = Act(role=Role.DATA_MANAGER, words=("data", "check"), page="--html", facts="--json")
ACCEPT: Final = Act(role=Role.DATA_MANAGER, words=("data", "accept"), needs=("by", "digest"))
REVIEW: Final = Act(role=Role.OFFICER, words=("review",), has_plan=True, page="--html")
APPROVE: Final = _decision("approve", "--yes", may_have=("until",))
REFUSE: Final = _decision("refuse", needs=("by", "because"))
WITHDRAW: Final = _decision("withdraw")
READ_LOG: Final = Act(role=Role.OFFICER, words=("audit", "export"), page="--output")
REPORT: Final = Act(role=Role.CLINICIAN, words=("report",), may_have=("run",), page="--html")
COMPARE: Final = Act(role=Role.CLINICIAN, words=("adopt", "--json"), may_have=("run",))
ADOPT: Final = Act(role=Role.CLINICIAN, words=("adopt",), needs=("by", "run", "model"))
# All actions, by the name that a form sends in its field `action`. No other actions can run.
ACTS: Final[Mapping[str, Act]] = {
    "examine": EXAMINE,
    "accept": ACCEPT,
    "review": REVIEW,
    "approve": APPROVE,
    "refuse": REFUSE,
    "withdraw": WITHDRAW,
    "log": READ_LOG,
    "report": REPORT,
    "compare": COMPARE,
    "adopt": ADOPT,
}


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
        *(sys.executable, "-P", "-m", "site_agent.site_cli", *words),
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
