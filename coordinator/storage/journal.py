"""Writes the journal of one run. The coordinator writes every decision to disk before it acts on the decision.

The journal is one append-only file of JSON lines. Each line has its number and a checksum over itself and the previous
line, so that a changed, lost or exchanged line is detected. A crash can leave an incomplete last line. Its decision had
no effect, and it is moved to another file. Every other fault is refused, because a run with half of its decisions could
offer one attempt twice.

SQLite is not needed: there is one writer, and one reader at start. An operator can read the file without a program.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from host.durable import RECORDS_RESERVE_BYTES, on_disk, replace_file, require_room, sync_folder
from protos.errors import OperatorError

Entry: TypeAlias = dict[str, Any]  # Any: every type that JSON has
_FIRST: Final = "global-layers journal 1"


class JournalDamaged(OperatorError):
    """The journal was changed or damaged. A person must check it."""

    code = "E011"

    exit_status = 78  # a restart does not correct the journal

    def __init__(self, path: Path, finding: str) -> None:
        super().__init__(
            what=f"The journal {path} is damaged or was changed: {finding}.",
            consequence="The coordinator did not continue the run and contacted no site for it. Nothing was changed.",
            remedy=f"Stop the coordinator. Move the folder {path.parent.parent.parent} to another place. Copy the "
            "newest copy of the folder back, and declare it with `coordinator restored`. Without a copy, announce a "
            "new version of the plan.",
        )


class Echo(Protocol):
    """Another place, such as an audit log, where the entries of one journal are recorded."""

    def record(self, entries: list[Entry], *, syncs: bool) -> None:
        """Record entries before the journal stores them. Without `syncs`, they are on disk only after `sync`."""

    def copy(self, entries: list[Entry]) -> None:
        """Copy entries of the journal that are missing here, and store them on disk."""

    def sync(self) -> None:
        """Store the recorded entries on disk."""

    def lines(self) -> int | None:
        """Return how many lines of the journal are recorded there, or None if the number is unknown."""


class Journal:
    """The open journal of one run."""

    def __init__(self, path: Path, now: Callable[[], datetime], echo: Echo | None = None) -> None:
        """Open or create the journal. `now` returns aware UTC times. `echo` first records new entries elsewhere.

        Entries that are missing in `echo` after a power failure are copied to it.

        Raises:
            JournalDamaged: a line was changed, removed or moved.
            OperatorError: the disk or the record of `echo` cannot be written.
        """
        self._path, self._now, self._echo = path, now, echo
        self._waiting: list[bytes] = []
        self._entries: list[Entry] = []
        self.is_settled = True  # whether `echo` has stored everything that this journal has
        with _on_disk():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _set_torn_tail_aside(path, now())
            self.lines, self._check = 0, _FIRST
            recorded = echo.lines() if echo and path.exists() else None
            lost = list[Entry]()
            for number, check, entry in _checked_lines(path):
                self.lines, self._check = number + 1, check
                if recorded is not None and number >= recorded:
                    lost.append(entry)
            if echo and lost:
                echo.copy(lost)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.fdopen(os.open(path, flags, 0o600), "ab", buffering=0)
            self._size = os.fstat(self._file.fileno()).st_size
            sync_folder(path.parent)

    def add(self, kind: str, **facts: object) -> None:
        """Add a decision to the journal. The decision is on disk only after `sync` has returned."""
        time = self._now().isoformat(timespec="milliseconds")
        entry = {"line": self.lines, "kind": kind, "time": time} | facts
        self._check, text = _checked(self._check, entry)
        self._waiting.append(text)
        self._entries.append(entry)
        self.lines += 1

    def sync(self, *, settles: bool = True) -> None:
        """Write the added decisions to disk, and wait until they are stored. With `settles`, also sync them in `echo`.

        Raises:
            OperatorError: this disk or the record of `echo` cannot be written; the file is unchanged.
        """
        if not self._waiting:
            return
        if self._echo is not None:
            self._echo.record(self._entries, syncs=settles)
            self._entries = []
        content = b"".join(self._waiting)
        try:
            require_room(self._file.fileno(), len(content), RECORDS_RESERVE_BYTES)
            if os.write(self._file.fileno(), content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fdatasync(self._file.fileno())
        except OSError:
            self._file.truncate(self._size)  # an incomplete decision is no decision
            with _on_disk():
                raise
        self._size += len(content)
        self._waiting.clear()
        self.is_settled = settles

    def settle(self) -> None:
        """Store the record of `echo` on disk. Raises OperatorError: its disk cannot be written."""
        if self._echo is not None and not self.is_settled:
            self._echo.sync()
        self.is_settled = True

    def close(self) -> None:
        """Close the journal's file. Decisions that were added after the last `sync` may be lost."""
        self._file.close()


def read_journal(path: Path) -> Iterator[Entry]:
    """Yield the complete lines of a journal that may still grow. Raises JournalDamaged: a line was changed or lost."""
    return (entry for _, _, entry in _checked_lines(path))


def _checked_lines(path: Path) -> Iterator[tuple[int, str, Entry]]:
    """Yield the line number, checksum and entry of each complete line."""
    check = _FIRST
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if not line.endswith(b"\n"):
                return  # another process is writing this line
            try:
                entry = json.loads(line)
                given = entry.pop("check")
                check, written = _checked(check, entry)
                if (check, written, number) != (given, line, entry["line"]):
                    raise ValueError("other bytes")
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
                raise JournalDamaged(
                    path, f"line {number + 1} was changed, or does not follow on the one before"
                ) from cause
            yield number, check, entry


def _checked(before: str, entry: Entry) -> tuple[str, bytes]:
    text = json.dumps(entry, separators=(",", ":"))
    check = hashlib.sha256(f"{before} {text}".encode()).hexdigest()[:32]
    return check, f'{text[:-1]},"check":"{check}"}}\n'.encode()  # as json.dumps writes it, in less time


def _set_torn_tail_aside(path: Path, now: datetime) -> None:
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole == len(content):
        return
    replace_file(path.with_name(f"{path.name}.torn-{now:%Y%m%dT%H%M%S%f}"), content[whole:])
    with path.open("r+b") as file:
        file.truncate(whole)
        os.fsync(file.fileno())


def _on_disk() -> AbstractContextManager[None]:
    return on_disk(
        what="The coordinator's journal cannot be written",
        consequence="The coordinator stopped before its newest decision took effect. Nothing is lost.",
    )
