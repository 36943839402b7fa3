"""Defines where each number of a site's contribution is stored, in memory and in messages.

A chunk is `check | scalars | updates`, little-endian. The check is a 64-bit 1, whose sum must be the number of sites. A
site that may not send its numbers sends a void: random integers, and a check of 1 plus an odd multiple of 2**32.
Only the last chunk has the scalars, as 64-bit integers. Then follow updates as integers of 8, 16 or 32 bits, up to
1 MiB of them. The vector is one buffer of these chunks, so a chunk is sent, masked and added without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from protos.numbers.short_integers import Integers

CHUNK_PARAMETERS: Final = 1 << 18  # of 32 bits
_CHUNK_BYTES: Final = 4 * CHUNK_PARAMETERS  # chunks of half this size cost 4% more processor time in a round
_WORD: Final = 8

Integers64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """The division of a vector with this many updates of so many bits, and scalars, into chunks."""

    parameters: int
    scalars: int
    bits: int = 32

    @property
    def width(self) -> int:
        """Return the number of bytes of an update."""
        return self.bits // 8

    @property
    def chunk_parameters(self) -> int:
        """Return the number of updates in every chunk but the last."""
        return _CHUNK_BYTES // self.width

    @cached_property
    def chunks(self) -> int:
        """Return the number of chunks of a vector. It is at least 1, because an empty vector also has a check."""
        return max(1, -(-self.parameters // self.chunk_parameters))

    @cached_property
    def total_bytes(self) -> int:
        return self.width * self.parameters + _WORD * (self.scalars + self.chunks)

    def chunk_bytes(self, index: int) -> int:
        return _WORD * self.words_in(index) + self.width * self._updates(index)

    def start(self, index: int) -> int:
        """Return where a chunk begins in the buffer, in bytes. The result is always a multiple of eight."""
        return index * (_CHUNK_BYTES + _WORD)

    def updates_slice(self, index: int) -> slice:
        """Return which updates of the vector a chunk contains."""
        start = index * self.chunk_parameters
        return slice(start, start + self._updates(index))

    def body(self, buffer: bytearray | memoryview, index: int) -> memoryview:
        """Return one chunk's bytes as a view, without copying the bytes."""
        start = self.start(index)
        return memoryview(buffer)[start : start + self.chunk_bytes(index)]

    def words(self, body: bytes | memoryview, index: int) -> Integers64:
        """Return a view of the check and, in the last chunk, the scalars: int64 of shape (1 + scalars,)."""
        return np.frombuffer(body, "<i8", self.words_in(index))

    def updates(self, body: bytes | memoryview, index: int) -> Integers:
        """Return a view of the encoded updates: signed integers of shape (n,)."""
        return np.frombuffer(body, f"<i{self.width}", self._updates(index), offset=_WORD * self.words_in(index))

    def void(self, body: memoryview, index: int) -> None:
        """Turn a chunk of random bytes into that of a void, in place."""
        check = self.words(body, index)[:1]
        check[...] = ((check | 1) << 32) | 1

    def words_in(self, index: int) -> int:
        """Return the number of 64-bit integers at the beginning of a chunk."""
        return 1 + (self.scalars if index == self.chunks - 1 else 0)

    def _updates(self, index: int) -> int:
        return min(self.chunk_parameters, self.parameters - index * self.chunk_parameters)
