"""Signs checkpoints of audit logs, and cosigns checkpoints as a witness.

The owner of a log signs its current size and hash with its long-term identity key. The witness links the owner's leaves
to the last checkpoint that it cosigned, and signs only a continuation. So the witness detects a log that was cut,
rewritten or split in two, without reading the log. Source: docs/design/protocol.md, "The audit log".
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protos.plan.canonical import pack
from protos.wire.log_chain import LogPosition, relink

COORDINATOR: Final = "coordinator"
MOST_LEAVES: Final = 16_384  # of one message: half a mebibyte
_LARGEST_SIZE: Final = 1 << 62


class CheckpointRefused(ValueError):  # the caller turns it into a message
    """A checkpoint or a cosignature is not valid, or does not continue the earlier checkpoints."""


def owner_of_site(site: str) -> str:
    """Return the owner name of a site's log, which always differs from the owner name of the coordinator's log."""
    return f"site/{site}"


def site_of(owner: str) -> str:
    """Return the site whose log has this owner name."""
    return owner.removeprefix("site/")


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """The position of a log, signed by its owner.

    Attributes:
        owner: `coordinator`, or `site/` and a site's name.
        generation: from 1. It rises when a person restarts a log after its loss.
        size: records in the log.
        hash: of the last record, 64 hexadecimal digits.
        time: the time of the signature, by the owner's clock, ISO 8601.
        key: the owner's identity key, raw Ed25519, 32 bytes.
        signature: 64 bytes.
    """

    owner: str
    generation: int
    size: int
    hash: str
    time: str
    key: bytes
    signature: bytes

    def __post_init__(self) -> None:
        numbers_fit = 0 < self.generation < 1 << 31 and 0 <= self.size < _LARGEST_SIZE
        is_hash = len(self.hash) == 64 and set(self.hash) <= set("0123456789abcdef")
        texts_fit = 0 < len(self.owner) <= 200 and len(self.time) <= 40
        if not (numbers_fit and is_hash and texts_fit and len(self.key) == 32 and len(self.signature) == 64):
            raise CheckpointRefused("it is not a checkpoint of a log")

    @property
    def position(self) -> LogPosition:
        """Return the size and hash of the log at this checkpoint."""
        return LogPosition(self.size, self.hash)

    @property
    def statement(self) -> bytes:
        """Return the bytes that the owner signs."""
        return _statement(self.owner, self.generation, self.position, self.time)


@dataclass(frozen=True, slots=True)
class Cosignature:
    """A witness's signature that it has linked a log up to a checkpoint.

    Attributes:
        witness: `coordinator`, or `site/` and a site's name.
        time: the time of the signature, by the witness's clock.
        key: the witness's identity key, 32 bytes.
        signature: 64 bytes.
    """

    witness: str
    time: str
    key: bytes
    signature: bytes

    def __post_init__(self) -> None:
        texts_fit = 0 < len(self.witness) <= 200 and len(self.time) <= 40
        if not (texts_fit and len(self.key) == 32 and len(self.signature) == 64):
            raise CheckpointRefused("it is no cosignature")


def sign_checkpoint(
    owner: str, generation: int, position: LogPosition, time: str, key: Ed25519PrivateKey
) -> LogCheckpoint:
    """Sign the current position of a log."""
    signature = key.sign(_statement(owner, generation, position, time))
    return LogCheckpoint(
        owner, generation, position.sequence, position.hash, time, key.public_key().public_bytes_raw(), signature
    )


def check_checkpoint(signed: LogCheckpoint, owner: str, key: bytes) -> None:
    """Check that this owner signed the checkpoint with this key. Raises CheckpointRefused."""
    if signed.owner != owner:
        raise CheckpointRefused("it is the checkpoint of another log")
    if not hmac.compare_digest(signed.key, key):
        raise CheckpointRefused("it is signed with another key than the owner's")
    _check(signed.key, signed.signature, signed.statement, "its signature is not from its owner")


def cosign(signed: LogCheckpoint, witness: str, time: str, key: Ed25519PrivateKey) -> Cosignature:
    """Cosign a checked checkpoint of another log as its witness."""
    signature = key.sign(_cosigned(signed, witness, time))
    return Cosignature(witness, time, key.public_key().public_bytes_raw(), signature)


def check_cosignature(signed: LogCheckpoint, given: Cosignature, witness: str, key: bytes) -> None:
    """Check that this witness's key signed a cosignature of this checkpoint. Raises CheckpointRefused."""
    if given.witness != witness or not hmac.compare_digest(given.key, key):
        raise CheckpointRefused("it is cosigned by another witness")
    message = _cosigned(signed, witness, given.time)
    _check(given.key, given.signature, message, "its cosignature is not from its witness")


