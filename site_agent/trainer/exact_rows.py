"""Changes the sent row count rarely, so that repeated studies cannot learn from it about single patients.

Two counts that this site uses are equal, or differ by `smallest_cell` or more. Otherwise a difference between two sums
could reveal that one certain patient joined or left (docs/privacy.md, "Integers"). So every count is stored.
Counts that are sent rounded use the same record, and are rounded afterwards. Validation rows have a second record.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from site_agent.trainer.failures import unfit
from site_agent.trainer.trainer_files import write_whole

TRAINING: Final = "exact-rows.json"
VALIDATION: Final = "validation-rows.json"
_LARGEST_BYTES: Final = 1 << 20


def released_count(folder: Path, rows: int, smallest_cell: int, memory: str = TRAINING) -> int:
    """Return the row count that this site sends if it has `rows` rows. The count is stored on disk first.

    The file `memory` in `folder` has the counts of training or validation rows that this site used, the newest last.
    `smallest_cell` is the least difference between two different counts.

    Raises:
        ConfigurationError: the earlier counts cannot be read.
        UnavailableError: the disk cannot be written.
    """
    used = _used(folder / memory)
    near = [count for count in used if abs(count - rows) < smallest_cell]
    # The newest count is preferred. So if the number of rows rises and falls around a limit, only the first change is
    # visible.
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
        raise unfit(
            what=f"The file {path} cannot be read. It stores the row counts that this site used in earlier studies.",
            remedy=(
                "Restore this file from the newest backup, or take part only in plans that give all sites equal "
                "weights."
            ),
        ) from cause
    return found
