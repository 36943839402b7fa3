"""Limits the counts of training rows that a site adds to exact sums, when studies repeat and patients change.

Two sums of the same sites at two times differ by the number of rows that these sites gained or lost. If the others are
known or unchanged, a difference of 1 reveals that one certain patient is among the rows. So this site stores every
count that it used. Any two counts that it uses are equal, or they differ by `smallest_cell` or more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from protos.errors import ConfigurationError
from site_agent.trainer.trainer_files import write_whole

_FILE: Final = "exact-rows.json"
_LARGEST_BYTES: Final = 1 << 20


def released_count(folder: Path, rows: int, smallest_cell: int) -> int:
    """Return the count to be used for this number of rows, and remember it before it is used.

    Args:
        folder: the trainer's own, with the counts that this site used, the newest last.
        rows: training rows of the table now.
        smallest_cell: by how much two different counts differ at least.

    Raises:
        ConfigurationError: the counts that were used cannot be read.
        UnavailableError: the disk does not take the new one.
    """
    used = _used(folder / _FILE)
    near = [count for count in used if abs(count - rows) < smallest_cell]
    # The newest one first. So if a table grows and shrinks around a limit, only the first crossing is visible.
    chosen = rows if not near else used[-1] if used[-1] in near else min(near, key=lambda count: abs(count - rows))
    if not used or used[-1] != chosen:
        kept = [*(count for count in used if count != chosen), chosen]
        write_whole(folder / _FILE, json.dumps(kept).encode())
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
            what=f"{path} cannot be read. It has the counts of training rows that this site used in earlier studies.",
            consequence="Nothing was trained and nothing left this site.",
            remedy="Restore this file from the newest backup, or take part only in plans without exact rows.",
        ) from cause
    return found
