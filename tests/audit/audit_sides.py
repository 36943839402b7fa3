"""Two programs with logs, each the witness of the other's, in folders of a test."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.cosigning import LogParty, LogSession
from audit.own_log import AuditLog, Limits
from audit.reading.log_commands import Desk
from audit.reading.log_verification import KnownKeys
from protos.wire.log_checkpoints import COORDINATOR
from protos.wire.upkeep_messages import LogMessage

SITE = "site/berlin"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
TIME = NOW.isoformat()
KEYS = {SITE: Ed25519PrivateKey.generate(), COORDINATOR: Ed25519PrivateKey.generate()}
PUBLIC = {owner: key.public_key().public_bytes_raw() for owner, key in KEYS.items()}


class Side:
    """One program with its log and its memory, in a folder."""

    def __init__(self, folder: Path, owner: str, limits: Limits | None = None) -> None:
        self.path, self.owner = folder / "audit.log", owner
        site = None if owner == COORDINATOR else owner.removeprefix("site/")
        self.own = AuditLog(self.path, site=site, now=lambda: NOW, identity_key=KEYS[owner], limits=limits)
        self.log, self.party = self.own, LogParty(self.own, folder / "witness")

    def write(self, event: str, **facts: object) -> None:
        """Append a record."""
        self.own.write(event, **facts)

    def work(self, count: int = 5) -> None:
        """Do something that is recorded."""
        for number in range(count):
            self.write("contribution_released", round=number)


def meet(one: Side, other: Side) -> None:
    """Two programs on one stream, until neither sends any more."""
    sessions = (
        LogSession(one.party, other.owner, PUBLIC[other.owner]),
        LogSession(other.party, one.owner, PUBLIC[one.owner]),
    )
    said: list[tuple[int, LogMessage]] = [(0, sessions[0].standing()), (1, sessions[1].standing())]
    while said:
        speaker, message = said.pop(0)
        said += [(1 - speaker, answer) for answer in sessions[1 - speaker].heard(message)]
        if not said:
            said += [(side, answer) for side in (0, 1) for answer in sessions[side].due(at_least=1)]


def desk(side: Side) -> Desk:
    """A person outside who verifies a log with public keys only."""
    return Desk(side.path, side.owner, KnownKeys(PUBLIC))
