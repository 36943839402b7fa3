"""The messages of an engine to a site, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from protos.wire.messages import Chunk, CoordinatorMessage, CoordinatorReason, Farewell
from tests.rehearsal.study import parameter_chunks


class QueuedStream:
    """The engine's end of a stream; as over a network, what is queued arrives later and one by one."""

    reads_sums = False

    def __init__(self) -> None:
        self.is_ending = False
        self._queue: deque[CoordinatorMessage | Iterator[Chunk]] = deque()

    def send(self, message: CoordinatorMessage) -> None:
        """Queue a message."""
        if not self.is_ending:
            self._queue.append(message)

    def send_parameters(
        self, parameters: npt.NDArray[np.generic], round_number: int, attempt: int, first_chunk: int = 0
    ) -> None:
        """Queue the vector; it is read when it is sent."""
        if not self.is_ending:
            chunks = (chunk for chunk in parameter_chunks(parameters, round_number, attempt))
            self._queue.append(chunk for chunk in chunks if chunk.index >= first_chunk)

    def end(self, reason: CoordinatorReason, detail: str) -> None:
        """Say why and end."""
        self.send(Farewell(reason, detail))
        self.is_ending = True  # what is queued afterwards is never sent

    @property
    def has_something(self) -> bool:
        """Whether anything may be on its way."""
        return bool(self._queue)

    def pop(self) -> CoordinatorMessage | None:
        """The next message on its way to the site."""
        while self._queue:
            first = self._queue[0]
            if not isinstance(first, Iterator):
                return self._queue.popleft()
            chunk = next(first, None)
            if chunk is not None:
                return chunk
            self._queue.popleft()
        return None
