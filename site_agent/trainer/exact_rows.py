"""Limits the counts of rows that a site adds to sums, when studies repeat and patients change.

Two sums of the same sites at two times differ by the number of rows that these sites gained or lost. If the others are
known or unchanged, a difference of 1 reveals that one certain patient is among the rows. So this site stores every
count that it used. Any two counts that it uses are equal, or they differ by `smallest_cell` or more.

Counts that leave rounded are in the same memory, and are rounded after it. Otherwise an exact count of 159 in one
study, and 192 on the grid in another, would reveal one row more: the grid has 128 below 160 rows and 192 from there on.
Validation rows, which always leave rounded, have a second memory. Both change with the same patients.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from protos.errors import ConfigurationError
from site_agent.trainer.trainer_files import write_whole

TRAINING: Final = "exact-rows.json"
VALIDATION: Final = "validation-rows.json"
_LARGEST_BYTES: Final = 1 << 20


def released_count(folder: Path, rows: int, smallest_cell: int, memory: str = TRAINING) -> int:
    """Return the count to be used for this number of rows, and remember it before it is used.

    Args:
        folder: the trainer's own, with the counts that this site used, the newest last.
        rows: rows of the table now.
        smallest_cell: by how much two different counts differ at least.
        memory: the file of training rows or of validation rows.

    Raises:
        ConfigurationError: the counts that were used cannot be read.
        UnavailableError: the disk does not take the new one.
    """
    used = _used(folder / memory)
    near = [count for count in used if abs(count - rows) < smallest_cell]
    # The newest one first. So if a table grows and shrinks around a limit, only the first crossing is visible.
    chosen = rows if not near else used[-1] if used[-1] in near else min(near, key=lambda count: abs(count - rows))
    if not used or used[-1] != chosen:
        kept = [*(count for count in used if count != chosen), chosen]
        write_whole(folder / memory, json.dumps(kept).encode())
    return chosen


def _used(path: Path) -> list[int]:
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST_BYTES))
        if not isinstance(found, list) or not all(type(count) is int for count in found):
            raise ValueError("another content")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as cause:
        raise ConfigurationError(
            what=f"{path} cannot be read. It has the counts of rows that this site used in earlier studies.",
            consequence="Nothing was trained and nothing left this site.",
            remedy="Restore this file from the newest backup, or take part only in plans with equal weights.",
        ) from cause
    return found
