"""Sends messages to one site in sequence. Limits the number of bytes that wait until the site reads them.

Small messages are sent together as one if the site supports that. gRPC has a cost for each message, and a small round
has three messages.

A site that does not read costs this program at most `MOST_WAITING_BYTES`, one chunk, and a few vectors that are views
of the run's own memory. Beyond that, or if no message was read for `STALLED_SECONDS`, its stream is ended. An honest
site reconnects and continues. A chunk of 512 KiB needs 4 seconds at 1 Mbit/s.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.wire.codec import encode_coordinator_message, put_together
from protos.wire.messages import (
    MOST_TOGETHER,
    MOST_TOGETHER_BYTES,
    Chunk,
    CoordinatorMessage,
    CoordinatorReason,
    Farewell,
)
from protos.wire.positions import down_chunks, down_slice
from protos.wire.upkeep_messages import Upkeep

MOST_WAITING_BYTES: Final = 4 << 20
MOST_WAITING_VECTORS: Final = 8
STALLED_SECONDS: Final = 120.0
_LOOKS: Final = 8  # the number of checks within STALLED_SECONDS
_SMALL_BYTES: Final = MOST_TOGETHER_BYTES // 2
_MESSAGES_KEPT: Final = 2  # of one vector; the peers read almost at the same time
_LEAST_BYTES: Final = 1024  # a smaller message counts as this size, because each message has a fixed cost


@dataclass(frozen=True, slots=True)
class Caller:
    """The peer that opened a stream, as proved by its certificate."""

    site: str
    certificate_sha256: str


class Writing(Protocol):
    """Writes messages to the peer, and waits while the peer does not read."""

    def write(self, message: bytes) -> Awaitable[None]:
        """Send one message to the connected program."""


class _Vector:
    """Parameters, or a sum, that wait to be sent. They are divided into chunks only when a peer reads."""

    def __init__(self, parameters: npt.NDArray[np.generic], round_number: int, attempt: int) -> None:
        self.parameters, self.of = parameters, (round_number, attempt)
        self._newest: dict[int, bytes] = {}

    def message(self, index: int) -> bytes:
        """Return a chunk as a message. The newest messages are kept, because other peers soon read the same chunks."""
        if index not in self._newest:
            if len(self._newest) == _MESSAGES_KEPT:
                del self._newest[next(iter(self._newest))]
            body = self.parameters.view(np.uint8)[down_slice(index)].data
            self._newest[index] = encode_coordinator_message(Chunk(*self.of, index, body))
        return self._newest[index]


class Vectors:
    """Lets the streams of all peers send the same encoded chunks."""

    def __init__(self) -> None:
        self._newest: _Vector | None = None

    def of(self, parameters: npt.NDArray[np.generic], round_number: int, attempt: int) -> _Vector:
        """Return the newest vector if it is this one, or a new one."""
        newest = self._newest
        if newest is None or newest.parameters is not parameters or newest.of != (round_number, attempt):
            newest = self._newest = _Vector(parameters, round_number, attempt)
        return newest


@dataclass(frozen=True, slots=True)
class _Rest:
    """The chunks of a vector from `first` on."""

    vector: _Vector
    first: int


_Item: TypeAlias = bytes | _Rest | None


class StreamPeer:
    """Sends messages on one site's stream."""

    def __init__(
        self,
        context: Writing,
        caller: Caller,
        vectors: Vectors | None = None,
        moved: Callable[[int, int], None] = lambda *_: None,
    ) -> None:
        """Create the queue.

        Streams with the same `vectors` send the same encoded chunks. After each chunk of many, `moved` gets the number
        of bytes of the vector that the line has taken, and that of all its bytes.
        """
        self.caller, self._context = caller, context
        self._of_all, self._moved = vectors or Vectors(), moved
        self._queue: asyncio.Queue[_Item] = asyncio.Queue()
        self._bytes = self._vectors = 0
        self.ending = asyncio.Event()
        self.does_not_read = self.reads_together = self.reads_sums = False
        self._handing_over_since = math.inf

    @property
    def has_waiting(self) -> bool:
        return not self._queue.empty()

    def send(self, message: CoordinatorMessage | Upkeep) -> None:
        self._put(encode_coordinator_message(message))

    def send_parameters(
        self, parameters: npt.NDArray[np.generic], round_number: int, attempt: int, first_chunk: int = 0
    ) -> None:
        self._put(_Rest(self._of_all.of(parameters, round_number, attempt), first_chunk))

    def end(self, reason: CoordinatorReason, detail: str) -> None:
        self._put(encode_coordinator_message(Farewell(reason, detail)))
        self._put(None)
        self.ending.set()

    async def write(self) -> None:
        """Send waiting messages until the connection ends, or until the site has read nothing for STALLED_SECONDS."""
        writing = asyncio.ensure_future(self._write())
        try:
            # We check at intervals and start no timer for each message: a round has many messages, and nearly all are
            # read at once.
            while not (await asyncio.wait({writing}, timeout=STALLED_SECONDS / _LOOKS))[0]:
                if asyncio.get_running_loop().time() - self._handing_over_since > STALLED_SECONDS:
                    self.does_not_read = True
                    return
            await writing
        finally:
            writing.cancel()

    async def _write(self) -> None:
        item = await self._queue.get()
        while item is not None:
            self._count(item, -1)
            if (small := self._small(item)) is not None:
                item = await self._write_together(small)
                continue
            if isinstance(item, bytes):
                await self._hand_over(item)
            else:
                whole = item.vector.parameters.nbytes
                for index in range(item.first, down_chunks(whole)):
                    await self._hand_over(item.vector.message(index))
                    self._moved(min(whole, down_slice(index).stop), whole)
            item = await self._queue.get()

    async def _write_together(self, first: bytes) -> _Item:
        """Send a small message with the small messages after it. Return the first queued item that was not sent."""
        together, size, after = [first], len(first), list[_Item]()
        while not (after or self._queue.empty()) and self.reads_together and len(together) < MOST_TOGETHER:
            item = self._queue.get_nowait()
            small = self._small(item)
            if small is None or size + len(small) > MOST_TOGETHER_BYTES:
                after.append(item)
                continue
            self._count(item, -1)
            together.append(small)
            size += len(small)
        await self._hand_over(put_together(together))
        return after[0] if after else await self._queue.get()

    def _small(self, item: _Item) -> bytes | None:
        """Return the item as a message that can be sent with others, or None. A small vector is one chunk."""
        if isinstance(item, _Rest) and self.reads_together and 0 < item.vector.parameters.nbytes <= _SMALL_BYTES:
            return item.vector.message(0)
        return item if isinstance(item, bytes) and len(item) <= MOST_TOGETHER_BYTES else None

    async def _hand_over(self, message: bytes) -> None:
        self._handing_over_since = asyncio.get_running_loop().time()
        await self._context.write(message)
        self._handing_over_since = math.inf

    def _put(self, item: _Item) -> None:
        if self.does_not_read:
            return
        self._count(item, 1)
        if self._bytes > MOST_WAITING_BYTES or self._vectors > MOST_WAITING_VECTORS:
            self.does_not_read = True
            self.ending.set()
            return
        self._queue.put_nowait(item)

    def _count(self, item: _Item, sign: int) -> None:
        if isinstance(item, bytes):
            self._bytes += sign * max(_LEAST_BYTES, len(item))
        elif item is not None:
            self._vectors += sign
