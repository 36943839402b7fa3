"""Stores the version of a state directory's layout, and converts the state of an earlier version.

The file `state-format` has the program and the version number. A state without the file has number 0. A step converts
each number to the next one. An unknown number is refused, because an older program would treat newer files as damaged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from host.durable import on_disk, replace_file
from protos.errors import ConfigurationError

FILE: Final = "state-format"
STATE_FORMAT: Final = 2


def _begin_numbering(_: Path) -> None:
    """Convert format 0 to 1. Only the number is new."""


def _part_folders(_: Path) -> None:
    """Convert format 1 to 2. A site separates its folders itself. A coordinator's folders are unchanged."""


# The step at place n converts format n to n + 1. Each step can be interrupted and repeated.
_STEPS: Final[tuple[Callable[[Path], None], ...]] = (_begin_numbering, _part_folders)


def settle_format(state: Path, program: str) -> int:
    """Convert a state to this program's format. Return its old number. The caller has reserved the directory.

    Raises:
        ConfigurationError: the state is of a later version or of another program.
        UnavailableError: the disk cannot be written.
    """
    found = format_of(state, program)
    if found < STATE_FORMAT or not (state / FILE).exists():
        for step in _STEPS[found:]:
            step(state)
        _write(state, program)
    return found


def format_of(state: Path, program: str) -> int:
    """Return the number of a state's format.

    Raises:
        ConfigurationError: the state is of a later version or of another program.
    """
    try:
        content = json.loads((state / FILE).read_bytes())
        owner, number = content["program"], content["format"]
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError) as cause:
        raise _refused(f"{state / FILE} cannot be read", "Restore the directory from a backup.") from cause
    if owner != program:
        raise _refused(f"{state} is the state of {owner}, not of {program}", "Name another state directory.")
    check_number(number, str(state))
    return int(number)


def check_number(number: object, place: str) -> None:
    """Check that this program supports the number of a state format.

    Raises:
        ConfigurationError: this program does not support it.
    """
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= STATE_FORMAT:
        raise _refused(
            f"{place} has state format {number}, and this program knows formats up to {STATE_FORMAT}",
            "Install the version of global-layers that wrote it, or a later one.",
        )


def _write(state: Path, program: str) -> None:
    content = json.dumps({"program": program, "format": STATE_FORMAT}) + "\n"
    with on_disk(
        what="The state directory cannot be written", consequence="The program did not start. The state is unchanged."
    ):
        replace_file(state / FILE, content.encode())


def _refused(what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(what=f"{what}.", consequence="The program stopped. Nothing was changed.", remedy=remedy)
