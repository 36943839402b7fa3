"""Sends messages between two processes of one site. A message has a fixed header, a JSON object and raw bytes.

The gate socket and the trainer socket use this file, each with a magic word and a fixed list of record types. The
rules:

* a size is checked before memory is reserved, and each kind of message has a largest size of its own;
* the facts of a message are exactly the fields of its record, each of exactly its type;
* nothing is ever unpickled, and no faulty message is repaired.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from functools import partial
from itertools import islice
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar, cast

from protos.wire.messages import MalformedMessage

HEADER: Final = struct.Struct("<4sBIQ")  # magic, kind, bytes of JSON, bytes of payload
_LARGEST_FACTS_BYTES: Final = 1 << 15  # two characters for each of at most 16,000 layers
# The kernel can grant fewer bytes; each time the buffer is full, the computer must switch processes.
_SOCKET_BYTES: Final = 4 << 20
AHEAD_BYTES: Final = 16 << 10  # read at once, so that a small message needs only one system call
_MOST_PARTS: Final = 64
MOST_AT_ONCE: Final = 64  # messages that a listener receives before the event loop continues with other tasks
_PART: Final = struct.Struct("<I")
_JSON: Final = json.JSONEncoder(sort_keys=True)
_LARGE: Final = 1 << 18
kept_memory: Final = deque[bytearray](maxlen=12)  # large, in use or free; cleared after a run
Found = TypeVar("Found")


class Record(Protocol):
    """A message as a frozen record: facts of the types str, int and bool, and a payload of bytes."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]  # Any: the type in dataclasses

    @property
    def payload(self) -> bytes | memoryview:
        """The raw bytes at the end of a message, after its JSON object."""


@dataclass(frozen=True, slots=True)
class WithoutPayload:
    """A message that has only facts."""

    payload: bytes | memoryview = field(default=b"", repr=False, kw_only=True)


Message = TypeVar("Message", bound=Record)
_Reading: TypeAlias = Generator[None, None, Message]


class Framing(Generic[Message]):
    """Converts the messages of one socket to bytes and back. A message kind's number is its place in `kinds`."""

    def __init__(self, magic: bytes, kinds: tuple[type[Message], ...]) -> None:
        self._magic, self._kinds = magic, kinds
        self._facts = {
            kind: {item.name: item.type for item in fields(kind) if item.name != "payload"} for kind in kinds
        }

    def frame(self, message: Message, more: int = 0) -> bytes:
        """Return the first bytes of a message: the header and the facts. Payload and `more` further bytes follow."""
        facts = {name: getattr(message, name) for name in self._facts[type(message)]}
        text = _JSON.encode(facts).encode()
        return HEADER.pack(self._magic, self._kinds.index(type(message)), len(text), len(message.payload) + more) + text

    def sizes(
        self, header: bytes | memoryview, largest_payload: Callable[[type[Message]], int]
    ) -> tuple[type[Message], int, int]:
        """Return a message's kind, and how many bytes its facts and its payload have. `largest_payload` is in bytes.

        Raises:
            MalformedMessage: there is no such kind, or the payload is larger than that.
        """
        magic, number, facts, payload = HEADER.unpack(header)
        if magic != self._magic or number >= len(self._kinds) or facts > _LARGEST_FACTS_BYTES:
            raise MalformedMessage("a frame that this socket does not have")
        kind = self._kinds[number]
        if payload > largest_payload(kind):
            raise MalformedMessage("a frame that is larger than its kind")
        return kind, facts, payload

    def build(self, kind: type[Message], text: bytes | memoryview, payload: bytes | memoryview) -> Message:
        """Return the message that consists of these facts (JSON) and this payload.

        Raises:
            MalformedMessage: the facts are not exactly those of this kind, or the record refuses them.
        """
        try:
            facts = json.loads(str(text, "utf-8"))
            wanted = self._facts[kind]
            if type(facts) is not dict or facts.keys() != wanted.keys():
                raise ValueError
            for name, value in facts.items():
                if type(value).__name__ != wanted[name]:
                    raise ValueError
            return cast("Callable[..., Message]", kind)(**facts, payload=payload)
        except (ValueError, RecursionError) as cause:
            raise MalformedMessage("a frame whose facts are wrong") from cause


