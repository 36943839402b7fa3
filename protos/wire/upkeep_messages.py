"""Defines the messages outside the rounds: checkpoints of audit logs, renewals of certificates, and enrolment.

A peer of an earlier version does not support upkeep on its stream. So each side sends it only after the other has
reported support (`Hello.upkeep`, and for a site the coordinator's first LogStanding). Enrolment has its own port.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from protos.wire.log_checkpoints import MOST_LEAVES, Cosignature, LogCheckpoint
from protos.wire.messages import require, require_line

UPKEEP_VERSION: Final = 1
_LARGEST_REQUEST_BYTES: Final = 8192
_LARGEST_CHAIN_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class LogStanding:
    """The sender's last stored checkpoint of the receiver's log, and the sender's identity key (raw, 32 bytes)."""

    key: bytes
    checkpoint: LogCheckpoint | None

    def __post_init__(self) -> None:
        require(len(self.key) == 32, "identity key size")


@dataclass(frozen=True, slots=True)
class LogGrowth:
    """New leaves of the sender's log from record `start` on, 32 bytes each, and the checkpoint after them."""

    checkpoint: LogCheckpoint
    start: int
    leaves: tuple[bytes, ...]

    def __post_init__(self) -> None:
        require(0 <= self.start < 1 << 62 and len(self.leaves) <= MOST_LEAVES, "leaves of a log")
        require(all(len(leaf) == 32 for leaf in self.leaves), "leaf size")


@dataclass(frozen=True, slots=True)
class LogCosignature:
    """The sender has linked the receiver's log up to the checkpoint of this size, and cosigned it."""

    size: int
    given: Cosignature

    def __post_init__(self) -> None:
        require(0 <= self.size < 1 << 62, "size of a log")


@dataclass(frozen=True, slots=True)
class RenewalAsked:
    """A site requests its next certificate.

    `signing_request` (PEM) has a new TLS key, and the identity key signs it.
    """

    site: str
    signing_request: bytes
    signature: bytes

    def __post_init__(self) -> None:
        require(0 < len(self.site) <= 200, "site name")
        require(0 < len(self.signing_request) <= _LARGEST_REQUEST_BYTES, "signing request size")
        require(len(self.signature) == 64, "signature size")


@dataclass(frozen=True, slots=True)
class RenewalAnswered:
    """The coordinator's reply to a renewal: the next certificate chain (PEM), or one line with a reason for refusal."""

    chain: bytes
    refusal: str

    def __post_init__(self) -> None:
        require(len(self.chain) <= _LARGEST_CHAIN_BYTES, "chain size")
        require_line(self.refusal, "refusal", longest=1000)


@dataclass(frozen=True, slots=True)
class EnrolmentRequest:
    """A site without a certificate presents its invitation. The repr of this message never shows the token."""

    token: bytes = field(repr=False)
    signing_request: bytes
    identity_key: bytes
    signature: bytes

    def __post_init__(self) -> None:
        require(len(self.token) == 24, "token size")
        require(0 < len(self.signing_request) <= 8192, "signing request size")
        require(len(self.identity_key) == 32, "identity key size")
        require(len(self.signature) == 64, "signature size")


@dataclass(frozen=True, slots=True)
class EnrolmentReply:
    """The certificate chain, or the fingerprint that a person must still approve, or the reason for a refusal.

    `was_member` is whether the site had a certificate for another key before. An earlier coordinator does not send it.
    """

    chain: bytes
    fingerprint: str
    refusal: str
    was_member: bool = False

    def __post_init__(self) -> None:
        require(len(self.chain) <= 64 << 10, "chain size")
        require_line(self.fingerprint, "fingerprint", longest=200)
        require_line(self.refusal, "refusal", longest=1000)


LogMessage: TypeAlias = LogStanding | LogGrowth | LogCosignature
Upkeep: TypeAlias = LogMessage | RenewalAsked | RenewalAnswered
