"""Chooses the best alternative of a sweep: the complete run with the lowest validation loss over all sites.

The choice follows only from the records of the runs, so a restarted coordinator makes the same choice. The losses are
sums over the sites. No record has a measurement of a single site.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from protos.plan.plan import Plan
from protos.plan.sweep import chosen_of


def sweep_facts(state: Path, plans: Iterable[Plan]) -> Iterator[dict[str, Any]]:  # Any: every type that JSON has
    """Yield each sweep among the plans with its complete runs. If all its runs are complete, also yield the chosen run.

    Args:
        plans: all alternatives of each sweep; other plans are skipped.
    """
    for plan in plans:
        if plan.sweep is None or plan.sweep.at != 0:
            continue
        names = [each.run_name for each in plan.alternatives]
        losses = [_lowest_loss(state / "runs" / name) for name in names]
        found = [loss for loss in losses if loss is not None]
        chosen = chosen_of(found) if len(found) == len(names) else None
        yield {
            "study": plan.study,
            "version": plan.version,
            "alternatives": len(names),
            "complete": len(found),
            "chosen": None if chosen is None else names[chosen],
            "values": None if chosen is None else plan.sweep.text_of(chosen),
            "best_validation_loss": None if chosen is None or math.isinf(found[chosen]) else found[chosen],
        }


def earlier_losses(state: Path, plan: Plan) -> tuple[float, ...]:
    """Return the lowest loss of each other alternative if this is the last alternative of a sweep, otherwise nothing.

    The result is also empty while another alternative is not complete, because then none can be chosen.
    """
    if plan.sweep is None or not plan.sweep.is_last:
        return ()
    losses = [_lowest_loss(state / "runs" / each.run_name) for each in plan.alternatives[:-1]]
    found = tuple(loss for loss in losses if loss is not None)
    return found if len(found) == len(losses) else ()


def _lowest_loss(directory: Path) -> float | None:
    """Return the lowest loss of a complete run, or infinity if no loss was measured.

    Return None for an incomplete run.
    """
    try:
        facts = json.loads((directory / "record.json").read_bytes())
        loss = facts["best_validation_loss"]
        return None if facts["is_complete"] is not True else math.inf if loss is None else float(loss)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
