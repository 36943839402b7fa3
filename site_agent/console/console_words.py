"""Replaces commands in messages by the names of the console's buttons, by pure functions on text.

Commands write for a terminal, where the next step is another command. On a page of the console that step is often a
button, so the text shows the button's name instead. Words about actions that the console does not offer stay unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from site_agent.console.console_links import Role

ROLE_NAMES: Final = {
    Role.DATA_MANAGER: "data manager",
    Role.OFFICER: "data protection officer",
    Role.CLINICIAN: "clinician",
}
# By the action's name in a form.
BUTTONS: Final[Mapping[str, str]] = {
    "examine": "Examine the table",
    "accept": "Accept the warnings",
    "review": "Review and decide",
    "approve": "Approve",
    "refuse": "Refuse",
    "withdraw": "Withdraw",
    "log": "Read the audit log",
    "report": "Read the report",
    "compare": "Compare models",
    "adopt": "Adopt this model",
}
FIELDS: Final[Mapping[str, str]] = {
    "by": "Your name",
    "because": "Reason",
    "until": "Last day of the approval",
    "run": "Run",
}
_COMMANDS: Final[Mapping[str, tuple[Role, str]]] = {
    "data check": (Role.DATA_MANAGER, "examine"),
    "data accept": (Role.DATA_MANAGER, "accept"),
    "review": (Role.OFFICER, "review"),
    "approve": (Role.OFFICER, "approve"),
    "refuse": (Role.OFFICER, "refuse"),
    "withdraw": (Role.OFFICER, "withdraw"),
    "audit show": (Role.OFFICER, "log"),
    "audit export": (Role.OFFICER, "log"),
    "report": (Role.CLINICIAN, "report"),
    "adopt": (Role.CLINICIAN, "compare"),
}
_COMMAND: Final = re.compile(rf"(\b[Rr]un )?`site-agent ({'|'.join(_COMMANDS)})((?: [A-Z-][^`]*)?)`")
_OPTION: Final = re.compile(rf"(?<![\w-])--({'|'.join(FIELDS)})\b")


def for_buttons(text: str, roles: frozenset[Role]) -> str:
    """Return the text with the names of the console's buttons and fields instead of commands and options.

    Args:
        text: what a command printed.
        roles: the reader's own. If the button belongs to another role, the text refers the reader to that person.
    """

    def button(found: re.Match[str]) -> str:
        role, act = _COMMANDS[found[2]]
        label = f"“{BUTTONS[act]}”" if role in roles else f"“{BUTTONS[act]}” (a button of the {ROLE_NAMES[role]})"
        press = {"run ": "press ", "Run ": "Press "}.get(found[1] or "", "")
        return f"{press}{label}"

    # If the console does not replace a command between backticks, the options of the command also remain.
    parts = _COMMAND.sub(button, text.removeprefix("site-agent: ")).split("`")
    parts[::2] = [_OPTION.sub(lambda found: f"“{FIELDS[found[1]]}”", part) for part in parts[::2]]
    return "`".join(parts)