def follow(last: LogCheckpoint | None, grown: LogCheckpoint, start: int, leaves: Sequence[bytes]) -> None:
    """Check that a log has only grown since its last cosigned checkpoint.

    Args:
        last: the last checkpoint of this log that this witness cosigned; None if there is none.
        grown: the checkpoint to cosign; its signature was checked.
        start: the size of the log before the first of the leaves.
        leaves: 32 bytes each, of every record in between.

    Raises:
        CheckpointRefused: the log was rolled back, or differs from the earlier records.
    """
    generation, position = (last.generation, last.position) if last else (grown.generation, LogPosition())
    if grown.generation < generation or (grown.generation == generation and grown.size < position.sequence):
        raise CheckpointRefused(f"the log was rolled back: it had {position.sequence} records and has {grown.size}")
    if grown.generation > generation:
        position = LogPosition()  # a person restarted the log; its record keeps the old checkpoint
    if start != position.sequence or start + len(leaves) != grown.size or len(leaves) > MOST_LEAVES:
        raise CheckpointRefused("some records since the last checkpoint are missing")
    if any(len(leaf) != 32 for leaf in leaves) or relink(position, leaves) != grown.position:
        raise CheckpointRefused(f"the log differs from its earlier content at record {position.sequence}")


def checkpoint_facts(signed: LogCheckpoint) -> dict[str, Any]:
    """Return a signed checkpoint as JSON facts."""
    return _facts(signed)


def checkpoint_from_facts(facts: Mapping[str, Any]) -> LogCheckpoint:
    """Read a signed checkpoint from JSON facts. Raises CheckpointRefused."""
    try:
        texts = (str(facts[name]) for name in ("owner", "hash", "time"))
        owner, digest, time = texts
        key, signature = (bytes.fromhex(facts[name]) for name in ("key", "signature"))
        generation = int(facts["generation"] if "generation" in facts else facts["epoch"])  # the name in version 0.1
        return LogCheckpoint(owner, generation, int(facts["size"]), digest, time, key, signature)
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise CheckpointRefused("it is not a checkpoint of a log") from cause


def cosignature_facts(given: Cosignature) -> dict[str, Any]:
    """Return a cosignature as JSON facts."""
    return _facts(given)


def cosignature_from_facts(facts: Mapping[str, Any]) -> Cosignature:
    """Read a cosignature from JSON facts. Raises CheckpointRefused."""
    try:
        key, signature = (bytes.fromhex(facts[name]) for name in ("key", "signature"))
        return Cosignature(str(facts["witness"]), str(facts["time"]), key, signature)
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise CheckpointRefused("it is no cosignature") from cause


def _facts(signed: LogCheckpoint | Cosignature) -> dict[str, Any]:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(signed).items()}


def _statement(owner: str, generation: int, position: LogPosition, time: str) -> bytes:
    return pack("audit head", owner, generation, position.sequence, position.hash, time)


def _cosigned(signed: LogCheckpoint, witness: str, time: str) -> bytes:
    return pack("audit countersignature", witness, time, signed.statement, signed.key, signed.signature)


def _check(key: bytes, signature: bytes, message: bytes, otherwise: str) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError) as cause:
        raise CheckpointRefused(otherwise) from cause
