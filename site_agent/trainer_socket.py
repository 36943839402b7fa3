"""The trainer socket between a site's gate and its trainer, and every message on it.

One side is the gate, which has the keys and never sees a patient. The other side is the trainer, which has the patients
and neither network nor keys. The trainer sends the gate only data that may leave the site, and noisy sums of private
layers, which stay at the gate. So its messages have no free text. Frames are those of framed_messages.py.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from host.heap import take_memory
from protos.errors import OperatorError
from protos.plan.plan import LARGEST_PLAN_BYTES
from protos.wire.messages import SiteReason
from site_agent.framed_messages import HEADER, FramedSocket, Framing, widen

_IDLE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Check:
    """To the trainer: read the table against its contract; nothing is trained."""

    payload: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Prepare:
    """To the trainer: a run is announced; the payload is the plan's canonical bytes."""

    run: str
    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Train:
    """To the trainer: make a round from the payload, exactly the received values as little-endian float32.

    First the values of the tensors that the round's exchange lets down, in the manifest's order, then
    the control variates of the same tensors where the method has them. Behind them are little-endian int64:
    the total of the private layers' noisy sums, if these take steps under privacy.

    Attributes:
        resample: 0 for the ordinary draw; otherwise the same step again from its start, with batches drawn
            again by a generator keyed by this number.
        stage: what the round is for, a number of protos.wire.messages.Stage.
        layers: which of the manifest's layers take part, in hexadecimal as an offer carries them.
        best_round: the round whose received model had the lowest validation loss over all sites, -1 where
            none was measured.
        saves: the state after this round goes to disk before the answer.
        oldest: states of earlier rounds are not needed any more.
        returned_to: the round that was trained from these parameters before, where the run was rolled back; else -1.
    """

    round: int
    resample: int
    stage: int
    layers: str
    best_round: int
    payload: bytes | memoryview = field(repr=False)
    saves: bool = False
    oldest: int = 0
    returned_to: int = -1


@dataclass(frozen=True, slots=True)
class Conclude:
    """To the trainer: the payload is the last aggregate; choose, test, report. The rest as in Train.

    `alternative` is the chosen one of a sweep, or -1.
    """

    round: int
    layers: str
    best_round: int
    payload: bytes | memoryview = field(repr=False)
    returned_to: int = -1
    alternative: int = -1


@dataclass(frozen=True, slots=True)
class Agreed:
    """To the agent: what was asked is done (Check, Conclude)."""

    payload: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """To the agent: the site's network is built; the digest of the manifest computed from it.

    The payload is the states on the trainer's disk, as pairs of little-endian int64: the round that each continues
    with, and which draw of the round before led to it. Empty where this site has not trained in the run.
    """

    manifest_digest: str
    payload: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Trained:
    """To the agent: what the round's exchange lets up, and nothing else.

    The payload is the updates as little-endian float32 in the manifest's order, then the exchange's
    scalars without "rows" as little-endian int64. Behind them are the noisy sums of private layers, which the
    gate keeps. `rows` is the number of training rows on the public
    grid, 0 if the plan does not weigh by it.
    """

    round: int
    rows: int
    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Failed:
    """To the agent: a reason from the closed list and a federated tensor's name or nothing.

    The explanation, which may concern patients, is printed by the trainer itself.
    """

    reason: int
    exit_status: int
    tensor: str = ""
    payload: bytes | memoryview = field(default=b"", repr=False)

    def __post_init__(self) -> None:
        SiteReason(self.reason)


Message: TypeAlias = Check | Prepare | Train | Conclude | Agreed | Prepared | Trained | Failed
_KINDS: Final[tuple[type[Message], ...]] = (Check, Prepare, Train, Conclude, Agreed, Prepared, Trained, Failed)


FRAMING: Final = Framing[Message](b"GLH1", _KINDS)


def _frame(message: Message) -> bytes:
    """Header and facts; the payload follows unchanged."""
    return FRAMING.frame(message)


class TrainerGone(OperatorError):
    """The process with the patients has ended while the agent needed it."""

    code = "E015"


class TrainerEnd:
    """The trainer's end: blocking, one message at a time."""

    def __init__(self, connection: socket.socket, idle: Callable[[], None] = lambda: None) -> None:
        """`idle` is called every second in which the agent neither asks nor takes anything."""
        self._socket, self._idle = widen(connection), idle
        # A whole second without a byte is no fault, because a study has hours without requests.
        self._socket.settimeout(_IDLE_SECONDS)
        self.largest_payload = LARGEST_PLAN_BYTES

    def receive(self) -> Message | None:
        """Return the next message, or None when the agent has ended."""
        header = self._exactly(HEADER.size)
        if header is None:
            return None
        kind, facts_bytes, payload_bytes = FRAMING.sizes(header, lambda _: self.largest_payload)
        text, payload = self._exactly(facts_bytes), self._exactly(payload_bytes)
        if text is None or payload is None:
            return None
        return FRAMING.build(kind, text, payload)

    def send(self, message: Message) -> None:
        """Write one complete message."""
        rest = [memoryview(_frame(message)), memoryview(message.payload)]
        while rest:
            try:
                written = self._socket.sendmsg(rest)  # at once, so that the gate wakes once
            except TimeoutError:
                self._idle()
                continue
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if rest:
                rest[0] = rest[0][written:]

    def _exactly(self, count: int) -> memoryview | None:
        buffer = take_memory(count)
        filled = 0
        while filled < count:
            try:
                received = self._socket.recv_into(buffer[filled:])
            except TimeoutError:
                self._idle()
                continue
            if received == 0:
                return None
            filled += received
        return buffer


class GateEnd:
    """The gate's end: asynchronous, one question at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = FramedSocket(connection, FRAMING)

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """Send a message and wait for its answer.

        Args:
            message: the question.
            largest_payload: the most bytes that what was asked may be answered with.

        Raises:
            TrainerGone: it has ended.
            MalformedMessage: the answer is none of this trainer socket's.
        """
        try:
            await self._socket.send(message)
            return await self._socket.receive(lambda _: largest_payload)
        except OSError as cause:
            raise _gone() from cause

    def require(self) -> None:
        """Check on its socket that the trainer is still connected. Call it only between requests.

        Raises:
            TrainerGone: it has ended.
        """
        if self._socket.has_ended():
            raise _gone()

    def close(self) -> None:
        """Close the connection. The trainer then ends too."""
        self._socket.close()


def _gone() -> TrainerGone:
    return TrainerGone(
        what="The trainer of this site has ended.",
        consequence="Nothing of this round left this site.",
        remedy="Read the trainer's last message. If it has none, `dmesg` shows whether the system stopped it because "
        "memory ran out. The gate starts it again, or waits for the service site-trainer.",
    )
