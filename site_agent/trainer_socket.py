"""Defines the messages between a site's gate process and its trainer, on the trainer socket.

One side is the gate, which has the keys and never sees a patient. The other side is the trainer, which has the
patients and neither network nor keys. The trainer sends the gate only data that may leave the site, and noisy sums of
private layers, which stay at the gate. So its messages have no free text. Frames are those of framed_messages.py.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from protos.errors import OperatorError
from protos.plan.plan_head import LARGEST_PLAN_BYTES
from protos.wire.messages import SiteReason
from site_agent.framed_messages import FramedSocket, FrameReader, Framing, WithoutPayload, widen

_IDLE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Check(WithoutPayload):
    """The gate instructs the trainer to compare the table with the table's contract. Nothing is trained."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """The gate informs the trainer that a run was announced. The payload is the plan's canonical bytes.

    `memory` is the newest head of the trainer's memory of answered values in the audit log, or empty.
    """

    run: str
    payload: bytes | memoryview = field(repr=False)
    memory: str = ""


@dataclass(frozen=True, slots=True)
class Train:
    """The gate instructs the trainer to train one round with the received values, little-endian float32.

    The payload has the values of the tensors that the round shares, in the manifest's order, then the control
    variates of the same tensors if the method has them. After them, as little-endian int64, is the total of the
    private layers' noisy sums, if these layers are trained under privacy.

    Attributes:
        stage: what the round is for, a number of protos.wire.messages.Stage.
        layers: which of the manifest's layers take part, in hexadecimal as in an offer.
        best_round: the round whose received model had the lowest validation loss over all sites; -1 if none was
            measured.
        saves: whether the state after this round is written to disk before the reply.
        oldest: states of earlier rounds are not needed any more.
        scales: of short integers, in hexadecimal as in an offer.
    """

    round: int
    stage: int
    layers: str
    best_round: int
    payload: bytes | memoryview = field(repr=False)
    saves: bool = False
    oldest: int = 0
    scales: str = ""


@dataclass(frozen=True, slots=True)
class Conclude:
    """The gate instructs the trainer to choose and test a model and to write the report.

    The payload has final parameters. Other fields are as in Train.
    """

    round: int
    layers: str
    best_round: int
    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Agreed(WithoutPayload):
    """The trainer reports to the gate that it has carried out Check or Conclude."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """The trainer reports to the gate that the network is built, with the digest of the manifest computed from it.

    The payload is the states on the trainer's disk, as pairs of little-endian int64: the round that each continues
    with, and which draw of the round before led to it. It is empty if this site has not trained in the run.
    """

    manifest_digest: str
    payload: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Trained:
    """The trainer returns to the gate the numbers that it computed in a round, and nothing else.

    The payload is the updates in the manifest's order, as little-endian float32 or as short integers. Then
    follow the exchange's scalars without "rows" as little-endian int64. After them are the noisy sums of private
    layers, which stay at the gate. `rows` is
    the number of training rows on the public grid, 0 if the plan does not weigh by it. `void` is the number of a
    SiteReason if this site's rows do not allow an answer, otherwise 0. Then the payload is empty, and the gate sends a
    void. `memory` is the head of the trainer's memory of answered values, empty under a plan with privacy.
    """

    round: int
    rows: int
    payload: bytes | memoryview = field(repr=False)
    void: int = 0
    memory: str = ""

    def __post_init__(self) -> None:
        if self.void:
            SiteReason(self.void)
        if len(self.memory) not in (0, 64) or set(self.memory) - set("0123456789abcdef"):
            raise ValueError("no digest of 32 bytes")


@dataclass(frozen=True, slots=True)
class Failed(WithoutPayload):
    """The trainer reports a failure to the gate: a reason from a fixed list, and a federated tensor's name or no name.

    The trainer itself prints the explanation, because it can concern patients.
    """

    reason: int
    exit_status: int
    tensor: str = ""

    def __post_init__(self) -> None:
        SiteReason(self.reason)


Message: TypeAlias = Check | Prepare | Train | Conclude | Agreed | Prepared | Trained | Failed
_KINDS: Final[tuple[type[Message], ...]] = (Check, Prepare, Train, Conclude, Agreed, Prepared, Trained, Failed)
FRAMING: Final = Framing[Message](b"GLH1", _KINDS)


class TrainerGone(OperatorError):
    """Raised when the trainer process ended while the gate process still needed the trainer."""

    code = "E015"


class TrainerEnd:
    """The trainer's end of the trainer socket, which blocks and handles one message at a time."""

    def __init__(self, connection: socket.socket, idle: Callable[[], None] = lambda: None) -> None:
        """`idle` is a function that runs after every second in which no byte is received or sent."""
        self._socket, self._idle = widen(connection), idle
        self._reader = FrameReader(self._socket, FRAMING)
        # A second without a byte is no error, because hours can pass between two requests of a study.
        self._socket.settimeout(_IDLE_SECONDS)
        self.largest_payload = LARGEST_PLAN_BYTES

    def receive(self) -> Message | None:
        """Return the next message from the gate process, or None when the gate process has closed the connection."""
        reading = self._reader.read(lambda _: self.largest_payload)
        while True:
            try:
                next(reading)
            except StopIteration as read:
                found: Message = read.value
                return found
            except ConnectionResetError:
                return None
            self._idle()

    def send(self, message: Message) -> None:
        rest = [memoryview(FRAMING.frame(message)), memoryview(message.payload)]
        while rest:
            try:
                written = self._socket.sendmsg(rest)  # header and payload together wake the gate once
            except TimeoutError:
                self._idle()
                continue
            while rest and written >= len(rest[0]):
                written -= len(rest.pop(0))
            if rest:
                rest[0] = rest[0][written:]


class GateEnd:
    """The gate's end of the trainer socket, asynchronous, with one request at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = FramedSocket(connection, FRAMING)

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """Send a message and return the trainer's reply, whose payload has at most `largest_payload` bytes.

        Raises:
            TrainerGone: the trainer has ended.
            MalformedMessage: the reply is none of this socket's messages.
        """
        try:
            self._socket.post(message)
            return await self._socket.receive(lambda _: largest_payload)
        except OSError as cause:
            raise _gone() from cause

    def require(self) -> None:
        """Check, only between requests, that the trainer is connected. Raises TrainerGone if it has ended."""
        if self._socket.has_ended():
            raise _gone()

    def close(self) -> None:
        """Close the connection to the trainer. The trainer then ends too."""
        self._socket.close()


def _gone() -> TrainerGone:
    return TrainerGone(
        what="The trainer of this site has ended.",
        consequence="Nothing from this round was sent.",
        remedy="Read the last message of the trainer. If there is no message, `dmesg` shows whether the operating "
        "system stopped the trainer because memory ran out. The services start again by themselves. At a terminal, run "
        "`site-agent join` again. The run then continues.",
    )
