"""Limits how many sites send or receive a chunk of parameters at one time, so that more sites need no more memory.

gRPC keeps each message completely in memory, and several copies of it during encryption. With turns, only a few chunks
are in memory. The coordinator has one `Turns` for received chunks and one for sent chunks. The rules:

* at most `MOST_CHUNKS_AT_ONCE` streams have a turn, in the order of their requests;
* if a stream does not finish a chunk within `PATIENCE_SECONDS`, the next stream gets its turn. The slow stream finishes
  its chunk without a turn. So a slow or hostile site delays no other site for longer, and needs memory for one chunk;
* the next chunks of a slow stream need no turn, until one of them is fast enough. So a slow connection is as fast as
  without turns;
* if the plan has more than 16 sites, a site sends `Ready` before its chunks. A contribution of at most 64 KiB needs no
  `Ready` and no turn.

So in each tenth of a second, at least sixteen chunks can start. With full chunks of 1 MiB these are 168 MB a second.
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
        """Return a Turn for one site's stream. Before each sent or received chunk, the stream waits for its turn."""
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
