"""The trainer socket: the one socket between a site's two processes, and every message that passes it.

On one side the agent, which has the network and never sees a patient; on the other the trainer,
which has the patients and no network. What passes towards the agent is exactly what may leave the
site, so there is no free text among it. A frame is a fixed header, a small JSON object and raw
bytes; sizes are checked before memory is reserved, and nothing is ever unpickled.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Final, TypeAlias

from protos.errors import OperatorError
from protos.plan.plan import LARGEST_PLAN_BYTES
from protos.wire.messages import MalformedMessage, SiteReason

_HEADER: Final = struct.Struct("<4sBIQ")  # magic, kind, bytes of JSON, bytes of payload
_MAGIC: Final = b"GLH1"
_LARGEST_FACTS_BYTES: Final = 4096
_SOCKET_BYTES: Final = 4 << 20  # the kernel may grant less; each refill costs a change of process
_LARGE_BYTES: Final = 4 << 20
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
    """To the trainer: make a round from the payload, exactly what came down for it as little-endian float32.

    First the values of the tensors that the round's exchange lets down, in the manifest's order, then
    the control variates of the same tensors where the method has them.

    Attributes:
        redraw: 0 for the ordinary draw; otherwise the same step again from its start, with batches drawn
            afresh by a generator keyed by this number.
        stage: what the round is for, a number of protos.wire.messages.Stage.
        layers: which of the manifest's layers take part, in hexadecimal as an offer carries them.
        best_round: the round whose received model had the lowest validation loss over all sites, -1 where
            none was measured.
        saves: the state after this round goes to disk before the answer.
        oldest: states of earlier rounds are not needed any more.
    """

    round: int
    redraw: int
    stage: int
    layers: str
    best_round: int
    payload: bytes | memoryview = field(repr=False)
    saves: bool = False
    oldest: int = 0


@dataclass(frozen=True, slots=True)
class Conclude:
    """To the trainer: the payload is the last aggregate; choose, test, report. Layers and best round as in Train."""

    round: int
    layers: str
    best_round: int
    payload: bytes | memoryview = field(repr=False)


@dataclass(frozen=True, slots=True)
class Agreed:
    """To the agent: what was asked is done (Check, Conclude)."""

    payload: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Prepared:
    """To the agent: the site's network is built; the digest of the manifest computed from it.

    The payload is the states on the trainer's disk, as pairs of little-endian int64: the round that one goes
    on with, and which draw of the round before led to it. Empty where this site has not trained in the run.
    """

    manifest_digest: str
    payload: bytes | memoryview = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Trained:
    """To the agent: what the round's exchange lets up, and nothing else.

    The payload is the changes as little-endian float32 in the manifest's order, then the exchange's
    scalars without "rows" as little-endian int64. `rows` is the number of training rows on the public
    grid, 0 where the plan does not weigh by it.
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


def _frame(message: Message) -> bytes:
    """Header and facts; the payload follows as it is."""
    facts = {item.name: getattr(message, item.name) for item in fields(message) if item.name != "payload"}
    text = json.dumps(facts, sort_keys=True).encode()
    return _HEADER.pack(_MAGIC, _KINDS.index(type(message)), len(text), len(message.payload)) + text


def _sizes(header: bytes, largest_payload: int) -> tuple[type[Message], int, int]:
    magic, kind, facts, payload = _HEADER.unpack(header)
    if magic != _MAGIC or kind >= len(_KINDS) or facts > _LARGEST_FACTS_BYTES or payload > largest_payload:
        raise MalformedMessage("a frame that this trainer socket does not know")
    return _KINDS[kind], facts, payload


def _build(kind: type[Message], text: bytes, payload: bytes | memoryview) -> Message:
    try:
        facts = json.loads(text)
        wanted = {item.name: item.type for item in fields(kind) if item.name != "payload"}
        if type(facts) is not dict or set(facts) != set(wanted):
            raise ValueError
        for name, value in facts.items():
            if type(value).__name__ != wanted[name]:
                raise ValueError
        return kind(**facts, payload=payload)
    except (ValueError, RecursionError) as cause:
        raise MalformedMessage("a frame whose facts are wrong") from cause


def _space(count: int) -> memoryview:
    """Memory to be filled at once. A model's worth comes in large pages: a third of the time to touch."""
    if count < _LARGE_BYTES:
        return memoryview(bytearray(count))
    space = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    space.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(space)


def _widen(connection: socket.socket) -> socket.socket:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
    return connection


class TrainerGone(OperatorError):
    """The process with the patients has ended while the agent needed it."""

    code = "E015"


class TrainerEnd:
    """The trainer's end: blocking, one message at a time."""

    def __init__(self, connection: socket.socket, idle: Callable[[], None] = lambda: None) -> None:
        """`idle` is called every second in which the agent neither asks nor takes anything."""
        self._socket, self._idle = _widen(connection), idle
        # A whole second without a byte is no fault: a study has hours in which nothing is asked.
        self._socket.settimeout(_IDLE_SECONDS)
        self.largest_payload = LARGEST_PLAN_BYTES

    def receive(self) -> Message | None:
        """The next message, or None when the agent has gone."""
        header = self._exactly(_HEADER.size)
        if header is None:
            return None
        kind, facts_bytes, payload_bytes = _sizes(bytes(header), self.largest_payload)
        text, payload = self._exactly(facts_bytes), self._exactly(payload_bytes)
        if text is None or payload is None:
            return None
        return _build(kind, bytes(text), payload)

    def send(self, message: Message) -> None:
        """Write one message whole."""
        for part in (_frame(message), message.payload):
            rest = memoryview(part)
            while rest:
                try:
                    rest = rest[self._socket.send(rest) :]
                except TimeoutError:
                    self._idle()

    def _exactly(self, count: int) -> memoryview | None:
        buffer = _space(count)
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


class AgentEnd:
    """The agent's end: asynchronous, one question at a time."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = _widen(connection)

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """Send a message and wait for its answer.

        Args:
            message: the question.
            largest_payload: the most bytes that what was asked may be answered with.

        Raises:
            TrainerGone: it has ended.
            MalformedMessage: the answer is none of this trainer socket's.
        """
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._socket, _frame(message))
            await loop.sock_sendall(self._socket, message.payload)
            kind, facts_bytes, payload_bytes = _sizes(bytes(await self._exactly(_HEADER.size)), largest_payload)
            text = bytes(await self._exactly(facts_bytes))
            return _build(kind, text, await self._exactly(payload_bytes))
        except OSError as cause:
            raise TrainerGone(
                what="The trainer of this site has ended.",
                consequence="Nothing of this round left this site.",
                remedy="Read the trainer's last message, then start the site agent again.",
            ) from cause

    def close(self) -> None:
        """End the conversation; the trainer ends too."""
        self._socket.close()

    async def _exactly(self, count: int) -> memoryview:
        loop = asyncio.get_running_loop()
        buffer = _space(count)
        filled = 0
        while filled < count:
            received = await loop.sock_recv_into(self._socket, buffer[filled:])
            if received == 0:
                raise ConnectionResetError
            filled += received
        return buffer