class FrameReader(Generic[Message]):
    """Reads whole messages from a socket that does not block, or only for a limited time."""

    def __init__(self, connection: socket.socket, framing: Framing[Message]) -> None:
        self._socket, self._framing = connection, framing
        self.unread = b""  # received, and not passed on yet

    def read(self, largest_payload: Callable[[type[Message]], int]) -> _Reading[Message]:
        """Read a message in steps. Each `yield` means that the bytes after it have not arrived yet."""
        header = yield from self._exactly(HEADER.size)
        kind, facts_bytes, payload_bytes = self._framing.sizes(header, largest_payload)
        text = yield from self._exactly(facts_bytes)
        return self._framing.build(kind, text, (yield from self._exactly(payload_bytes)))

    def _exactly(self, count: int) -> Generator[None, None, memoryview]:
        """Return the next `count` bytes in memory of their own. Small counts are read with the bytes after them."""
        while len(self.unread) < count <= AHEAD_BYTES:
            self.unread += yield from _waited(partial(self._socket.recv, AHEAD_BYTES))
        buffer, filled = memory_for(count), min(count, len(self.unread))
        buffer[:filled], self.unread = self.unread[:filled], self.unread[filled:]
        while filled < count:
            filled += yield from _waited(partial(self._socket.recv_into, buffer[filled:]))
        return buffer


def _waited(read: Callable[[], Found]) -> Generator[None, None, Found]:
    """Return what a call on a socket reads. Each `yield` means that no bytes have arrived yet."""
    while True:
        try:
            found = read()
        except (BlockingIOError, TimeoutError):
            yield
            continue
        if not found:
            raise ConnectionResetError
        return found


