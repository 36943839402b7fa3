"""Writes a program's own audit log to disk. Each record is synced before the recorded act happens, with two exceptions.

A record of what has already happened may be synced with the next record. The coordinator's decisions about a run may be
synced later, because the synced journal also contains them. All these records are synced before a checkpoint covers
them.

The log is append-only JSON lines, chained by hash (protos/wire/log_chain.py), mode 0600. Each record has the time, the
software and, at a site, the site's name. A record never has a value, a secret or a path that may name a patient.
Several processes can write to it, one at a time. Each checks the others' lines before it writes. The rules:

* all records of a call are written, or none is. A full disk is an error, and the caller stops;
* a crash may leave an incomplete last line. It is moved to a file of its own;
* a full file is renamed, and the next file begins with the signed checkpoint of the full one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from pydantic import Field

from audit.log_files import (
    CONTINUED,
    RESTORED_FROM,
    BrokenFile,
    all_files,
    began_with,
    checked_records,
    earlier_facts,
    first_line,
    full_files,
    full_name,
    generation_of,
    last_line,
    may_contain,
    newest_first,
    position_after,
    start_of_file,
)
from host.durable import RECORDS_RESERVE_BYTES, give_to_owner, make_folder, new_file, opened_folder, require_room
from protos.errors import OperatorError
from protos.plan.documents import Document
from protos.wire.log_chain import BrokenChain, LogPosition, Record, append, checked, start_of
from protos.wire.log_checkpoints import (
    COORDINATOR,
    LogCheckpoint,
    checkpoint_facts,
    owner_of_site,
    sign_checkpoint,
)


class AuditSettings(Document):
    """The settings for rotation and retention of the audit log.

    Attributes:
        largest_megabytes: of one file, in units of 1,000,000 bytes. A larger file is renamed.
        keep_days: a full file without a change for this many days is deleted, and the log records it.
    """

    largest_megabytes: float = Field(default=64.0, ge=0.01, le=1000)
    keep_days: int = Field(default=3653, ge=30)

    @property
    def limits(self) -> Limits:
        """Return the largest size of a file in bytes, and the number of days for which files are kept."""
        return Limits(largest_bytes=int(self.largest_megabytes * 1_000_000), keep_days=self.keep_days)


# Records about checkpoints cause no further checkpoint, because two logs that witness each other would never end.
COSIGNED: Final = "checkpoint_cosigned"
IDENTITY_REPLACED: Final = "identity_replaced"
WITNESSED: Final = "log_witnessed"
DELETED: Final = "log_file_deleted"
_OF_HEADS: Final = {COSIGNED, WITNESSED, CONTINUED}
# After such a record the checkpoint does not wait for more records. Otherwise a restored backup without this payment
# could seem complete.
_CONFIRMED_AT_ONCE: Final = {"privacy_spent"}

_MOST_GROWTH: Final = 64
_MOST_NEWEST: Final = 1024


class AuditError(OperatorError):
    """The audit log cannot be trusted or written. The program must do nothing that it cannot record."""

    code = "E014"


@dataclass(frozen=True)
class Consequences:
    """The sentences that explain what a damaged log or a failed disk means for the data.

    Attributes:
        of_damage: the log was changed or damaged.
        at_the_start: the log cannot be opened.
        before_the_step: a record cannot be written, so the announced step does not happen.
        after_a_step: what has already happened cannot be recorded or synced, or the log cannot be read.
    """

    of_damage: str
    at_the_start: str
    before_the_step: str
    after_a_step: str


@dataclass(frozen=True)
class Limits:
    """The size in bytes at which a file is full, and the number of days after which it is deleted."""

    largest_bytes: int = 64 << 20
    keep_days: int = 3653


_AT_A_SITE: Final = Consequences(
    of_damage="Nothing more is sent until the cause is known.",
    at_the_start="Nothing was sent.",
    before_the_step="Nothing more was sent.",
    after_a_step="This site may already have sent the data of this round. It sends nothing more until the disk works.",
)
_AT_THE_COORDINATOR: Final = Consequences(
    of_damage="The coordinator decides and sends nothing more until this is understood.",
    at_the_start="Nothing was decided or sent.",
    before_the_step="The coordinator stopped before the decision took effect. Nothing more was sent.",
    after_a_step="The coordinator may already have sent its newest decisions to sites. It makes no further decision "
    "until the disk works.",
)


class AuditLog:
    """One program's log. Opening the log verifies the current file. Several processes can write, one at a time."""

    def __init__(
        self,
        path: Path,
        *,
        site: str | None,
        now: Callable[[], datetime],
        identity_key: Ed25519PrivateKey | None = None,
        limits: Limits | None = None,
    ) -> None:
        """Open the log. `site` is None for the coordinator's log; `now` returns aware UTC times.

        Without the identity key no checkpoint is signed and no file is rotated.

        Raises:
            AuditError: the log was changed, or cannot be opened.
        """
        self.owner = COORDINATOR if site is None else owner_of_site(site)
        self._every = {"software": version("global-layers")} | ({} if site is None else {"site": site})
        self._consequences = _AT_THE_COORDINATOR if site is None else _AT_A_SITE
        self._path, self._now, self._identity_key, self._limits = path, now, identity_key, limits or Limits()
        self._position, self._size = LogPosition(), 0
        self._is_synced = True  # all records up to the position
        self.appended_bytes = 0  # by this process, since it opened the log
        self._recent: deque[int] = deque(maxlen=_MOST_GROWTH)
        self._newest_payment = -1  # the number of the newest record with such an event
        # The log's position after each of the newest records, and the record's leaf. Witnesses of all peers often
        # request these. They request older records only after a long absence.
        self._newest: deque[tuple[LogPosition, bytes]] = deque(maxlen=_MOST_NEWEST)
        self._bookmark = (0, 0, 0)
        with self._explained(self._consequences.at_the_start):
            make_folder(path.parent)
            self._file = self._open()
            with self._locked():
                self._begin_file()
                self._catch_up()

    def write(self, event: str, **facts: object) -> None:
        """Append one record to the audit log, and sync it to disk.

        Args:
            event: the act that will happen or has happened, in a few words with underscores.
            facts: JSON values; never data of a patient, never a secret.

        Raises:
            AuditError: the record could not be written. Then the announced act must not happen.
        """
        self.write_all([{"event": event} | facts])

    def write_all(self, records: Sequence[Mapping[str, object]], *, syncs: bool = True) -> None:
        """Append either all these records or no record. See `write`. Without `syncs`, the caller calls `sync` later."""
        time = self.time()
        with self._explained(self._consequences.before_the_step):
            self._write([{"time": time} | self._every | dict(facts) for facts in records], syncs=syncs)

    def write_after(self, event: str, **facts: object) -> None:
        """Append one record of a past event. The next record, checkpoint or `sync` also syncs it to disk.

        A killed process loses no such record. Only a computer that loses its power can lose the newest one. Do not use
        it for a record that allows an action.

        Raises:
            AuditError: it could not be written.
        """
        with self._explained():
            self._write([{"time": self.time()} | self._every | {"event": event} | facts], syncs=False)

    @property
    def position(self) -> LogPosition:
        """Return the position of the audit log after the last record that this process has read."""
        return self._position

    @property
    def generation(self) -> int:
        """Return the generation number of the audit log. It rises when a person restarts the log."""
        with self._explained():
            return generation_of(self._path)

    def sign_with(self, identity_key: Ed25519PrivateKey) -> None:
        """Start to sign checkpoints of this log and to rotate full files. The key may be newer than the log."""
        self._identity_key = identity_key

    @property
    def identity_key(self) -> Ed25519PrivateKey:
        """Return the key that signs this log's checkpoints. Raises ValueError if the log was opened without a key."""
        if self._identity_key is None:
            raise ValueError("a log that was opened without its identity key signs nothing")
        return self._identity_key

    def signed(self, generation: int, position: LogPosition) -> LogCheckpoint:
        """Return a checkpoint of this log, signed with its owner's identity key. Raises ValueError without the key."""
        return sign_checkpoint(self.owner, generation, position, self.time(), self.identity_key)

    def now(self) -> datetime:
        """Return the current time in UTC, with its time zone."""
        return self._now()

    def time(self) -> str:
        """Return the current time in the format of audit log records."""
        return self._now().isoformat(timespec="milliseconds")

    def has_grown(self, size: int, by: int) -> bool:
        """Return whether at least `by` records follow the first `size` records. Checkpoint records are not counted.

        One record of a payment from the privacy budget is enough.
        """
        with self._explained(), self._locked():
            self._catch_up()
            return self._newest_payment >= size or (len(self._recent) >= by and self._recent[-by] >= size)

    def position_at(self, size: int) -> LogPosition | None:
        """Return the log's position after `size` records. None if the log is shorter or their file was deleted."""
        if size == 0:
            return LogPosition()
        with self._explained(), self._locked():
            self._catch_up()
            if (place := self._place(size - 1)) is not None:
                return self._newest[place][0]
            record = next(self._from(size - 1), None) if size <= self._position.sequence else None
            return record.position if record and record.position.sequence == size else None

    def sync(self) -> None:
        """Sync all records to disk that are not synced yet. Raises AuditError if the disk does not store them."""
        with self._explained():
            self._sync()

    def leaves(self, start: int, most: int) -> list[bytes]:
        """Return the hashes (32 bytes each) of at most `most` synced records, from record number `start` on."""
        with self._explained(), self._locked():
            self._catch_up()
            self._sync()  # a checkpoint over them must not outlive them
            if (place := self._place(start)) is not None:
                return [leaf for _, leaf in islice(self._newest, place, place + most)]
            return [record.leaf for record in islice(self._from(start), most)]

    def records(self, *events: str) -> Iterator[dict[str, Any]]:  # Any: every type that JSON has
        """Yield the facts of every record of these events, oldest first, over all files.

        Each call checks all files, which takes seconds for a large log. So ask for several events at once.

        Raises:
            AuditError: the log was changed.
        """
        with self._explained(), self._locked():
            self._catch_up()
            found = [
                placed.record.facts
                for placed in checked_records(self._path, self._size)
                if placed.record.facts.get("event") in events
            ]
        yield from found

    def newest_records(self, word: str) -> Iterator[dict[str, Any]]:  # Any: every type that JSON has
        """Yield the facts of the newest records that contain a word, newest first. See log_files.newest_first."""
        with self._locked():
            yield from newest_first(self._path, word.encode())

    def earlier_records(self, *events: str) -> Iterator[dict[str, Any]]:  # Any: every type that JSON has
        """Yield the facts of every record of these events in the logs that a person set aside. Skip damaged records.

        Raises:
            AuditError: a file cannot be read.
        """
        with self._explained():
            found = [facts for facts in earlier_facts(self._path) if facts.get("event") in events]
        yield from found

    def all_records(self, *events: str) -> list[dict[str, Any]]:  # Any: every type that JSON has
        """Return the facts of every record of these events, oldest first, with those of the logs that were set aside.

        Raises:
            AuditError: the log was changed, or a file cannot be read.
        """
        return [*self.earlier_records(*events), *self.records(*events)]

    def lacks(self, generation: int, position: LogPosition) -> bool:
        """Return whether this log began with a restored backup whose log had not reached this earlier position.

        Raises:
            AuditError: a file cannot be read.
        """
        with self._explained():
            is_restored = RESTORED_FROM in began_with(self._path)
            return is_restored and not may_contain(self._path, generation, position)

    @property
    def is_continued(self) -> bool:
        """Return whether the oldest file of the log follows a file that was deleted because of its age."""
        with self._explained():
            files = [file for file in all_files(self._path) if file.stat().st_size]
            return bool(files) and start_of(first_line(files[0])).sequence > 0

    def close(self) -> None:
        """Sync the file of the audit log to disk, and close it."""
        try:
            self.sync()
        finally:
            os.close(self._file)

    def _write(self, records: Sequence[Mapping[str, object]], *, syncs: bool) -> None:
        """Append all these records, or none. They are synced now, or without `syncs` at the next writing or `sync`."""
        with self._locked():
            self._catch_up()
            if self._identity_key is not None and self._size > self._limits.largest_bytes:
                self._rotate()
            self._append(records, syncs=syncs)

    def _sync(self) -> None:
        if not self._is_synced:
            os.fdatasync(self._file)
            self._is_synced = True

    def _append(self, records: Sequence[Mapping[str, object]], *, syncs: bool = True) -> None:
        position, content, newest, was_synced = self._position, bytearray(), [], self._is_synced
        if self._size == 0 and position.sequence:
            records = [self._carried(), *records]
        for facts in records:
            position, leaf, line = append(position, facts, secrets.token_bytes(16))
            content += line
            newest.append((position, leaf))
        try:
            require_room(self._file, len(content), RECORDS_RESERVE_BYTES)
            if os.write(self._file, content) != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._is_synced = False
            if syncs:
                self._sync()
        except OSError:
            os.ftruncate(self._file, self._size)  # an incomplete record is no record
            self._is_synced = was_synced
            raise
        for number, facts in enumerate(records, start=self._position.sequence):
            self._count(number, facts)
        self._newest += newest
        self._position, self._size = position, self._size + len(content)
        self.appended_bytes += len(content)

    def _carried(self) -> dict[str, Any]:
        generation = generation_of(self._path)
        facts: dict[str, Any] = {"event": CONTINUED, "time": self.time(), "generation": generation}
        if self._identity_key is None:
            return facts
        return facts | {"checkpoint": checkpoint_facts(self.signed(generation, self._position))}

    def _rotate(self) -> None:
        self._sync()  # the checkpoint in the next file covers this one
        old, first = self._file, start_of(first_line(self._path)).sequence
        self._path.rename(full_name(self._path, first))
        self._file = self._open()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        os.close(old)
        self._size = 0
        self._begin_file()  # another process may have begun the new file
        self._catch_up()
        outdated = self._outdated()
        self._append([{"event": DELETED, "time": self.time(), "file": file.name} for file in outdated])
        for file in outdated:
            file.unlink()

    def _outdated(self) -> list[Path]:
        """Return the full files that are older than the retention period, without the newest one."""
        oldest = (self._now() - timedelta(days=self._limits.keep_days)).timestamp()
        return [file for file in full_files(self._path)[:-1] if file.stat().st_mtime < oldest]

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        with opened_folder(self._path.parent) as folder:
            file = os.open(self._path.name, flags, 0o600, dir_fd=folder)
            if not os.fstat(file).st_size:
                give_to_owner(file, folder)
            os.fsync(folder)
        return file

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            self._follow_rotation()
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _follow_rotation(self) -> None:
        """Open the current file if another process has rotated the log."""
        while not self._is_present():
            if self._size:
                self._catch_up()  # up to the end of the full file
            ours = os.fstat(self._file)
            if self._size and not any(os.path.samestat(ours, full.stat()) for full in full_files(self._path)):
                raise BrokenFile(self._path.name, 1, "the file was removed or replaced")
            self._sync()
            present = self._open()
            fcntl.flock(present, fcntl.LOCK_EX)
            os.close(self._file)
            self._file, self._size = present, 0
            self._begin_file()

    def _is_present(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._file), self._path.stat())
        except FileNotFoundError:
            return False

    def _begin_file(self) -> None:
        """Set the log's position to the one before the first line of the current file."""
        self._set_torn_tail_aside()
        full = full_files(self._path)
        before = position_after(full[-1]) if full else None
        self._position = start_of_file(self._path, self._path, before)
        if self._newest and self._newest[-1][0] != self._position:
            self._newest.clear()

    def _catch_up(self) -> None:
        """Verify the records that other processes have written since the last call, such as a person's approval."""
        size = os.fstat(self._file).st_size
        if size == self._size:
            return
        if size < self._size:
            raise BrokenFile(self._path.name, 1, "the file has become shorter")
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(self._size)
            try:
                for record in checked(file, self._position):
                    self._count(record.position.sequence - 1, record.facts)
                    self._position = record.position
                    self._newest.append((record.position, record.leaf))
            except BrokenChain as broken:
                before = self._lines_before(file)
                raise BrokenFile(self._path.name, before + broken.line, broken.reason) from broken
        self._size, self._is_synced = size, False  # the other process may not have synced them yet

    def _lines_before(self, file: BinaryIO) -> int:
        """Return the number of lines that this process has already read."""
        file.seek(0)
        return file.read(self._size).count(b"\n")

    def _count(self, number: int, facts: Mapping[str, Any]) -> None:
        """Store the number of a record, unless it is about a checkpoint."""
        if facts.get("event") not in _OF_HEADS:
            self._recent.append(number)
        if facts.get("event") in _CONFIRMED_AT_ONCE:
            self._newest_payment = number

    def _place(self, number: int) -> int | None:
        """Return the place of a record among the newest ones, or None if it is older or does not exist."""
        place = number - self._position.sequence + len(self._newest)
        return place if 0 <= place < len(self._newest) else None

    def _from(self, start: int) -> Iterator[Record]:
        """Yield every record from number `start` on. It continues where the last call ended, if possible."""
        files = [file for file in all_files(self._path) if file.stat().st_size]
        starts = [start_of(first_line(file)).sequence for file in files]
        skipped = max((index for index, first in enumerate(starts) if first <= start), default=0)
        for file in files[skipped:]:
            yield from self._in_file(file, start)

    def _in_file(self, file: Path, start: int) -> Iterator[Record]:
        with file.open("rb") as opened:
            identity, number, offset = self._bookmark
            if identity == os.fstat(opened.fileno()).st_ino and number <= start:
                opened.seek(offset)
            offset = opened.tell()
            for line in opened:
                before = start_of(line)
                if before.sequence >= start:
                    (record,) = checked([line], before)
                    self._bookmark = (os.fstat(opened.fileno()).st_ino, before.sequence, offset)
                    yield record
                offset += len(line)

    def _set_torn_tail_aside(self) -> None:
        """Move an incomplete last line, which a crash can leave, to a separate file."""
        tail = last_line(self._path)
        if tail and not tail.endswith(b"\n"):
            self._keep_torn(tail)
            os.ftruncate(self._file, os.fstat(self._file).st_size - len(tail))

    def _keep_torn(self, tail: bytes) -> None:
        stem = f"{self._path.name}.torn-{self._now():%Y%m%dT%H%M%S}"
        for name in (stem, *(f"{stem}-{number}" for number in range(2, 1000))):
            with suppress(FileExistsError):
                with os.fdopen(new_file(self._path.with_name(name)), "wb") as file:
                    file.write(tail)
                    file.flush()
                    os.fsync(file.fileno())
                return
        raise OSError(errno.EEXIST, os.strerror(errno.EEXIST))

    @contextmanager
    def _explained(self, consequence: str | None = None) -> Iterator[None]:
        """Raise AuditError if the log is damaged or its disk fails. Without a consequence, use `after_a_step`."""
        try:
            yield
        except BrokenFile as broken:
            raise broken_log(str(broken), self._consequences.of_damage) from broken
        except BrokenChain as broken:
            raise broken_log(f"{self._path.name}, {broken}", self._consequences.of_damage) from broken
        except OSError as cause:
            raise AuditError(
                what=f"The audit log cannot be written: {cause.strerror}.",
                consequence=consequence or self._consequences.after_a_step,
                remedy="Free space on the disk of the state directory, or correct its permissions, and start again.",
            ) from cause


def broken_log(finding: str, consequence: str) -> AuditError:
    """Return the error for an audit log that was changed or damaged."""
    return AuditError(
        what=f"The audit log is damaged or was changed: {finding}.",
        consequence=consequence,
        remedy="Do not change the files of the audit log. Call the security officer, who can start a new log with the "
        "command `audit restart`.",
    )
