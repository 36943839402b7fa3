"""Cosigns audit logs over one connection: each program writes its own log and cosigns the other program's log.

Both sides run this code. The witness first sends its stored checkpoint of the owner's log. The owner sends the leaves
since then and a signed checkpoint. The witness checks that they follow, stores and records the checkpoint, and cosigns
it. The owner records the cosignature. Only one checkpoint is exchanged at a time. The rules:

* a witness stores and records a checkpoint on its disk before it sends the signature;
* each member can cause a limited number of bytes of records each day. Above the limit its next checkpoint waits, and so
  does the checkpoint of the own log;
* a witness that lost its checkpoint receives the leaves that it requests. An owner stops if its log differs from a
  checkpoint that it signed;
* a member that lost its computer with its identity key begins a new log with a new key. The witness stores the
  checkpoint of the old log under another name, and records that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from audit import checkpoint_memory
from audit.own_log import COSIGNED, IDENTITY_REPLACED, WITNESSED, AuditLog
from audit.recording_budget import RecordingBudget
from audit.rolled_back import confirmed_records
from protos.wire.log_chain import LogPosition, relink
from protos.wire.log_checkpoints import (
    MOST_LEAVES,
    CheckpointRefused,
    LogCheckpoint,
    check_checkpoint,
    check_cosignature,
    checkpoint_facts,
    cosign,
    cosignature_facts,
    follow,
)
from protos.wire.messages import MalformedMessage
from protos.wire.upkeep_messages import LogCosignature, LogGrowth, LogMessage, LogStanding

GROWTH: Final = 20  # number of records after which a checkpoint is sent
_FAR_BEHIND: Final = 64  # number of records after which the next checkpoint follows immediately


class LogParty:
    """One program as the owner of its log and as the witness of other logs."""

    def __init__(self, own: AuditLog, folder: Path, spent: Callable[[str], None] = lambda _: None) -> None:
        """Start with an opened log and the folder of stored checkpoints.

        `own` was opened with its identity key. `spent` receives the owner of another log whose budget is used up, at
        most once a day.
        """
        self.own, self.owner, self.folder = own, own.owner, folder
        self.budget = RecordingBudget(folder, own.now, spent)
        self.public_key = own.identity_key.public_key().public_bytes_raw()

    def signed(self, position: LogPosition) -> LogCheckpoint:
        """Return a signed checkpoint of this program's audit log."""
        return self.own.signed(self.own.generation, position)

    def kept_of(self, owner: str, key: bytes) -> LogCheckpoint | None:
        """Return the last checkpoint of another log, signed with this key (32 raw bytes), that this program cosigned.

        Raises:
            CheckpointRefused: the stored checkpoint cannot be read.
        """
        kept = checkpoint_memory.kept_checkpoint(self.folder, owner)
        if kept is not None and kept.key != key:
            # Only the register has the key of each member, and it learns of another one only from people.
            former = kept.key.hex()
            self.own.write(IDENTITY_REPLACED, owner=owner, size=kept.size, key=key.hex(), former=former)
            checkpoint_memory.put_aside(self.folder, kept)
            kept = None
        # If a former key is used again, its earlier checkpoints apply.
        return kept or checkpoint_memory.former_checkpoint(self.folder, owner, key)

    def check(self, grown: LogGrowth, owner: str, key: bytes) -> None:
        """Check that another program's log continues after its last checkpoint. Record a failure in this audit log.

        Raises:
            CheckpointRefused: the log was rolled back, differs from an earlier checkpoint, or is not its owner's.
        """
        try:
            check_checkpoint(grown.checkpoint, owner, key)
            follow(self.kept_of(owner, key), grown.checkpoint, grown.start, grown.leaves)
        except CheckpointRefused as refused:
            self.own.write("log_refused", owner=owner, size=grown.checkpoint.size, reason=str(refused))
            raise

    def witness(self, grown: LogGrowth, owner: str, key: bytes) -> LogCosignature:
        """Check that another program's log continues, record its position, and cosign it. Raises CheckpointRefused."""
        self.check(grown, owner, key)
        seen = {key: value for key, value in checkpoint_facts(grown.checkpoint).items() if key != "time"}
        with self.charged(owner):
            self.own.write(WITNESSED, **seen)
        checkpoint_memory.keep_checkpoint(self.folder, grown.checkpoint)
        return LogCosignature(
            grown.checkpoint.size, cosign(grown.checkpoint, self.owner, self.own.time(), self.own.identity_key)
        )

    @contextmanager
    def charged(self, peer: str) -> Iterator[None]:
        """Subtract the bytes of all records inside the block from the limit of the program that caused them."""
        before = self.own.appended_bytes
        try:
            yield
        finally:
            self.budget.spend(peer, self.own.appended_bytes - before)


