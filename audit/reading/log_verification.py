"""Verifies a whole audit log: its chain, its signed checkpoints, and their witnesses. The check only reads files.

The chain alone detects a changed, lost or exchanged line. Checkpoints of another side detect a cut end or a log that
was rewritten from its beginning. These are the cosignatures in the log, which need the witness's key, and the
checkpoints that the witness stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from audit.log_files import (
    CONTINUED,
    BrokenFile,
    Placed,
    all_files,
    checked_records,
    complete_bytes,
    generation_in,
)
from audit.own_log import COSIGNED, IDENTITY_REPLACED, AuditError, broken_log
from protos.errors import ConfigurationError, OperatorError
from protos.wire.log_chain import LogPosition
from protos.wire.log_checkpoints import (
    CheckpointRefused,
    LogCheckpoint,
    check_checkpoint,
    check_cosignature,
    checkpoint_from_facts,
    cosignature_from_facts,
)

_HASH_BYTES: Final = 32
_NOT_THIS_LOGS: Final = "the checkpoint that it names is not this log's"


# Public identity keys, raw, by owner (`coordinator`, `site/NAME`). Signatures of other owners are not checked.
KnownKeys: TypeAlias = dict[str, bytes]


@dataclass(frozen=True)
class Verification:
    """The result of verifying an unbroken log.

    Attributes:
        generation: see LogCheckpoint.
        first: the number of the first record in the files; more than 0 if old files were deleted.
        cosigned: the number of records under the newest cosigned checkpoint in the log.
        witnesses: everyone who has cosigned, each once.
        unchecked: owners of signatures in the log whose keys were not given. An owner that replaced its identity key
            needs its former key too.
        kept_checkpoints: the number of compared checkpoints that were stored elsewhere.
    """

    position: LogPosition
    generation: int
    first: int
    files: int
    cosigned: int
    witnesses: tuple[str, ...]
    unchecked: tuple[str, ...]
    kept_checkpoints: int


def fault_of(path: Path) -> OperatorError | None:
    """Return the error that the files of an audit log were changed or damaged, or None if they are whole. Only reads.

    An incomplete last line is no fault, because a program that was killed leaves one.
    """
    try:
        for _ in checked_records(path, complete_bytes(path) if path.exists() else None):
            pass
    except BrokenFile as broken:
        return broken_log(str(broken), "Nothing was changed.")
    except OSError as cause:
        return AuditError(
            what=f"The audit log cannot be read: {cause.strerror}.",
            consequence="Nothing was changed.",
            remedy="Run this command as root, or make the program's user account the owner of the file.",
        )
    return None


class _Pass:
    """Reads a log one time: stores the hash after each record, and checks the signed checkpoints."""

    def __init__(self, owner: str, keys: KnownKeys) -> None:
        self._owner, self._keys = owner, keys
        self._hashes = bytearray()
        self.first, self.generation, self.cosigned = -1, 1, 0
        self.witnesses: set[str] = set()
        self.unchecked: set[str] = set()
        self._former: dict[tuple[str, str], Placed] = {}  # by witness and key: its first signature

    def take(self, placed: Placed) -> None:
        """Check the next record of the log."""
        record = placed.record
        if self.first < 0:
            self.first = record.before.sequence
            self._hashes += bytes.fromhex(record.before.hash)
        if placed.line == 1:
            self.generation = generation_in(record.facts)
        try:
            if record.facts.get("event") == COSIGNED:
                self._cosigned(placed)
            elif record.facts.get("event") == IDENTITY_REPLACED:
                self._replaced(record.facts)
            elif record.facts.get("event") == CONTINUED and "checkpoint" in record.facts:
                self.check(checkpoint_from_facts(record.facts["checkpoint"]))
        except CheckpointRefused as refused:
            raise BrokenFile(placed.file, placed.line, f"{_NOT_THIS_LOGS}: {refused}") from refused
        self._hashes += bytes.fromhex(record.position.hash)

    def hash_at(self, size: int) -> str | None:
        """Return the hash of the log after its first `size` records, or None if the log has no such hash."""
        start = (size - self.first) * _HASH_BYTES
        return self._hashes[start : start + _HASH_BYTES].hex() or None if start >= 0 else None

    def check_place(self, signed: LogCheckpoint) -> None:
        """Check that this log once had the hash in a signed checkpoint. Raises CheckpointRefused."""
        if signed.generation != self.generation or signed.size < self.first:
            return  # the checkpoint is about files that no longer exist
        if self.hash_at(signed.size) != signed.hash:
            raise CheckpointRefused(f"after record {signed.size} the log has another hash")

    def end(self) -> None:
        """Check that each witness signed with its key, or with an older key whose replacement the log records."""
        if self._former:
            placed = next(iter(self._former.values()))
            raise BrokenFile(placed.file, placed.line, f"{_NOT_THIS_LOGS}: it is cosigned by another witness")

    def _replaced(self, facts: Mapping[str, Any]) -> None:
        owner = str(facts.get("owner"))
        if self._former.pop((owner, str(facts.get("former"))), None) is not None:
            self.unchecked.add(f"{owner} under its former key")

    def _cosigned(self, placed: Placed) -> None:
        facts = placed.record.facts
        signed = checkpoint_from_facts(facts.get("checkpoint", {}))
        given = cosignature_from_facts(facts.get("cosignature", {}))
        self.check(signed)
        key = self._keys.get(given.witness)
        if key is None:
            self.unchecked.add(given.witness)
        elif key != given.key:
            # The signature is by a replaced identity key, or by a stranger. It proves nothing about the known key.
            check_cosignature(signed, given, given.witness, given.key)
            self._former.setdefault((given.witness, given.key.hex()), placed)
            return
        check_cosignature(signed, given, given.witness, key or given.key)
        self.witnesses.add(given.witness)
        if signed.generation == self.generation:
            self.cosigned = max(self.cosigned, signed.size)

    def check(self, signed: LogCheckpoint) -> None:
        """Check that a checkpoint belongs to this log and is signed by its owner. Raises CheckpointRefused."""
        key = self._keys.get(self._owner)
        if key is None:
            self.unchecked.add(self._owner)
        check_checkpoint(signed, self._owner, key or signed.key)
        self.check_place(signed)


def verify_log(path: Path, *, owner: str, keys: KnownKeys, kept: Iterable[LogCheckpoint] = ()) -> Verification:
    """Check all records and checkpoints of a log over all its files, and all checkpoints stored elsewhere.

    Args:
        keys: public keys with which signatures are checked.
        kept: checkpoints of this log that a witness cosigned and stored. Those of other logs are skipped.

    Raises:
        BrokenFile: the first fault, with its file and line.
        ConfigurationError: there is no log.
    """
    found = _Pass(owner, keys)
    position, place = LogPosition(), (path.name, 0)
    for placed in _records(path):
        found.take(placed)
        position, place = placed.record.position, (placed.file, placed.line)
    found.end()
    mine = [signed for signed in kept if signed.owner == owner]
    for signed in sorted(mine, key=lambda signed: signed.size):
        _check_kept(found, signed, position, place)
    return Verification(
        position=position,
        generation=found.generation,
        first=max(found.first, 0),
        files=len(all_files(path)),
        cosigned=found.cosigned,
        witnesses=tuple(sorted(found.witnesses)),
        unchecked=tuple(sorted(found.unchecked)),
        kept_checkpoints=len(mine),
    )


def _check_kept(found: _Pass, signed: LogCheckpoint, position: LogPosition, place: tuple[str, int]) -> None:
    try:
        found.check(signed)
    except CheckpointRefused as refused:
        if signed.size > position.sequence and signed.generation == found.generation:
            cut = signed.size - position.sequence
            reason = f"the log ends here, and {cut} records after it were cosigned: its tail was cut"
            raise BrokenFile(*place, reason) from refused
        reason = f"the log was rewritten: {refused}, as the checkpoint says that was cosigned on {signed.time}"
        raise BrokenFile(*place, reason) from refused
    if signed.generation > found.generation:
        raise BrokenFile(*place, f"a later log of this owner, of generation {signed.generation}, was cosigned")


def facts_in(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Check every record of a log, oldest first, and yield its number and facts.

    Raises:
        BrokenFile: a line was changed.
        ConfigurationError: there is no log.
    """
    for placed in _records(path):
        yield placed.record.position.sequence - 1, placed.record.facts


def _records(path: Path) -> Iterator[Placed]:
    if not all_files(path):
        raise ConfigurationError(
            what=f"There is no audit log at {path}.",
            consequence="Nothing was verified, and a missing log proves nothing.",
            remedy="Check the state directory. If the log existed before, inform the security officer.",
        )
    yield from checked_records(path)
