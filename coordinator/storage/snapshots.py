"""Reads and writes snapshots. A snapshot is a saved state of a run, from which the run continues after a crash.

There is one safetensors file for each round to which the run can return, mode 0600, and the last two are kept. The
header has a digest of content and facts. A damaged file is skipped, and the run returns to the previous one. The start
of a run needs no file, because it follows from the plan.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from coordinator.rounds.course import Course
from host.durable import MODELS_RESERVE_BYTES, on_disk, require_room, sync_folder
from protos.plan.server_rules import Float32, Float64
from protos.wire.positions import arrays_digest

FORMAT: Final = 1
KEPT: Final = 2
_KEY: Final = "global-layers"


@dataclass(frozen=True, kw_only=True)
class RoundState:
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


@dataclass(frozen=True)
class Snapshot:
    """The state of a run before a round, with all that a continued run needs.

    Attributes:
        journal_lines: the least number of lines in the journal.
    """

    state: RoundState
    journal_lines: int = 0

    @property
    def number_bytes(self) -> int:
        """Return the total size in bytes of all arrays in this snapshot."""
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays of this snapshot, each with its name in the file."""
        rule_state = {f"rule {name}": array for name, array in self.state.rule_state.items()}
        return {"values": self.state.values} | rule_state


def save_arrays(
    path: Path, arrays: dict[str, npt.NDArray[Any]], metadata: dict[str, str], *, partial: Path, more_bytes: int = 0
) -> None:
    """Write arrays to a safetensors file (a file format for parameters), and wait until the disk has stored it.

    Args:
        partial: the name until the file is complete.
        more_bytes: the room to leave besides the arrays and the reserve for other files.

    Raises:
        OSError: the disk cannot be written; an earlier file is unchanged.
    """
    _begin(partial, arrays, metadata, more_bytes)
    _end(partial, path)


def _begin(partial: Path, arrays: dict[str, npt.NDArray[Any]], metadata: dict[str, str], more_bytes: int) -> None:
    partial.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    require_room(partial.parent, sum(array.nbytes for array in arrays.values()) + more_bytes, MODELS_RESERVE_BYTES)
    try:
        save_file(arrays, partial, metadata=metadata)
    except SafetensorError as cause:
        raise OSError(errno.EIO, "the disk does not take the parameters") from cause


def _end(partial: Path, path: Path) -> None:
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Write a snapshot to disk, then remove all but the last two. See `begin_snapshot` and `end_snapshot`."""
    end_snapshot(begin_snapshot(folder, snapshot))


def begin_snapshot(folder: Path, snapshot: Snapshot) -> Path:
    """Write a snapshot to a partial file and return its path. Afterwards the snapshot's arrays may change.

    Raises:
        UnavailableError: the disk cannot be written; earlier snapshots are unchanged.
    """
    state = snapshot.state
    facts = json.dumps(
        {
            "version": FORMAT,
            "round": state.round,
            "course": state.course.to_json().decode(),
            "journal_lines": snapshot.journal_lines,
        }
    )
    header = json.dumps({"facts": facts, "digest": arrays_digest(facts, snapshot.arrays).hex()})
    partial = _path(folder, state.round).with_suffix(".partial")
    with _explained():
        _begin(partial, snapshot.arrays, {_KEY: header}, len(header))
    return partial


def end_snapshot(partial: Path) -> None:
    """Sync a partial file and give it its name. Then remove all snapshots but the last two.

    Raises:
        UnavailableError: the disk cannot be written; earlier snapshots are unchanged.
    """
    folder = partial.parent
    with _explained():
        _end(partial, partial.with_suffix(".safetensors"))
        sync_folder(folder)
        for number in rounds_in(folder)[:-KEPT]:
            _path(folder, number).unlink()


def read_snapshot(folder: Path, number: int) -> Snapshot | None:
    """Read the snapshot before a round. Return None if the snapshot is damaged or from a later program version."""
    try:
        raw = _path(folder, number).read_bytes()
        arrays = load(raw)
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"][_KEY])
        facts = json.loads(header["facts"])
        if facts["version"] != FORMAT or facts["round"] != number:
            raise ValueError("another version or another round")
        if header["digest"] != arrays_digest(header["facts"], arrays).hex():
            raise ValueError("not the bytes that were written")
        return Snapshot(
            _state(facts, arrays),
            facts["journal_lines"],
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def forget_after(folder: Path, number: int) -> None:
    """Delete the snapshots of later rounds. Raises UnavailableError: the disk does not delete them."""
    with _explained():
        for later in rounds_in(folder):
            if later > number:
                _path(folder, later).unlink()


def forget_partial(folder: Path) -> None:
    """Delete a snapshot that is incomplete because of a crash. Raises UnavailableError: the disk does not delete it."""
    with _explained():
        for partial in folder.glob("before-*.partial"):
            partial.unlink()


def rounds_in(folder: Path) -> list[int]:
    """Return the numbers of the rounds for which a snapshot is on disk, in ascending order."""
    return sorted(int(path.stem.removeprefix("before-")) for path in folder.glob("before-*.safetensors"))


def _state(facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> RoundState:
    return RoundState(
        round=facts["round"],
        course=Course.from_json(facts["course"].encode()),
        values=arrays["values"],
        rule_state={name.removeprefix("rule "): array for name, array in arrays.items() if name != "values"},
    )


def _explained() -> AbstractContextManager[None]:
    return on_disk(
        what="A saved state (snapshot) of the run cannot be written",
        consequence="The coordinator stopped. After a restart the run continues from the previous snapshot.",
    )


def _path(folder: Path, number: int) -> Path:
    return folder / f"before-{number:010d}.safetensors"
