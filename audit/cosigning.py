"""Two audit logs on one stream: each side owns one, and witnesses the other's.

The same on both sides. A side first says what it keeps of the other's log; the other shows the leaves since then
with a signed head; the witness links them, remembers, records and countersigns; and the countersignature becomes
the owner's next record. One head is under way at a time. The rules:

* what a witness signs is on its disk, remembered and recorded, before the signature leaves;
* a witness that has forgotten is shown again what it asks for; an owner whose log does not stand where it once
  signed it to be stops;
* a member with a new identity key, after its host died with the old one, begins a new log; what was kept of the old
  one is put aside, on record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit import checkpoint_memory
from audit.audit_log import COUNTERSIGNED, IDENTITY_REPLACED, WITNESSED, LogFile
from protos.wire.log_chain import Head, relink
from protos.wire.log_checkpoints import (
    MOST_LEAVES,
    HeadRefused,
    SignedHead,
    check_countersignature,
    check_head,
    countersign,
    countersignature_facts,
    follow,
    head_facts,
    sign_head,
)
from protos.wire.upkeep_messages import LogCountersignature, LogGrowth, LogMessage, LogStanding

GROWTH: Final = 20  # records after which a head is shown


class LogParty:
    """One program as the owner of its log and as a witness of others'."""

    def __init__(
        self,
        *,
        owner: str,
        log: LogFile,
        folder: Path,
        key: Ed25519PrivateKey,
        now: Callable[[], str],
        write: Callable[[str, Mapping[str, object]], None],
    ) -> None:
        """`folder` holds what is remembered, `write` appends a record of the own log, `now` is a time as text."""
        self.owner, self.log, self.folder, self._key = owner, log, folder, key
        self._now, self.write = now, write
        self.public_key = key.public_key().public_bytes_raw()

    def signed(self, head: Head) -> SignedHead:
        """A head of the own log, signed."""
        return sign_head(self.owner, self.log.epoch, head, self._now(), self._key)

    def kept_of(self, owner: str, key: bytes) -> SignedHead | None:
        """The last head of another's log under this identity key (raw, 32 bytes) that was countersigned here.

        Raises:
            HeadRefused: what was kept cannot be read.
        """
        kept = checkpoint_memory.kept_head(self.folder, owner)
        if kept is not None and kept.key != key:
            # Nobody but the register says which key is a member's, and it learns of another one only from people.
            facts = {"owner": owner, "size": kept.size, "key": key.hex(), "former": kept.key.hex()}
            self.write(IDENTITY_REPLACED, facts)
            checkpoint_memory.put_aside(self.folder, kept)
            kept = None
        # A key that comes back is held to what was confirmed under it before.
        return kept or checkpoint_memory.former_head(self.folder, owner, key)

    def witness(self, grown: LogGrowth, owner: str, key: bytes) -> LogCountersignature:
        """Link another's log, remember and record where it stands, and countersign it.

        Raises:
            HeadRefused: it was rolled back, has parted from what was seen, or is not its owner's.
        """
        try:
            check_head(grown.head, owner, key)
            follow(self.kept_of(owner, key), grown.head, grown.start, grown.leaves)
        except HeadRefused as refused:
            self.write("log_refused", {"owner": owner, "size": grown.head.size, "reason": str(refused)})
            raise
        self.write(WITNESSED, {key: value for key, value in head_facts(grown.head).items() if key != "time"})
        checkpoint_memory.keep_head(self.folder, grown.head)
        return LogCountersignature(grown.head.size, countersign(grown.head, self.owner, self._now(), self._key))


class LogSession:
    """Both logs on one stream, until it ends."""

    def __init__(self, party: LogParty, peer: str, peer_key: bytes) -> None:
        """`peer` is whose stream it is, as an owner of a log; `peer_key` its identity key, raw, 32 bytes."""
        self._party, self._peer, self._peer_key = party, peer, peer_key
        self._confirmed: int | None = None  # records of the own log that the peer has linked; None: not yet told
        self._under_way: SignedHead | None = None

    def standing(self) -> LogStanding:
        """What this side keeps of the peer's log; the first thing that it says.

        Raises:
            HeadRefused: what was kept cannot be read.
        """
        return LogStanding(self._party.public_key, self._party.kept_of(self._peer, self._peer_key))

    def heard(self, message: LogMessage) -> list[LogMessage]:
        """Take in a message; what is to be answered.

        Raises:
            HeadRefused: one of the two logs is not what it was; the reason says which.
            AuditError: the own log cannot be read or written.
        """
        match message:
            case LogStanding():
                self._stand(message)
                return self.due(at_least=1)
            case LogGrowth():
                return [self._party.witness(message, self._peer, self._peer_key)]
            case LogCountersignature():
                self._take(message)
                return self.due()

    def due(self, at_least: int = GROWTH) -> list[LogMessage]:
        """The next growth to be shown, where the log has grown by so many records that are not about heads."""
        start = self._confirmed
        if start is None or self._under_way is not None or not self._party.log.has_grown(start, at_least):
            return []
        before = self._party.log.head_at(start)
        leaves = tuple(self._party.log.leaves(start, MOST_LEAVES))
        if before is None or not leaves:
            return []
        self._under_way = self._party.signed(relink(before, leaves))
        return [LogGrowth(self._under_way, start, leaves)]

    def _stand(self, standing: LogStanding) -> None:
        if standing.key != self._peer_key:
            raise HeadRefused("the other side shows another identity key than before")
        kept = standing.head
        if kept is None or kept.epoch < self._party.log.epoch:
            self._confirmed = 0
            return
        try:
            check_head(kept, self._party.owner, self._party.public_key)
        except HeadRefused as refused:
            raise HeadRefused(f"the other side keeps a head of this log that is not this program's: {refused}") from (
                refused
            )
        if kept.epoch > self._party.log.epoch or self._party.log.head_at(kept.size) != kept.head:
            raise HeadRefused(f"this program's own log does not stand where it was signed to be at record {kept.size}")
        self._confirmed = kept.size

    def _take(self, message: LogCountersignature) -> None:
        signed = self._under_way
        if signed is None or message.size != signed.size:
            raise HeadRefused("a countersignature that was not asked for")
        check_countersignature(signed, message.given, self._peer, self._peer_key)
        facts = {"head": head_facts(signed), "countersignature": countersignature_facts(message.given)}
        self._party.write(COUNTERSIGNED, facts)
        checkpoint_memory.keep_own_head(self._party.folder, signed)
        self._confirmed, self._under_way = signed.size, None
