"""Limits how many sites send or receive a chunk of parameters at one time, so that more sites need no more memory.

gRPC stores a message completely, and several times while it is encrypted and copied. With turns, only a few chunks are
in memory. One `Turns` is for received chunks, another for sent chunks. The rules:

* at most `MOST_CHUNKS_AT_ONCE` streams have a turn, in the order of their requests;
* a stream that does not finish a chunk within `PATIENCE_SECONDS` passes its turn to the next one, and finishes without
  a turn. So a slow or hostile peer delays no other for longer, and costs only its own chunk;
* its next chunks need no turn either, until one is in time again. So a slow connection is as fast as without turns;
* if the plan has more than 16 sites, a site sends `Ready` before its chunks. A contribution of at most 64 KiB needs no
  `Ready` and no turn.

So turns never limit the coordinator to less than sixteen chunks in a tenth of a second, at least 84 MB in a second.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from protos.wire.messages import MOST_CHUNKS_AT_ONCE

PATIENCE_SECONDS: Final = 0.1


class Turns:
    """Limits how many streams have a turn at one time."""

    def __init__(self, count: int = MOST_CHUNKS_AT_ONCE, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.patience_seconds = patience_seconds
        self._free = asyncio.Semaphore(count)

    def of_one_stream(self) -> Turn:
        """Return a Turn for one site's stream. The stream waits for it before each chunk that it sends or receives."""
        return Turn(self, self._free)


class Turn:
    """Lets one stream send or receive one chunk: an asynchronous context manager, entered again for each chunk."""

    def __init__(self, turns: Turns, free: asyncio.Semaphore) -> None:
        self._turns, self._free = turns, free
        self._is_held = self._is_slow = False
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._is_slow:
            await self._free.acquire()
            self._is_held = True
            self._timer = loop.call_later(self._turns.patience_seconds, self._give_up)
        self._began = loop.time()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_slow = asyncio.get_running_loop().time() - self._began > self._turns.patience_seconds
        self._give_up()

    def _give_up(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._is_held:
            self._is_held = False
            self._free.release()
