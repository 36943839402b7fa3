"""The site's audit log: each transfer is written and synced before it happens.

The file is that of audit/audit_log.py; what every record of a site says is added here. If the disk is
full, nothing leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.audit_log import AuditError as AuditError  # raised here, and caught by who writes here
from audit.audit_log import Consequences, Limits, LogFile
from audit.cosigning import LogParty
from protos.wire.log_chain import LogPosition
from protos.wire.log_checkpoints import LogCheckpoint, owner_of_site, sign_checkpoint

CONSEQUENCES: Final = Consequences(
    of_damage="Nothing more is sent until the cause is known.", of_no_room="Nothing left this site."
)


class AuditLog:
    """One site's log; opening it verifies the present file. Several processes may write in turn."""

    def __init__(
        self,
        path: Path,
        *,
        site: str,
        now: Callable[[], datetime],
        identity_key: Ed25519PrivateKey | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`now` gives aware UTC times; without the identity key no checkpoint is signed and no file put aside.

        Raises:
            AuditError: the log was changed, or cannot be opened.
        """
        self._site, self._now, self._identity_key = site, now, identity_key
        self._software = version("global-layers")
        sign = self.signed if identity_key else None
        self.file = LogFile(path, now=now, consequences=CONSEQUENCES, sign=sign, limits=limits)

    def write(self, event: str, **facts: object) -> None:
        """Append one record and sync it.

        Args:
            event: what is about to happen, or has happened, in a few words with underscores.
            facts: JSON values; never a patient's, never a secret's.

        Raises:
            AuditError: it could not be written; the act that it announces must not happen.
        """
        every = {"event": event, "site": self._site, "time": self.time(), "software": self._software}
        self.file.write([every | facts])

    def records(self, event: str) -> Iterator[dict[str, Any]]:  # Any: whatever JSON holds
        """Yield the facts of every record of one kind, oldest first.

        Raises:
            AuditError: the log was changed.
        """
        return self.file.records(event)

    def sign_with(self, identity_key: Ed25519PrivateKey) -> None:
        """Start to sign checkpoints and to rotate full files. The key may be newer than the log."""
        self._identity_key = identity_key
        self.file.sign_with(self.signed)

    def signed(self, generation: int, position: LogPosition) -> LogCheckpoint:
        """Return a checkpoint of this log, signed with the site's identity key.

        Raises:
            ValueError: the log was opened without it.
        """
        if self._identity_key is None:
            raise ValueError("a log that was opened without its identity key signs nothing")
        return sign_checkpoint(owner_of_site(self._site), generation, position, self.time(), self._identity_key)

    def time(self) -> str:
        """Return the time in the format of records."""
        return self._now().isoformat(timespec="milliseconds")

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def party_of(audit: AuditLog, *, site: str, key: Ed25519PrivateKey, folder: Path) -> LogParty:
    """Return the site as owner of its log and witness of the coordinator's. `folder` stores its checkpoints."""
    return LogParty(
        owner=owner_of_site(site),
        log=audit.file,
        folder=folder,
        key=key,
        now=audit.time,
        write=lambda event, facts: audit.write(event, **facts),
    )
