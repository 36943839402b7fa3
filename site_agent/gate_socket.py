"""Defines the messages that the agent and the gate process of a site send to each other.

One side is the agent, which has the network and the TLS key. The other side is the gate, which has all other keys and
decides. The gate sends orders and the agent carries them out. The gate trusts bytes from the agent no more than bytes
from a hostile coordinator. Frames are those of framed_messages.py. The rules:

* the agent passes messages between coordinator and gate as bytes, which only the gate reads and writes;
* a stream has a number, so no message of an earlier stream is taken for one of the current stream;
* at most WINDOW messages are unconfirmed in each direction of a stream;
* the agent sends no free text. It reports the reason of an ended stream or a failed order by a word of a fixed list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from protos.wire.messages import LARGEST_MESSAGE_BYTES, require
from site_agent.framed_messages import Framing, WithoutPayload, unpacked

WINDOW: Final = 8
CREDITS_AT_ONCE: Final = 4  # less than WINDOW, so that a sender never waits for confirmations that are not sent yet
LARGEST_PEM_BYTES: Final = 64 << 10
LARGEST_REQUEST_BYTES: Final = 8192
# How a request or stream can end: gRPC's own names, "ended" as planned, and names of usual causes.
STATUSES: Final = (
    "ended", "ok", "cancelled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists",
    "permission_denied", "resource_exhausted", "failed_precondition", "aborted", "out_of_range", "unimplemented",
    "internal", "unavailable", "data_loss", "unauthenticated",
    "certificate_expired", "certificate_not_yet_valid", "certificate_unproven", "connection_refused", "name_unknown",
    "name_differs", "proxy_407", "proxy_403", "proxy_fails",
)  # fmt: skip
LOGIN_REFUSED: Final = "proxy_407"
REFUSALS: Final = ("permission_denied", "unauthenticated")
COORDINATOR_UNABLE: Final = "failed_precondition"  # the coordinator cannot write to its disk, for example
EXIT_STATUSES: Final = (1, 77, 78)
KEYS: Final = ("first", "next")
CALLS: Final = ("enrol", "renew")
_LARGEST_ADDRESS: Final = 300


@dataclass(frozen=True, slots=True)
class Look(WithoutPayload):
    """The gate instructs the agent to report the certificates that it presents and trusts. The agent replies Shown."""


@dataclass(frozen=True, slots=True)
class Make(WithoutPayload):
    """The gate instructs the agent to make a certificate signing request. The agent replies Requested.

    `key` is `first` for the key of enrolment, which is created if missing, or `next` for a new key, which waits for its
    certificate.
    """

    key: str

    def __post_init__(self) -> None:
        require(self.key in KEYS, "a key of another kind")


@dataclass(frozen=True, slots=True)
class Call:
    """The gate instructs the agent to send one request to the enrolment port. The agent replies Called or Unable.

    The payload has two parts: the root to trust (PEM), or none to use the trusted one, and the request. An empty
    address means the one from enrolment.
    """

    call: str
    address: str
    payload: bytes | memoryview = field(repr=False)

    def __post_init__(self) -> None:
        require(self.call in CALLS, "a call of another name")


@dataclass(frozen=True, slots=True)
class Install:
    """The gate instructs the agent to install a certificate for a kind of key (see Make). The agent replies Shown.

    The payload has two parts: the chain and the root, both as PEM. Both addresses come with an invitation's
    certificate, and are empty otherwise.
    """

    key: str
    site: str
    federation: str
    coordinator: str
    enrolment: str
    payload: bytes | memoryview = field(repr=False)

    def __post_init__(self) -> None:
        require(self.key in KEYS, "a key of another kind")


@dataclass(frozen=True, slots=True)
class Through(WithoutPayload):
    """The gate names the HTTP proxy (HOST:PORT) of all connections from now on. Without this order they are direct."""

    proxy: str


@dataclass(frozen=True, slots=True)
class Open(WithoutPayload):
    """The gate instructs the agent to open a stream to the coordinator. Without address, the stored address is used."""

    stream: int
    address: str


@dataclass(frozen=True, slots=True)
class Up:
    """The gate instructs the agent to send one message to the coordinator unchanged. The agent replies Sent."""

    stream: int
    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Taken(WithoutPayload):
    """The gate confirms that it handled `count` messages of the coordinator. The agent may forward as many more."""

    stream: int
    count: int

    def __post_init__(self) -> None:
        require(1 <= self.count <= WINDOW, "credits")


@dataclass(frozen=True, slots=True)
class Part(WithoutPayload):
    """The gate sends no more messages on a stream. The agent waits briefly for the coordinator to end it."""

    stream: int


@dataclass(frozen=True, slots=True)
class Shut(WithoutPayload):
    """The gate instructs the agent to end a stream at once."""

    stream: int


@dataclass(frozen=True, slots=True)
class Shown:
    """The agent reports to the gate the certificates that it presents and trusts.

    The payload has two parts, each PEM or empty: the current chain and the root.
    """

    coordinator: str
    enrolment: str
    payload: bytes | memoryview = field(repr=False)

    def __post_init__(self) -> None:
        for text in (self.coordinator, self.enrolment):
            require(len(text) <= _LARGEST_ADDRESS and text.isascii() and text.isprintable(), "an address")
        require(all(len(part) <= LARGEST_PEM_BYTES for part in self.parts), "certificate size")

    @property
    def parts(self) -> tuple[bytes, ...]:
        return unpacked(self.payload, 2)


@dataclass(frozen=True, slots=True)
class Requested:
    """The agent returns to the gate a certificate signing request (PEM)."""

    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Called:
    """The agent returns to the gate the coordinator's reply to a request, as received bytes."""

    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unable(WithoutPayload):
    """The agent reports a failed instruction. `status` is a request's end; if empty, the agent's log has the error."""

    exit_status: int
    status: str

    def __post_init__(self) -> None:
        require(self.exit_status in EXIT_STATUSES and self.status in ("", *STATUSES), "a failure of no known kind")


