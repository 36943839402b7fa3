"""Writes the permanent record of a run at the coordinator: the plan, the facts and the shared parameters.

A record is written after its parameters are on disk. The record of a complete run is never replaced.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from coordinator.rounds.phases import Over
from coordinator.rounds.run import Run
from host.durable import MODELS_RESERVE_BYTES, replace_file, require_room
from protos.errors import UnavailableError


def has_complete_record(directory: Path) -> bool:
    """Return whether the run is complete according to its record. If the record is damaged, return False."""
    try:
        return json.loads((directory / "record.json").read_bytes())["is_complete"] is True
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return False


def write_record(directory: Path, run: Run, over: Over, happened: Mapping[str, object]) -> None:
    """Write the plan, the facts and the final parameters of a run.

    Raises:
        UnavailableError: the disk cannot be written. The run ends only after the record is written.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_room(directory, run.parameters.nbytes, MODELS_RESERVE_BYTES)
        _write_record(directory, run, over, happened)
    except (OSError, SafetensorError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else "the disk does not take the parameters"
        raise UnavailableError(
            what=f"The run's record cannot be written: {reason}.",
            consequence="The coordinator stopped. The run ends when its record is on disk.",
            remedy="Free space on the disk of the state directory, or correct its permissions, and start again.",
        ) from cause


def _write_record(directory: Path, run: Run, over: Over, happened: Mapping[str, object]) -> None:
    replace_file(directory / "plan.json", run.plan.canonical)
    partial = directory / "parameters.safetensors.partial"
    save_file(run.views(), partial, metadata={"run": run.name, "plan_digest": run.plan.digest.hex()})
    # Synced before the record, which states that these parameters exist.
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(directory / "parameters.safetensors")
    facts = run.facts() | {
        "is_complete": over.is_complete,
        "reason": over.reason,
        "missing": sorted(over.missing),
        **happened,
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        # The status does not have these facts, because it is requested twice a second and they are slow: a hash of 25
        # million numbers takes 0.2 s, and a curve may have a hundred thousand points.
        "validation_curve": run.course.curve,
        "shared_parameters_sha256": sha256_of(run.result()[1]),
    }
    replace_file(directory / "record.json", json.dumps(facts, indent=2, sort_keys=True).encode())


def sha256_of(parameters: npt.NDArray[np.float32]) -> str:
    """Return the SHA-256 of the vector's little-endian bytes in hexadecimal, as in reports.

    Args:
        parameters: float32 of shape (numbers,), the values that sites received as the last aggregate.
    """
    return hashlib.sha256(parameters.view(np.uint8).data).hexdigest()