class LogSession:
    """Cosigns the logs of both programs on one stream, until the stream ends."""

    def __init__(self, party: LogParty, peer: str, peer_key: bytes) -> None:
        """Start the session. `peer` is the owner of the other log; `peer_key` is its identity key, raw, 32 bytes."""
        self._party, self.peer, self._peer_key = party, peer, peer_key
        self._confirmed: int | None = None  # records of the own log that the peer has linked; None before its report
        self._under_way: LogCheckpoint | None = None
        self._waiting: LogGrowth | None = None  # checked growth of the peer's log; it waits for the peer's budget

    def standing(self) -> LogStanding:
        """Return the first message that this program sends: the stored checkpoint of the other program's log.

        Raises:
            CheckpointRefused: the stored checkpoint cannot be read.
        """
        return LogStanding(self._party.public_key, self._party.kept_of(self.peer, self._peer_key))

    def heard(self, message: LogMessage) -> list[LogMessage]:
        """Handle a message and return the replies.

        Raises:
            CheckpointRefused: one of the two logs was changed; the reason shows which.
            MalformedMessage: the message arrived at a wrong time.
            AuditError: this program's own log cannot be read or written.
        """
        match message:
            case LogStanding():
                if self._confirmed is not None:  # each such message could request the whole log again
                    raise MalformedMessage("the position of a log, twice")
                self._stand(message)
                return self.due(at_least=1)
            case LogGrowth():
                if self._waiting is not None:
                    raise MalformedMessage("a checkpoint of a log while another one waits")
                if self._party.budget.allows(self.peer):
                    return [self._party.witness(message, self.peer, self._peer_key)]
                self._party.check(message, self.peer, self._peer_key)  # a false checkpoint is refused at once
                self._waiting = message
                return []
            case LogCosignature():
                self._take(message)
                # fewer records wait for the next regular call, because both sides sync each checkpoint
                return self.due(_FAR_BEHIND)

    def due(self, at_least: int = GROWTH) -> list[LogMessage]:
        """Return the messages to send after this many new records in the log. Checkpoint records are not counted.

        Raises:
            CheckpointRefused: the peer's log differs from the log that the peer has sent on another stream in the
                meantime.
            AuditError: the own log cannot be read or written.
        """
        return [*self._cosigned(), *self._grown(at_least)]

    def _cosigned(self) -> list[LogMessage]:
        """Return the cosignature of a waiting checkpoint, if the peer's budget allows its record."""
        if self._waiting is None or not self._party.budget.allows(self.peer):
            return []
        grown, self._waiting = self._waiting, None
        return [self._party.witness(grown, self.peer, self._peer_key)]

    def _grown(self, at_least: int) -> list[LogMessage]:
        start = self._confirmed
        if start is None or self._under_way is not None or not self._party.own.has_grown(start, at_least):
            return []
        if not self._party.budget.allows(self.peer):  # the cosignature will be a record too
            return []
        before = self._party.own.position_at(start)
        leaves = tuple(self._party.own.leaves(start, MOST_LEAVES))
        if before is None or not leaves:
            return []
        self._under_way = self._party.signed(relink(before, leaves))
        return [LogGrowth(self._under_way, start, leaves)]

    def _stand(self, standing: LogStanding) -> None:
        if standing.key != self._peer_key:
            raise CheckpointRefused("the other program presented another identity key than before")
        self._confirmed = confirmed_records(self._party.own, standing.checkpoint)

    def _take(self, message: LogCosignature) -> None:
        signed = self._under_way
        if signed is None or message.size != signed.size:
            raise CheckpointRefused("a cosignature that this program did not request")
        check_cosignature(signed, message.given, self.peer, self._peer_key)
        cosigned = {"checkpoint": checkpoint_facts(signed), "cosignature": cosignature_facts(message.given)}
        with self._party.charged(self.peer):
            self._party.own.write(COSIGNED, **cosigned)
        checkpoint_memory.keep_own_checkpoint(self._party.folder, signed)
        self._confirmed, self._under_way = signed.size, None
