"""Reads and writes snapshots. A snapshot is a saved state of a run, from which the run continues after a crash.

Its arrays are a safetensors file, mode 0600, because they are too large for the store. The file is on disk before the
row of the store that names it by the digest of its content. A file that no row names is deleted. A file with another
content is skipped, and the run returns to the previous snapshot. The start of a run needs no file, because it follows
from the plan.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from coordinator.rounds.course import Course
from host.durable import MODELS_RESERVE_BYTES, on_disk, require_room, sync_folder
from protos.plan.server_rules import Float32, Float64
from protos.wire.positions import arrays_digest

KEPT: Final = 2


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a run before a round.

    Attributes:
        round: the number of that round.
        course: the decisions so far.
        values: float32, as in Run.
        rule_state: float64 arrays by name.
    """

    round: int
    course: Course
    values: Float32 = field(repr=False)
    rule_state: Mapping[str, Float64] = field(repr=False)

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays of this snapshot, each with its name in the file."""
        return {"values": self.values} | {f"rule {name}": array for name, array in self.rule_state.items()}


@dataclass(frozen=True)
class SnapshotRow:
    """The row of the store that names a snapshot's file. `digest` is over the course and the arrays."""

    round: int
    course: str
    digest: str


def save_arrays(path: Path, arrays: dict[str, npt.NDArray[Any]], metadata: dict[str, str], *, partial: Path) -> None:
    """Write arrays to a safetensors file (a file format for parameters), and wait until the disk has stored it.

    `partial` is the name until the file is complete.

    Raises:
        OSError: the disk cannot be written; an earlier file is unchanged.
    """
    partial.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_room(partial.parent, sum(array.nbytes for array in arrays.values()), MODELS_RESERVE_BYTES)
    try:
        save_file(arrays, partial, metadata=metadata)
    except SafetensorError as cause:
        raise OSError(errno.EIO, "the disk does not take the parameters") from cause
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def write_snapshot(folder: Path, snapshot: Snapshot) -> SnapshotRow:
    """Write a snapshot to disk. Return the row that names it.

    Raises:
        UnavailableError: the disk cannot be written; earlier snapshots are unchanged.
    """
    path, course = _path(folder, snapshot.round), snapshot.course.to_json().decode()
    with _explained():
        save_arrays(path, snapshot.arrays, {}, partial=path.with_suffix(".partial"))
        sync_folder(folder)
    return SnapshotRow(snapshot.round, course, arrays_digest(course, snapshot.arrays).hex())


def read_snapshot(folder: Path, row: SnapshotRow) -> Snapshot | None:
    """Read the snapshot that a row of the store names. Return None if its file is lost or has another content."""
    try:
        arrays = load_file(_path(folder, row.round))
        if arrays_digest(row.course, arrays).hex() != row.digest:
            return None
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None
    return Snapshot(
        round=row.round,
        course=Course.from_json(row.course.encode()),
        values=arrays.pop("values"),
        rule_state={name.removeprefix("rule "): array for name, array in arrays.items()},
    )


def delete_snapshots(folder: Path, rounds: Iterable[int]) -> None:
    """Delete the snapshots before these rounds. Raises UnavailableError: the disk does not delete them."""
    with _explained():
        for number in rounds:
            _path(folder, number).unlink(missing_ok=True)


def delete_others(folder: Path, rounds: Iterable[int]) -> None:
    """Delete what a killed program left: all files but the snapshots before these rounds. Raises UnavailableError."""
    named = {_path(folder, number) for number in rounds}
    with _explained():
        for path in folder.glob("before-*"):
            if path not in named:
                path.unlink()


def _explained() -> AbstractContextManager[None]:
    return on_disk(
        what="A saved state (snapshot) of the run cannot be written",
        consequence="The coordinator stopped. After a restart the run continues from the previous snapshot.",
    )


def _path(folder: Path, number: int) -> Path:
    return folder / f"before-{number:010d}.safetensors"
