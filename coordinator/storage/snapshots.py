"""Reads and writes snapshots, from which a run continues after a crash: parameters, the server rule's state, decisions.

There is one safetensors file for each round to which the run can return, mode 0600, and the last two are kept. The
header has a digest of content and facts. A damaged file is skipped, and the run returns to the previous one. The start
of a run needs no file, because it follows from the plan.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save_file

from coordinator.rounds.course import Course
from coordinator.rounds.phases import Sites
from coordinator.rounds.rollbacks import Accepted
from host.durable import MODELS_RESERVE_BYTES, require_room, sync_folder
from protos.errors import UnavailableError
from protos.wire.positions import arrays_digest

FORMAT: Final = 1
KEPT: Final = 2
_KEY: Final = "global-layers"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state of a run before a round.

    Attributes:
        round: the number of that round.
        contributors: of the previous round; `resample` is the number of their draw.
        course: the decisions so far.
        values: float32, as in Run.
        rule_state: float64 arrays by name.
        journal_lines: the least number of lines in the journal.
        accepted: the state that the sites accepted last, if the plan lets them refuse.
    """

    round: int
    contributors: Sites
    resample: int
    course: Course
    values: npt.NDArray[np.float32] = field(repr=False)
    rule_state: Mapping[str, npt.NDArray[np.float64]] = field(repr=False)
    journal_lines: int = 0
    accepted: Accepted | None = None

    @property
    def number_bytes(self) -> int:
        """Return the total size of all arrays in bytes."""
        return sum(array.nbytes for array in self._arrays.values())

    @property
    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays by their names in the snapshot's file."""
        arrays = {"values": self.values} | {f"rule {name}": array for name, array in self.rule_state.items()}
        if self.accepted is None:
            return arrays
        accepted = {f"accepted rule {name}": array for name, array in self.accepted.rule_state.items()}
        return arrays | {"accepted values": self.accepted.values} | accepted

    def copied(self) -> Snapshot:
        """Return a copy of the snapshot, with copies of `values` and `rule_state`."""
        rule_state = {name: array.copy() for name, array in self.rule_state.items()}
        return replace(self, values=self.values.copy(), rule_state=rule_state)


def write_snapshot(folder: Path, snapshot: Snapshot) -> None:
    """Write a snapshot to disk, then remove all but the last two.

    Raises:
        UnavailableError: the disk cannot be written; earlier snapshots are unchanged.
    """
    facts = json.dumps(
        {
            "version": FORMAT,
            "round": snapshot.round,
            "contributors": sorted(snapshot.contributors),
            "redraw": snapshot.resample,
            "course": snapshot.course.to_json().decode(),
            "journal_lines": snapshot.journal_lines,
            "accepted": _facts_of(snapshot.accepted),
        }
    )
    arrays = snapshot._arrays
    header = json.dumps({"facts": facts, "digest": arrays_digest(facts, arrays).hex()})
    path = _path(folder, snapshot.round)
    partial = path.with_suffix(".partial")
    with _explained():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        require_room(folder, snapshot.number_bytes + len(header), MODELS_RESERVE_BYTES)
        # written directly from the arrays' memory, without a second copy of the model
        save_file(arrays, partial, metadata={_KEY: header})
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(folder)
        for number in rounds_in(folder)[:-KEPT]:
            _path(folder, number).unlink()


def read_snapshot(folder: Path, number: int) -> Snapshot | None:
    """Read the snapshot before a round, or return None if it is damaged or from a later version."""
    try:
        raw = _path(folder, number).read_bytes()
        arrays = load(raw)
        length = int.from_bytes(raw[:8], "little")
        header = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"][_KEY])
        facts = _migrated(json.loads(header["facts"]))
        if header["digest"] != arrays_digest(header["facts"], arrays).hex() or facts["round"] != number:
            raise ValueError("not the bytes that were written")
        return Snapshot(
            round=number,
            contributors=frozenset(facts["contributors"]),
            resample=facts["redraw"],
            course=Course.from_json(facts["course"].encode()),
            values=arrays["values"],
            rule_state=_of(arrays, "rule "),
            journal_lines=facts["journal_lines"],
            accepted=_accepted(facts.get("accepted"), arrays),
        )
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def forget_after(folder: Path, number: int) -> None:
    """Remove the snapshots of later rounds after the run has returned to an earlier one.

    Raises:
        UnavailableError: the disk does not delete them.
    """
    with _explained():
        for later in rounds_in(folder):
            if later > number:
                _path(folder, later).unlink()


def forget_partial(folder: Path) -> None:
    """Remove a snapshot that a crash left incomplete. Raises UnavailableError if the disk does not delete it."""
    with _explained():
        for partial in folder.glob("before-*.partial"):
            partial.unlink()


def rounds_in(folder: Path) -> list[int]:
    """Return the rounds that have a snapshot, sorted."""
    return sorted(int(path.stem.removeprefix("before-")) for path in folder.glob("before-*.safetensors"))


def _facts_of(accepted: Accepted | None) -> dict[str, Any] | None:
    return None if accepted is None else {"round": accepted.round, "course": accepted.course.to_json().decode()}


def _accepted(facts: Mapping[str, Any] | None, arrays: Mapping[str, npt.NDArray[Any]]) -> Accepted | None:
    if facts is None:
        return None
    return Accepted(
        round=facts["round"],
        course=Course.from_json(facts["course"].encode()),
        values=arrays["accepted values"],
        rule_state=_of(arrays, "accepted rule "),
    )


def _of(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _migrated(facts: dict[str, Any]) -> dict[str, Any]:  # Any: every type that JSON has
    """Check the version of the facts. No earlier version exists yet."""
    if facts["version"] != FORMAT:
        raise ValueError("another version")
    return facts


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as cause:
        reason = cause.strerror if isinstance(cause, OSError) else "the disk does not take the parameters"
        raise UnavailableError(
            what=f"A snapshot of the run cannot be written: {reason}.",
            consequence="The coordinator stopped. After a restart the run continues from the previous snapshot.",
            remedy="Free space on the disk of the state directory, or correct its permissions, and start again.",
        ) from cause


def _path(folder: Path, number: int) -> Path:
    return folder / f"before-{number:010d}.safetensors"
