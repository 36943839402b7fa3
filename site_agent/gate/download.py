"""Collects received parameters chunk by chunk, and accepts them only if their digest is correct.

Memory is reserved for the numbers of such a round under the approved plan, whatever is announced.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from host.heap import take_memory
from protos.wire.messages import Chunk, Finish, MalformedMessage, Offer
from protos.wire.positions import DOWN_CHUNK_PARAMETERS, down_chunks, down_slice


class Download:
    """One vector of parameters that the coordinator has announced."""

    def __init__(self, announced: Offer | Finish, numbers: int) -> None:
        self.announced = announced
        self.vector: npt.NDArray[np.float32] = np.frombuffer(take_memory(4 * numbers), "<f4")
        self._hash = blake3()
        self._next = 0

    @property
    def is_complete(self) -> bool:
        """Return whether all chunks have arrived."""
        return self._next == down_chunks(self.vector.size)

    def add(self, chunk: Chunk) -> None:
        """Add the next chunk. Raises MalformedMessage if the chunk is not the next one, or does not have its size."""
        attempt = self.announced.attempt if isinstance(self.announced, Offer) else 0
        if (chunk.round, chunk.attempt, chunk.index) != (self.announced.round, attempt, self._next) or self.is_complete:
            raise MalformedMessage("a chunk out of order")
        part = self.vector[down_slice(chunk.index)]
        if len(chunk.body) != 4 * part.size or part.size > DOWN_CHUNK_PARAMETERS:
            raise MalformedMessage("a chunk of the wrong size")
        part[...] = np.frombuffer(chunk.body, "<f4")
        self._hash.update(chunk.body)
        self._next += 1

    def check(self) -> None:
        """Check that the complete vector is the announced vector. Raises MalformedMessage if it is not."""
        if self._hash.digest() != self.announced.parameters_digest:
            raise MalformedMessage("parameters that are not what was announced")
