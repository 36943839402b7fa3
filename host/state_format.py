"""Stores the version of a state directory's layout.

The file `state-format` has the program and the version number. A state without the file has number 0. An unknown number
is refused, because an older program would treat newer files as damaged.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from host.durable import on_disk, replace_file
from protos.errors import ConfigurationError

FILE: Final = "state-format"
# Format 1 added only the number. With format 2 a site separates its folders itself, and a coordinator's are unchanged.
STATE_FORMAT: Final = 2


def settle_format(state: Path, program: str) -> int:
    """Write the number of this program's state format into a locked state directory. Return the earlier number.

    Raises:
        ConfigurationError: the state is of a later version or of another program.
        UnavailableError: the disk cannot be written.
    """
    found = format_of(state, program)
    if found < STATE_FORMAT:
        content = json.dumps({"program": program, "format": STATE_FORMAT}) + "\n"
        with on_disk(
            what="The state directory cannot be written",
            consequence="The program did not start. The state is unchanged.",
        ):
            replace_file(state / FILE, content.encode())
    return found


def format_of(state: Path, program: str) -> int:
    """Return the format of a state directory. Raises ConfigurationError for a later version or another program."""
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
    """Raise ConfigurationError if this program does not support the format number of a state directory."""
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= STATE_FORMAT:
        raise _refused(
            f"{place} has state format {number}, and this program knows formats up to {STATE_FORMAT}",
            "Install the version of global-layers that wrote it, or a later one.",
        )


def _refused(what: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(what=f"{what}.", consequence="The program stopped. Nothing was changed.", remedy=remedy)
