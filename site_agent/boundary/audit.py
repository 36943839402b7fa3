"""The audit log on disk: what crosses the site's boundary is written and synced before it does.

Append-only JSON lines, chained by hash (protos/audit_chain.py), mode 0600. Never a value, a secret or
a path that may name a patient. If the disk is full, nothing leaves.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from protos.audit_chain import BrokenChain, Head, append, verify
from protos.errors import OperatorError


class AuditError(OperatorError):
    """The log cannot be trusted or written; nothing may leave."""


class AuditLog:
    """One site's log; opening it verifies the whole chain. Several processes may write in turn."""

    def __init__(self, path: Path, *, site: str, now: Callable[[], datetime]) -> None:
        """`now` gives aware UTC times.

        Raises:
            AuditError: the log was changed, or cannot be opened.
        """
        self._path, self._site, self._now = path, site, now
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as cause:
            raise _cannot_write(cause) from cause
        self._head, self._size = Head(), 0
        try:
            with self._locked():
                self._set_torn_tail_aside()
                self._catch_up()
        except OSError as cause:
            raise _cannot_write(cause) from cause

    def write(self, event: str, **facts: object) -> None:
        """Append one record and sync it.

        Args:
            event: what is about to happen, or has happened, in a few words with underscores.
            facts: JSON values; never a patient's, never a secret's.

        Raises:
            AuditError: it could not be written; the act that it announces must not happen.
        """
        time = self._now().isoformat(timespec="milliseconds")
        facts = {"event": event, "site": self._site, "time": time} | facts
        with self._locked():
            self._catch_up()
            head, line = append(self._head, facts, secrets.token_bytes(16))
            try:
                if os.write(self._file, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fdatasync(self._file)
            except OSError as cause:
                os.ftruncate(self._file, self._size)  # a part of a record is no record
                raise _cannot_write(cause) from cause
            self._head, self._size = head, self._size + len(line)

    def records(self, event: str) -> Iterator[dict[str, Any]]:  # Any: whatever JSON holds
        """The facts of every record of one kind, oldest first.

        Raises:
            AuditError: the log was changed.
        """
        with self._locked():
            self._catch_up()
        with self._path.open("rb") as file:
            for line in file:
                facts = json.loads(line)["facts"]
                if facts["event"] == event:
                    yield facts

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def _catch_up(self) -> None:
        """Verify what was written since this process last looked: an approval, say, by another one."""
        size = os.fstat(self._file).st_size
        if size == self._size:
            return
        if size < self._size:
            raise _broken(self._path, "it has become shorter")
        with self._path.open("rb") as file:
            file.seek(self._size)
            self._head, self._size = _verified(self._path, file, self._head), size

    def _set_torn_tail_aside(self) -> None:
        """A crash may leave a last line without its end; it is kept beside the log, not in it."""
        content = self._path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._keep_torn(content[whole:])
            os.ftruncate(self._file, whole)

    def _keep_torn(self, tail: bytes) -> None:
        stem = f"{self._path.name}.torn-{self._now():%Y%m%dT%H%M%S}"
        for name in (stem, *(f"{stem}-{number}" for number in range(2, 1000))):
            with suppress(FileExistsError):
                torn = os.open(self._path.with_name(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                with os.fdopen(torn, "wb") as file:
                    file.write(tail)
                    file.flush()
                    os.fsync(file.fileno())
                return
        raise _cannot_write(OSError(errno.EEXIST, os.strerror(errno.EEXIST)))


def verify_log(path: Path) -> Head:
    """Where a log stands, after checking each of its lines.

    Raises:
        AuditError: a line was changed, taken out, moved or torn; it is named.
    """
    try:
        with path.open("rb") as file:
            return _verified(path, file, Head())
    except FileNotFoundError:
        return Head()
    except OSError as cause:
        raise _cannot_write(cause) from cause


def _verified(path: Path, lines: Iterable[bytes], head: Head) -> Head:
    try:
        return verify(lines, head)
    except BrokenChain as broken:
        raise _broken(path, str(broken)) from broken


def _broken(path: Path, finding: str) -> AuditError:
    return AuditError(
        what=f"The audit log {path.name} is not what was written: {finding}.",
        consequence="Nothing more leaves this site until this is understood.",
        remedy="Keep the file as it is and call the security officer.",
    )


def _cannot_write(cause: OSError) -> AuditError:
    return AuditError(
        what=f"The audit log cannot be written: {cause.strerror}.",
        consequence="Nothing left this site.",
        remedy="Make room on the disk that holds the state directory, or mend its permissions, and start again.",
    )
