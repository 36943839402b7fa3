"""The gate socket between a site's agent and its gate, and every message on it.

One side is the agent, which has the network and the TLS key. The other side is the gate, which has all other keys and
decides. The gate sends orders and the agent carries them out. The gate trusts bytes from the agent no more than bytes
from a hostile coordinator. Frames are those of framed_messages.py. The rules:

* messages between coordinator and site pass as bytes, which only the gate reads and writes;
* a stream has a number, so no message of an earlier stream is taken for one of the current stream;
* at most WINDOW messages are under way in each direction of a stream;
* the agent sends no free text. It reports the reason of an ended stream or a failed order by a word of a closed list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

from protos.wire.messages import LARGEST_MESSAGE_BYTES, MalformedMessage
from site_agent.framed_messages import Framing, unpacked

WINDOW: Final = 8
CREDITS_AT_ONCE: Final = 4  # less than the window, so that no sender waits for credits that are held back
LARGEST_PEM_BYTES: Final = 64 << 10
LARGEST_REQUEST_BYTES: Final = 8192
# How a call can end, in gRPC's own words, "ended" for a stream that the coordinator has closed in order, and three for
# a coordinator's certificate that this computer rejects.
STATUSES: Final = (
    "ended", "ok", "cancelled", "unknown", "invalid_argument", "deadline_exceeded", "not_found", "already_exists",
    "permission_denied", "resource_exhausted", "failed_precondition", "aborted", "out_of_range", "unimplemented",
    "internal", "unavailable", "data_loss", "unauthenticated",
    "certificate_expired", "certificate_not_yet_valid", "certificate_unproven",
)  # fmt: skip
REFUSALS: Final = ("permission_denied", "unauthenticated")
EXIT_STATUSES: Final = (1, 77, 78)
KEYS: Final = ("first", "next", "own")
CALLS: Final = ("enrol", "renew")
_LARGEST_ADDRESS: Final = 300


def _require(is_right: bool, what: str) -> None:
    if not is_right:
        raise MalformedMessage(what)


@dataclass(frozen=True, slots=True)
class Look:
    """To the agent: report the presented and trusted certificates; the answer is Shown."""

    payload: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Make:
    """To the agent: a signing request; the answer is Requested.

    Attributes:
        key: `first` for the key of enrolment, which is created if missing; `next` for a new key, which waits for its
            certificate; `own` for the key that waits for a certificate of the hospital's own authority.
    """

    key: str
    payload: bytes | memoryview = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        _require(self.key in KEYS, "a key of another kind")


@dataclass(frozen=True, slots=True)
class Call:
    """To the agent: one call on the enrolment port; the answer is Called or Unable.

    The payload has two parts: the roots to trust (PEM), or none to use the trusted ones, and the request. An empty
    address means the one from enrolment.
    """

    call: str
    address: str
    payload: bytes | memoryview = field(repr=False)

    def __post_init__(self) -> None:
        _require(self.call in CALLS, "a call of another name")


@dataclass(frozen=True, slots=True)
class Install:
    """To the agent: a certificate for the key of this kind (see Make); the answer is Shown.

    The payload has two parts: the chain and the roots, both as PEM. Both addresses come with the first certificate.
    """

    key: str
    site: str
    federation: str
    coordinator: str
    enrolment: str
    payload: bytes | memoryview = field(repr=False)

    def __post_init__(self) -> None:
        _require(self.key in KEYS, "a key of another kind")


@dataclass(frozen=True, slots=True)
class Trust:
    """To the agent: the roots that the coordinator names (PEM); the answer is Shown."""

    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Settle:
    """To the agent: delete the previous pair because the renewed one works, or restore it; the answer is Shown."""

    works: bool
    payload: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Open:
    """To the agent: open a stream with the current certificate; an empty address is the one from enrolment."""

    stream: int
    address: str
    payload: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Up:
    """To the agent: send one message of the site unchanged; Sent follows when the stream has taken it."""

    stream: int
    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Taken:
    """To the agent: this many messages of the coordinator were handled, so that many more may come."""

    stream: int
    count: int
    payload: bytes | memoryview = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        _require(1 <= self.count <= WINDOW, "credits")


@dataclass(frozen=True, slots=True)
class Part:
    """To the agent: no more messages follow; wait a moment until the coordinator has ended the stream."""

    stream: int
    payload: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Shut:
    """To the agent: end the stream at once."""

    stream: int
    payload: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Shown:
    """To the gate: the certificates that this site's agent presents and trusts.

    The payload has five parts, each PEM or empty: the current chain, the roots, the chain before the last renewal until
    the new one has worked, and a waiting chain of the hospital's own authority with its signing request.
    """

    coordinator: str
    enrolment: str
    payload: bytes | memoryview = field(repr=False)

    def __post_init__(self) -> None:
        for text in (self.coordinator, self.enrolment):
            _require(len(text) <= _LARGEST_ADDRESS and text.isascii() and text.isprintable(), "an address")
        _require(all(len(part) <= LARGEST_PEM_BYTES for part in self.parts), "certificate size")

    @property
    def parts(self) -> tuple[bytes, ...]:
        """Chain, roots, previous chain, waiting chain, waiting request."""
        return unpacked(self.payload, 5)


@dataclass(frozen=True, slots=True)
class Requested:
    """To the gate: a signing request (PEM)."""

    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Called:
    """To the gate: the reply to a call, as the bytes of the wire."""

    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Unable:
    """To the gate: an order failed. `status` shows how a call ended.

    It is empty if the agent has explained the error in its own log.
    """

    exit_status: int
    status: str
    payload: bytes | memoryview = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        _require(self.exit_status in EXIT_STATUSES and self.status in ("", *STATUSES), "a failure of no known kind")


@dataclass(frozen=True, slots=True)
class Opened:
    """To the gate: the coordinator has accepted the stream; its time in milliseconds since 1970, or -1."""

    stream: int
    milliseconds: int
    payload: bytes | memoryview = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        _require(-1 <= self.milliseconds < 1 << 50, "the coordinator's time")


@dataclass(frozen=True, slots=True)
class Down:
    """To the gate: one message of the coordinator, unchanged."""

    stream: int
    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sent:
    """To the gate: the stream has taken this many messages of the site."""

    stream: int
    count: int
    payload: bytes | memoryview = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        _require(1 <= self.count <= WINDOW, "credits")


@dataclass(frozen=True, slots=True)
class Ended:
    """To the gate: the stream has ended, and how."""

    stream: int
    status: str
    payload: bytes | memoryview = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        _require(self.status in STATUSES, "an end of no known kind")


Order: TypeAlias = Look | Make | Call | Install | Trust | Settle | Open | Up | Taken | Part | Shut
Answer: TypeAlias = Shown | Requested | Called | Unable
OfStream: TypeAlias = Opened | Down | Sent | Ended
Report: TypeAlias = Answer | OfStream
Message: TypeAlias = Order | Report
_KINDS: Final[tuple[type[Message], ...]] = (
    Look, Make, Call, Install, Trust, Settle, Open, Up, Taken, Part, Shut,
    Shown, Requested, Called, Unable, Opened, Down, Sent, Ended,
)  # fmt: skip
FRAMING: Final = Framing[Message](b"GLG1", _KINDS)
_LARGEST: Final[dict[type[Message], int]] = {
    Call: LARGEST_PEM_BYTES + LARGEST_MESSAGE_BYTES,
    Install: 2 * LARGEST_PEM_BYTES + 8,
    Trust: LARGEST_PEM_BYTES,
    Up: LARGEST_MESSAGE_BYTES,
    Shown: 5 * LARGEST_PEM_BYTES + 20,
    Requested: LARGEST_REQUEST_BYTES,
    Called: LARGEST_MESSAGE_BYTES,
    Down: LARGEST_MESSAGE_BYTES,
}


def largest_payload(kind: type[Message]) -> int:
    """Return the largest payload of a message kind in bytes. Most kinds have none."""
    return _LARGEST.get(kind, 0)
