"""Defines the messages outside the rounds: heads of audit logs, renewals of certificates, and enrolment.

Enrolment has its own port.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from protos.wire.messages import require, require_line

_LARGEST_REQUEST_BYTES: Final = 8192
_LARGEST_CHAIN_BYTES: Final = 64 << 10
_NO_HASH: Final = bytes(32)


@dataclass(frozen=True, slots=True)
class KeptHead:
    """The head of a log that one program writes and the other one keeps.

    Attributes:
        count: the number of records.
        hash: of the last record, 32 bytes.
        restored: milliseconds since 1970 of the newest restore that a person has declared in the log; 0 for none.
    """

    count: int = 0
    hash: bytes = _NO_HASH
    restored: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.count < 1 << 62 and len(self.hash) == 32, "head of a log")
        require(0 <= self.restored < 1 << 62, "time of a restore")


@dataclass(frozen=True, slots=True)
class LogHeads:
    """The head of the sender's audit log, and the head of the receiver's log that the sender keeps."""

    own: KeptHead
    kept: KeptHead


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


Upkeep: TypeAlias = LogHeads | RenewalAsked | RenewalAnswered
