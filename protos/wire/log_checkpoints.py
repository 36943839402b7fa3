"""Signed heads of audit logs, and the countersignatures of their witnesses.

The owner of a log signs where it stands with its long-term identity key. The witness links the leaves
that the owner sends from the last head that it countersigned, and signs only what follows on that; so a
log that was cut, rewritten or parted in two shows, and the witness reads nothing of it. Pure; whoever
owns a log, a key or a stream calls this. Source: PROTOCOL.md, section 5.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from protos.plan.canonical import pack
from protos.wire.log_chain import Head, relink

COORDINATOR: Final = "coordinator"
IdentityKey: TypeAlias = Ed25519PrivateKey
MOST_LEAVES: Final = 16_384  # of one message: half a mebibyte
_LARGEST_SIZE: Final = 1 << 62


class HeadRefused(ValueError):  # a finding, worded by whoever asked
    """A head or a countersignature is not what it claims to be, or does not follow on what was seen before."""


def owner_of_site(site: str) -> str:
    """The owner's name of a site's log; no site can have the coordinator's."""
    return f"site/{site}"


@dataclass(frozen=True, slots=True)
class SignedHead:
    """Where a log stands, signed by its owner.

    Attributes:
        owner: `coordinator`, or `site/` and a site's name.
        epoch: from 1; a person who has to begin a log anew, after its loss, raises it.
        size: records in the log.
        hash: of the last record, 64 hexadecimal digits.
        time: when it was signed, as the owner's clock tells, ISO 8601.
        key: the owner's identity key, raw Ed25519, 32 bytes.
        signature: 64 bytes.
    """

    owner: str
    epoch: int
    size: int
    hash: str
    time: str
    key: bytes
    signature: bytes

    def __post_init__(self) -> None:
        numbers_fit = 0 < self.epoch < 1 << 31 and 0 <= self.size < _LARGEST_SIZE
        is_hash = len(self.hash) == 64 and set(self.hash) <= set("0123456789abcdef")
        texts_fit = 0 < len(self.owner) <= 200 and len(self.time) <= 40
        if not (numbers_fit and is_hash and texts_fit and len(self.key) == 32 and len(self.signature) == 64):
            raise HeadRefused("it is no head of a log")

    @property
    def head(self) -> Head:
        """The head without its signature."""
        return Head(self.size, self.hash)

    @property
    def statement(self) -> bytes:
        """The bytes that the owner signs."""
        return _statement(self.owner, self.epoch, self.head, self.time)


@dataclass(frozen=True, slots=True)
class Countersignature:
    """A witness has linked a log up to a head.

    Attributes:
        witness: `coordinator`, or `site/` and a site's name.
        time: when it was signed, as the witness's clock tells.
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
            raise HeadRefused("it is no countersignature")


def sign_head(owner: str, epoch: int, head: Head, time: str, key: Ed25519PrivateKey) -> SignedHead:
    """Sign where a log stands."""
    signature = key.sign(_statement(owner, epoch, head, time))
    return SignedHead(owner, epoch, head.sequence, head.hash, time, key.public_key().public_bytes_raw(), signature)


def check_head(signed: SignedHead, owner: str, key: bytes) -> None:
    """Return when a head is this owner's, signed with this key; raises HeadRefused."""
    if signed.owner != owner:
        raise HeadRefused("it is the head of another log")
    if not hmac.compare_digest(signed.key, key):
        raise HeadRefused("it is signed with another key than the owner's")
    _check(signed.key, signed.signature, signed.statement, "its signature is not its owner's")


def countersign(signed: SignedHead, witness: str, time: str, key: Ed25519PrivateKey) -> Countersignature:
    """Sign a head that was linked and checked."""
    signature = key.sign(_countersigned(signed, witness, time))
    return Countersignature(witness, time, key.public_key().public_bytes_raw(), signature)


def check_countersignature(signed: SignedHead, given: Countersignature, witness: str, key: bytes) -> None:
    """Return when a countersignature of this head was made by this witness's key; raises HeadRefused."""
    if given.witness != witness or not hmac.compare_digest(given.key, key):
        raise HeadRefused("it is countersigned by somebody else")
    message = _countersigned(signed, witness, given.time)
    _check(given.key, given.signature, message, "its countersignature is not its witness's")


def follow(last: SignedHead | None, grown: SignedHead, start: int, leaves: Sequence[bytes]) -> None:
    """Return when a log has only grown since the last head that was countersigned.

    Args:
        last: the last head of this log that this witness countersigned; None where there is none.
        grown: the head that is asked to be countersigned; its signature was checked.
        start: the size from which on the leaves are.
        leaves: 32 bytes each, of every record between.

    Raises:
        HeadRefused: the log was rolled back, or has parted from what was seen before.
    """
    epoch, head = (last.epoch, last.head) if last else (grown.epoch, Head())
    if grown.epoch < epoch or (grown.epoch == epoch and grown.size < head.sequence):
        raise HeadRefused(f"the log was rolled back: it had {head.sequence} records and has {grown.size}")
    if grown.epoch > epoch:
        head = Head()  # begun anew by a person; the old head stays on record
    if start != head.sequence or start + len(leaves) != grown.size or len(leaves) > MOST_LEAVES:
        raise HeadRefused("the records since the last head were not all shown")
    if any(len(leaf) != 32 for leaf in leaves) or relink(head, leaves) != grown.head:
        raise HeadRefused(f"the log has parted from what it was at record {head.sequence}")


def head_facts(signed: SignedHead) -> dict[str, Any]:
    """A signed head as JSON facts."""
    return {
        "owner": signed.owner,
        "epoch": signed.epoch,
        "size": signed.size,
        "hash": signed.hash,
        "time": signed.time,
        "key": signed.key.hex(),
        "signature": signed.signature.hex(),
    }


def head_from_facts(facts: Mapping[str, Any]) -> SignedHead:
    """A signed head from JSON facts; raises HeadRefused."""
    try:
        texts = (str(facts[name]) for name in ("owner", "hash", "time"))
        owner, digest, time = texts
        key, signature = (bytes.fromhex(facts[name]) for name in ("key", "signature"))
        return SignedHead(owner, int(facts["epoch"]), int(facts["size"]), digest, time, key, signature)
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise HeadRefused("it is no head of a log") from cause


def countersignature_facts(given: Countersignature) -> dict[str, Any]:
    """A countersignature as JSON facts."""
    return {
        "witness": given.witness,
        "time": given.time,
        "key": given.key.hex(),
        "signature": given.signature.hex(),
    }


def countersignature_from_facts(facts: Mapping[str, Any]) -> Countersignature:
    """A countersignature from JSON facts; raises HeadRefused."""
    try:
        key, signature = (bytes.fromhex(facts[name]) for name in ("key", "signature"))
        return Countersignature(str(facts["witness"]), str(facts["time"]), key, signature)
    except (KeyError, TypeError, ValueError, AttributeError) as cause:
        raise HeadRefused("it is no countersignature") from cause


def _statement(owner: str, epoch: int, head: Head, time: str) -> bytes:
    return pack("audit head", owner, epoch, head.sequence, head.hash, time)


def _countersigned(signed: SignedHead, witness: str, time: str) -> bytes:
    return pack("audit countersignature", witness, time, signed.statement, signed.key, signed.signature)


def _check(key: bytes, signature: bytes, message: bytes, otherwise: str) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError) as cause:
        raise HeadRefused(otherwise) from cause
