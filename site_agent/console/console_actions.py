"""What people can ask for on the console: each act is one command of `site-agent`, run as the person would type it.

Nothing is decided here and nothing is read: the command checks, acts and writes the audit log. It is a process of
its own, so that the one that a browser talks to never has a patient's row, and so that a command may give up the
network first, as it always does. What was typed on a page becomes the value of a known option, never an option.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from site_agent.console.console_links import Role
from site_agent.console.console_requests import RefusedRequest

_LONGEST_SECONDS: Final = 3600.0


@dataclass(frozen=True, kw_only=True)
class Act:
    """One act.

    Attributes:
        role: whose act it is.
        words: the command.
        needs: fields of the form that become options.
        may_have: fields that become options unless they are empty.
        has_plan: whether it is about a plan, which the field `plan` names by its digest.
        page: the option that names the page to write; empty if the command writes none.
    """

    role: Role
    words: tuple[str, ...]
    needs: tuple[str, ...] = ()
    may_have: tuple[str, ...] = ()
    has_plan: bool = False
    page: str = ""

    def command(self, config: Path, folder: Path, form: Mapping[str, str]) -> list[str]:
        """The command with its options.

        Args:
            config: hospital.yaml.
            folder: where the plan is (`plan.json`), and where the page is written (`page.html`).
            form: what was typed.

        Raises:
            RefusedRequest: a field is missing.
        """
        if missing := [name for name in self.needs if name not in form]:
            raise RefusedRequest(400, f"The form lacks: {', '.join(missing)}.")
        options = {name: form[name] for name in self.needs if name != "model"}
        options |= {name: form[name] for name in self.may_have if form.get(name)}
        words = [*self.words, f"--config={config}", *(f"--{name}={text}" for name, text in options.items())]
        words += [f"--plan={folder / 'plan.json'}"] if self.has_plan else []
        words += [f"{self.page}={folder / 'page.html'}"] if self.page else []
        return [*words, "--", form["model"]] if "model" in self.needs else words


EXAMINE: Final = Act(role=Role.DATA_MANAGER, words=("data", "check"), page="--html")
ACCEPT: Final = Act(role=Role.DATA_MANAGER, words=("data", "accept"), needs=("by", "digest"))
REVIEW: Final = Act(role=Role.OFFICER, words=("review",), has_plan=True, page="--html")
APPROVE: Final = Act(role=Role.OFFICER, words=("approve", "--yes"), needs=("by",), may_have=("until",), has_plan=True)
REFUSE: Final = Act(role=Role.OFFICER, words=("refuse",), needs=("by", "because"), has_plan=True)
WITHDRAW: Final = Act(role=Role.OFFICER, words=("withdraw",), needs=("by",), has_plan=True)
READ_LOG: Final = Act(role=Role.OFFICER, words=("audit", "export"), page="--output")
REPORT: Final = Act(role=Role.CLINICIAN, words=("report",), may_have=("run",), page="--html")
COMPARE: Final = Act(role=Role.CLINICIAN, words=("adopt", "--json"), may_have=("run",))
ADOPT: Final = Act(role=Role.CLINICIAN, words=("adopt",), needs=("by", "run", "model"))
# By the name that a form has in its field `action`. There is no other way to run anything.
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


@dataclass(frozen=True)
class Done:
    """How a command ended: its exit status, what it printed, and the page that it wrote, if any."""

    status: int
    text: str
    document: str | None


async def run_command(words: list[str], folder: Path) -> Done:
    """Run a command of `site-agent` to its end; a browser that goes away does not end it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "site_agent.site_cli", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # Sentences are not cut at the width of the terminal in which the console was started.
        env=os.environ | {"COLUMNS": "1000"},
    )
    try:
        async with asyncio.timeout(_LONGEST_SECONDS):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    page = folder / "page.html"
    document = page.read_text(encoding="utf-8") if page.exists() else None
    # Where the page was written is of no use to a reader: the folder is removed.
    lines = [line for line in printed.decode(errors="replace").splitlines() if str(folder) not in line]
    return Done(process.returncode or 0, "\n".join(lines), document)