@dataclass(frozen=True, slots=True)
class Down:
    """The agent forwards one message of the coordinator to the gate, unchanged."""

    stream: int
    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sent(WithoutPayload):
    """The agent confirms to the gate that `count` messages of the site were handed to the stream."""

    stream: int
    count: int

    def __post_init__(self) -> None:
        require(1 <= self.count <= WINDOW, "credits")


@dataclass(frozen=True, slots=True)
class Ended(WithoutPayload):
    """The agent reports to the gate how a stream has ended."""

    stream: int
    status: str

    def __post_init__(self) -> None:
        require(self.status in STATUSES, "an end of no known kind")


Order: TypeAlias = Look | Make | Call | Install | Through | Open | Up | Taken | Part | Shut
Answer: TypeAlias = Shown | Requested | Called | Unable
OfStream: TypeAlias = Down | Sent | Ended
Report: TypeAlias = Answer | OfStream
Message: TypeAlias = Order | Report
_KINDS: Final[tuple[type[Message], ...]] = (
    Look, Make, Call, Install, Through, Open, Up, Taken, Part, Shut,
    Shown, Requested, Called, Unable, Down, Sent, Ended,
)  # fmt: skip
FRAMING: Final = Framing[Message](b"GLG1", _KINDS)
_LARGEST: Final[dict[type[Message], int]] = {
    Call: LARGEST_PEM_BYTES + LARGEST_MESSAGE_BYTES,
    Install: 2 * LARGEST_PEM_BYTES + 8,
    Up: LARGEST_MESSAGE_BYTES,
    Shown: 2 * LARGEST_PEM_BYTES + 8,
    Requested: LARGEST_REQUEST_BYTES,
    Called: LARGEST_MESSAGE_BYTES,
    Down: LARGEST_MESSAGE_BYTES,
}


def largest_payload(kind: type[Message]) -> int:
    """Return how many bytes the payload of a message kind may have. Most kinds have no payload (0 bytes)."""
    return _LARGEST.get(kind, 0)
