"""The exit statuses of all programs. Services are never restarted after 77 and 78."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class ExitCode:
    """One status.

    Attributes:
        number: what the shell and the service manager see.
        meaning: in one sentence.
        who: can correct it.
        is_restarted: whether a service is started again after it.
    """

    number: int
    meaning: str
    who: str
    is_restarted: bool


EXIT_CODES: Final = (
    ExitCode(0, "Done, or asked to stop.", "", False),
    ExitCode(
        1, "A failure that trying again, or an operator, can correct: network, disk, another process.", "operator", True
    ),
    ExitCode(2, "Wrong words on the command line; nothing was done.", "whoever typed them", False),
    ExitCode(3, "Of doctor alone: all works, and there are warnings.", "operator", False),
    ExitCode(70, "A defect of the program; its line says where.", "the project", True),
    ExitCode(77, "Refused: by the policy, the register, the plan or the coordinator.", "people on both sides", False),
    ExitCode(78, "Configuration, contract or table is wrong.", "operator, data manager", False),
    ExitCode(130, "Interrupted at the keyboard.", "", False),
)
