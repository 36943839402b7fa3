"""What a coordinator tells of itself when it is asked: the run, each of its sites, and what happened to whom."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from coordinator.keeping import Kept
from coordinator.maintenance import Windows
from coordinator.run import Run


def status_facts(
    run: Run | None, kept: Kept | None, *, connected: Collection[str], joined: Collection[str], windows: Windows
) -> dict[str, Any]:  # Any: whatever JSON holds
    """What an operator asks at 3 a.m., ready for JSON.

    Args:
        run: that is under way, if any.
        kept: its journal.
        connected: the sites whose streams are open.
        joined: those of them that take part.
        windows: in which sites said that they may be away.
    """
    withdrawn = kept.history.withdrawn if kept else ()
    return {
        "run": run.facts() if run else None,
        "sites": {
            name: {
                "connected": name in connected,
                "joined": name in joined,
                "withdrawn": name in withdrawn,
                "maintenance": windows.facts(name),
            }
            for name in (run.plan.site_names if run else sorted(connected))
        },
        "paused": run.terms.is_paused if run else False,
        "happened": kept.history.facts() if kept else None,
    }