class FramedSocket(Generic[Message]):
    """One end of an asynchronous socket that sends and receives whole messages.

    Either one task receives, or a function listens. No payload is copied before it is written. A large payload is read
    into the memory that the receiver gets, and only its first AHEAD_BYTES are copied.

    This object takes over the given socket, and no other object may close this socket. The reason is that the event
    loop watches the socket also between two messages. After a close elsewhere, the event loop would never report a new
    socket with the same file number. While no task receives and no function listens, nothing is read.
    """

    def __init__(self, connection: socket.socket, framing: Framing[Message]) -> None:
        self._socket, self._framing = widen(socket.socket(fileno=connection.detach())), framing
        self._socket.setblocking(False)
        self._waiting: deque[memoryview] = deque()  # queued, and not written yet
        self._reader = FrameReader(self._socket, framing)
        self._arrival: asyncio.Future[None]  # of the bytes for which a task waits
        self._watches: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    async def receive(self, largest_payload: Callable[[type[Message]], int]) -> Message:
        """Return the next message of the other process. Its payload must not exceed the largest size of its kind.

        Raises:
            OSError: the other side has closed.
            MalformedMessage: the bytes are none of this socket's messages.
        """
        reading, loop = self._reader.read(largest_payload), asyncio.get_running_loop()
        while True:
            try:
                next(reading)
            except StopIteration as read:
                found: Message = read.value
                return found
            self._arrival = loop.create_future()
            if self._watches is None:
                loop.add_reader(self._socket, self._arrived)
                self._watches = loop
            await self._arrival

    def listen(
        self,
        largest_payload: Callable[[type[Message]], int],
        take: Callable[[Message], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Pass each message to `take` as soon as it has arrived completely. After this call, no task may receive.

        A round has many small messages. A task would need one more turn of the event loop for each message. But an
        endless sequence of messages must not keep the other tasks waiting. So one turn passes at most MOST_AT_ONCE.

        Args:
            largest_payload: the largest payload of each kind of message, in bytes.
            failed: called once, after an error of `receive` or `take`. Then nothing more is read.
        """
        loop, reading = asyncio.get_running_loop(), self._reader.read(largest_payload)
        rest: asyncio.Handle | None = None

        def hear() -> None:
            nonlocal reading, rest
            if rest is not None:
                rest.cancel()
                rest = None
            if self._watches is None:  # the socket was closed before this turn
                return
            try:
                for _ in range(MOST_AT_ONCE):
                    try:
                        next(reading)
                        return
                    except StopIteration as read:
                        reading = self._reader.read(largest_payload)
                        take(read.value)
                    if self._is_over or not self._reader.unread:
                        return
            except Exception as error:  # the owner of the socket handles or reports it
                self._stop_watching()
                failed(error)
                return
            rest = loop.call_soon(hear)  # the kernel may have no further bytes to report

        loop.add_reader(self._socket, hear)
        self._watches = loop
        if self._reader.unread:
            rest = loop.call_soon(hear)

    def post(self, message: Message, body: bytes | memoryview = b"") -> None:
        """Queue one complete message without waiting. It is sent completely even if the calling task is cancelled.

        `body` is the end of its payload. It is read when it is written, so nobody may change it before that. If the
        other side has closed, the message is dropped, and `receive` raises the error.
        """
        if self._is_over:
            return
        is_idle = not self._waiting
        self._waiting += map(memoryview, (self._framing.frame(message, len(body)), message.payload, body))
        if is_idle:
            self._write()
            if self._waiting:
                asyncio.get_running_loop().add_writer(self._socket, self._write_more)

    @property
    def unsent(self) -> int:
        """Return how many parts of queued messages are not completely written yet. Each message has up to three."""
        return len(self._waiting)

    def has_ended(self) -> bool:
        """Return whether the other process closed the socket and all was read. Call this only if no task receives."""
        if self._reader.unread:
            return False
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close the connection to the other process. Queued messages that were not written yet are not sent.

        Copies of this socket do not keep the connection open.
        """
        if not self._is_over and self._waiting:
            asyncio.get_running_loop().remove_writer(self._socket)
        self._stop_watching()
        self._waiting.clear()
        self._is_over = True
        with suppress(OSError):  # the other process has closed it
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _write(self) -> None:
        try:
            while self._waiting:
                written = self._socket.sendmsg(list(islice(self._waiting, _MOST_PARTS)))
                while self._waiting and written >= len(self._waiting[0]):
                    written -= len(self._waiting.popleft())
                if written:
                    self._waiting[0] = self._waiting[0][written:]
        except BlockingIOError:
            return
        except OSError:  # the other process closed the socket; `receive` raises the error
            self._waiting.clear()

    def _write_more(self) -> None:
        self._write()
        if not self._waiting:
            asyncio.get_running_loop().remove_writer(self._socket)

    def _arrived(self) -> None:
        if self._arrival.done():
            self._stop_watching()  # nobody waits, so the bytes stay in the kernel until a task receives
        else:
            self._arrival.set_result(None)

    def _stop_watching(self) -> None:
        if self._watches is not None:
            self._watches.remove_reader(self._socket)
            self._watches = None


def memory_for(count: int) -> memoryview:
    """Return memory of `count` bytes with any content: large one that nothing refers to any more, or new one.

    New pages cost the system more time in a round than most of what is computed with them.
    """
    for one in kept_memory:
        if len(one) == count:
            with suppress(BufferError):  # something refers to it
                one.append(one.pop())
                return memoryview(one)
    new = bytearray(count)
    if count >= _LARGE:
        kept_memory.append(new)
    return memoryview(new)


def widen(connection: socket.socket) -> socket.socket:
    """Make the buffers of a socket large enough for several chunks in each direction, and return the socket."""
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        connection.setsockopt(socket.SOL_SOCKET, option, _SOCKET_BYTES)
    return connection


def packed(parts: Iterable[bytes]) -> bytes:
    """Join byte strings into one payload. Four little-endian bytes with the length precede each byte string."""
    return b"".join(_PART.pack(len(part)) + part for part in parts)


def unpacked(payload: bytes | memoryview, count: int) -> tuple[bytes, ...]:
    """Split a payload that `packed` made into `count` byte strings. Raises MalformedMessage: the number differs."""
    found, rest = list[bytes](), bytes(payload)
    for _ in range(count):
        if len(rest) < _PART.size:
            raise MalformedMessage("a payload with too few parts")
        (size,) = _PART.unpack(rest[: _PART.size])
        part, rest = rest[_PART.size : _PART.size + size], rest[_PART.size + size :]
        if len(part) != size:
            raise MalformedMessage("a payload whose part is cut off")
        found.append(part)
    if rest:
        raise MalformedMessage("a payload with too many parts")
    return tuple(found)
