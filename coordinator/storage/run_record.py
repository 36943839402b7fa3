"""Writes the permanent record of a run, and chooses the best run of a sweep (a study with alternative settings).

A record has the plan, the facts and the shared parameters. It is written after its parameters are on disk. The record
of a complete run is never replaced.

The best alternative of a sweep is the complete run with the lowest validation loss over all sites. The choice follows
only from the records, so a restarted coordinator makes the same choice. The losses are sums over the sites. No record
has a measurement of a single site.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coordinator.rounds.phases import Over
from coordinator.rounds.run import Run
from coordinator.storage.snapshots import save_arrays
from host.durable import on_disk, replace_file
from protos.plan.plan import Plan
from protos.plan.sweep import chosen_of


def has_complete_record(directory: Path) -> bool:
    """Return whether the record of a run states that the run is complete. If the record is damaged, return False."""
    try:
        return json.loads((directory / "record.json").read_bytes())["is_complete"] is True
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return False


def write_record(directory: Path, run: Run, over: Over, happened: Mapping[str, object]) -> None:
    """Write the permanent record of a run: its plan, its facts and its final parameters.

    Raises:
        UnavailableError: the disk cannot be written. The run ends only after the record is written.
    """
    with on_disk(
        what="The permanent record of the run cannot be written",
        consequence="The coordinator stopped. The run ends only when its record is on disk.",
    ):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(directory / "plan.json", run.plan.canonical)
        path, metadata = directory / "parameters.safetensors", {"run": run.name, "plan_digest": run.plan.digest.hex()}
        # Synced before the record, which states that these parameters exist.
        save_arrays(path, run.views(), metadata, partial=directory / "parameters.safetensors.partial")
        facts = {**_facts(run, over), **happened, "ended": datetime.now(UTC).isoformat(timespec="seconds")}
        replace_file(directory / "record.json", json.dumps(facts, indent=2, sort_keys=True).encode())


def _facts(run: Run, over: Over) -> dict[str, Any]:
    return run.facts() | {
        "is_complete": over.is_complete,
        "reason": over.reason,
        "missing": sorted(over.missing),
        # The status does not have these facts, because it is requested twice a second and they are slow: a hash of 25
        # million numbers takes 0.2 s, and a curve may have a hundred thousand points.
        "validation_curve": run.course.curve,
        "shared_parameters_sha256": sha256_of(run.result()[1]),
    }


def sha256_of(parameters: npt.NDArray[np.float32]) -> str:
    """Return the SHA-256 digest of a run's final parameters in hexadecimal, as reports show this digest.

    Args:
        parameters: float32 of shape (numbers,), the values that sites received as the last aggregate.
    """
    return hashlib.sha256(parameters.view(np.uint8).data).hexdigest()


def sweep_facts(state: Path, plans: Iterable[Plan]) -> Iterator[dict[str, Any]]:  # Any: every type that JSON has
    """Yield each sweep (plan with alternatives) with its complete runs, and the best run if all are complete.

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
    """Return the lowest loss of each other run of a sweep. Return nothing if this plan is not the last alternative.

    The result is also empty while another alternative is not complete, because then none can be chosen.
    """
    if plan.sweep is None or not plan.sweep.is_last:
        return ()
    losses = [_lowest_loss(state / "runs" / each.run_name) for each in plan.alternatives[:-1]]
    found = tuple(loss for loss in losses if loss is not None)
    return found if len(found) == len(losses) else ()


def _lowest_loss(directory: Path) -> float | None:
    """Return the lowest loss of a complete run, infinity if none was measured; None for an incomplete run."""
    try:
        facts = json.loads((directory / "record.json").read_bytes())
        loss = facts["best_validation_loss"]
        return None if facts["is_complete"] is not True else math.inf if loss is None else float(loss)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
