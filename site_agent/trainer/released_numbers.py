"""Records on disk which row counts this site sent before.

Two row counts that decide this site's weight are equal, or differ by the rows of `smallest_cell` patients or more
(docs/privacy.md, "Integers"). Training and validation rows have separate records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from site_agent.trainer.answered_values import extend
from site_agent.trainer.disk import recording, site_secret

TRAINING: Final = "training"
VALIDATION: Final = "validation"


def released_count(folder: Path, rows: int, gap: int, kind: str = TRAINING) -> int:
    """Return the row count that this site sends if it has `rows` rows. The count is stored on disk first.

    The records in `folder` have the counts of training and of validation rows that this site used, the newest last.
    `gap` is the least difference between two different counts; it never falls. Raises StoreError.
    """
    with recording(folder) as store:
        read = "SELECT rows FROM counts WHERE kind = ? ORDER BY place"
        used = [count for (count,) in store.read(read, kind)]
        gap = max([gap, *(used_gap for (used_gap,) in store.read(read, f"gap of {kind}"))])
        near = [count for count in used if abs(count - rows) < gap]
        # The newest count is preferred: if rows come and go around a limit, only the first change is visible.
        chosen = rows if not near else used[-1] if used[-1] in near else min(near, key=lambda count: abs(count - rows))
        if not used or used[-1] != chosen:
            store.write("DELETE FROM counts WHERE kind = ? AND rows = ?", kind, chosen)
            for name, count in ((kind, chosen), (f"gap of {kind}", gap)):
                store.write("INSERT INTO counts (kind, rows) VALUES (?, ?)", name, count)
            extend(store, site_secret(folder), "", {kind: str(chosen)})
    return chosen
