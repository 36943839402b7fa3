"""Writes a program's own audit log. Each record is synced before the recorded act happens.

audit_log.py writes the file. This module adds the facts that every record has: the time, the software and, at a site,
the site's name. If the disk is full, nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.audit_log import AuditError as AuditError  # raised here, and caught by the writer
from audit.audit_log import Consequences, Limits, LogFile
from protos.wire.log_chain import LogPosition
from protos.wire.log_checkpoints import COORDINATOR, LogCheckpoint, owner_of_site, sign_checkpoint

_AT_A_SITE: Final = Consequences(
    of_damage="Nothing more is sent until the cause is known.", of_no_room="Nothing left this site."
)
_AT_THE_COORDINATOR: Final = Consequences(
    of_damage="The coordinator decides and sends nothing more until this is understood.",
    of_no_room="The coordinator stopped before the decision took effect. Nothing more was sent.",
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
        self._now, self._identity_key = now, identity_key
        self._every = {"software": version("global-layers")} | ({} if site is None else {"site": site})
        words = _AT_THE_COORDINATOR if site is None else _AT_A_SITE
        sign = self.signed if identity_key else None
        self.file = LogFile(path, now=now, consequences=words, sign=sign, limits=limits)

    def write(self, event: str, **facts: object) -> None:
        """Append one record and sync it.

        Args:
            event: the act that will happen or has happened, in a few words with underscores.
            facts: JSON values; never data of a patient, never a secret.

        Raises:
            AuditError: the record could not be written. Then the announced act must not happen.
        """
        self.write_all([{"event": event} | facts])

    def write_all(self, records: Sequence[Mapping[str, object]]) -> None:
        """Append all these records, each with its event, or none, and sync them. See `write`."""
        time = self.time()
        self.file.write([{"time": time} | self._every | dict(facts) for facts in records])

    def write_after(self, event: str, **facts: object) -> None:
        """Append one record of a past event. The record is synced with the next record, checkpoint or `sync`.

        A killed process loses no such record. Only a computer that loses its power can lose the newest one. Do not use
        it for a record that allows an action.

        Raises:
            AuditError: it could not be written.
        """
        self.file.write([{"time": self.time()} | self._every | {"event": event} | facts], syncs=False)

    def sync(self) -> None:
        """Sync what `write_after` has written. Raises AuditError if the disk does not take it."""
        self.file.sync()

    def records(self, event: str) -> Iterator[dict[str, Any]]:  # Any: every type that JSON has
        """Yield the facts of every record of one event, oldest first. Raises AuditError if the log was changed."""
        return self.file.records(event)

    def earlier_records(self, event: str) -> Iterator[dict[str, Any]]:  # Any: every type that JSON has
        """Yield the facts of every record of one event in logs that a person restarted. See LogFile."""
        return self.file.earlier_records(event)

    @property
    def is_continued(self) -> bool:
        """Return whether the oldest records were deleted by age."""
        return self.file.is_continued

    def sign_with(self, identity_key: Ed25519PrivateKey) -> None:
        """Start to sign checkpoints and to rotate full files. The key may be newer than the log."""
        self._identity_key = identity_key
        self.file.sign_with(self.signed)

    @property
    def identity_key(self) -> Ed25519PrivateKey:
        """Return the key that signs this log's checkpoints. Raises ValueError if the log was opened without it."""
        if self._identity_key is None:
            raise ValueError("a log that was opened without its identity key signs nothing")
        return self._identity_key

    def signed(self, generation: int, position: LogPosition) -> LogCheckpoint:
        """Return a checkpoint of this log, signed with its owner's identity key. Raises ValueError without the key."""
        return sign_checkpoint(self.owner, generation, position, self.time(), self.identity_key)

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        return self._now()

    def time(self) -> str:
        """Return the time in the format of records."""
        return self._now().isoformat(timespec="milliseconds")

    def close(self) -> None:
        """Close the file."""
        self.file.close()
