"""The layout of a contribution's vector in chunks: the place of every number in memory and in a message.

A chunk is `check | scalars | updates`, little-endian: one 64-bit 1, whose sum must be the number of
sites; in the last chunk the scalars as 64-bit integers; then up to 262,144 updates as 32-bit
integers. The whole vector is one buffer of these chunks end to end, so a chunk is sent, masked and
added where it lies, without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

CHUNK_PARAMETERS: Final = 1 << 18  # 1 MiB: with half of it a round costs 4% more processor time
_WORD: Final = 8

Integers32 = npt.NDArray[np.int32]
Integers64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The chunks of a vector with this many updates and scalars."""

    parameters: int
    scalars: int

    @property
    def chunks(self) -> int:
        """The number of chunks, at least one: an empty vector has a check too."""
        return max(1, -(-self.parameters // CHUNK_PARAMETERS))

    @property
    def total_bytes(self) -> int:
        """The size of the whole vector in bytes."""
        return 4 * self.parameters + _WORD * (self.scalars + self.chunks)

    def chunk_bytes(self, index: int) -> int:
        """Return the size of one chunk in bytes."""
        return _WORD * self.words_in(index) + 4 * self._updates(index)

    def start(self, index: int) -> int:
        """Return where a chunk begins in the buffer, in bytes. This is always a multiple of eight."""
        return index * (4 * CHUNK_PARAMETERS + _WORD)

    def updates_slice(self, index: int) -> slice:
        """Return which numbers of the vector a chunk contains."""
        return slice(index * CHUNK_PARAMETERS, index * CHUNK_PARAMETERS + self._updates(index))

    def body(self, buffer: bytearray | memoryview, index: int) -> memoryview:
        """Return one chunk's bytes as a view, without a copy."""
        start = self.start(index)
        return memoryview(buffer)[start : start + self.chunk_bytes(index)]

    def words(self, body: bytes | memoryview, index: int) -> Integers64:
        """Return a view of the check and, in the last chunk, the scalars: int64 of shape (1 + scalars,)."""
        return np.frombuffer(body, "<i8", self.words_in(index))

    def updates(self, body: bytes | memoryview, index: int) -> Integers32:
        """Return a view of the encoded updates: int32 of shape (n,)."""
        return np.frombuffer(body, "<i4", self._updates(index), offset=_WORD * self.words_in(index))

    def words_in(self, index: int) -> int:
        """Return the number of 64-bit integers at the beginning of a chunk."""
        return 1 + (self.scalars if index == self.chunks - 1 else 0)

    def _updates(self, index: int) -> int:
        return min(CHUNK_PARAMETERS, self.parameters - index * CHUNK_PARAMETERS)
