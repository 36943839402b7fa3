"""Federated parameters on their way down: one float32 vector in the manifest's order.

The digest of the vector is BLAKE3 of its little-endian bytes. A position names the computation that
a site is asked for: the run, the round and everything that was sent down for it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from protos.canonical import digest

DOWN_CHUNK_PARAMETERS: Final = 1 << 17  # 512 KiB: measured best between 256 KiB and 1 MiB


def parameters_digest(vector: npt.NDArray[np.float32]) -> bytes:
    """BLAKE3 of the bytes of a vector, float32 of shape (parameters,), 32 bytes."""
    return bytes(blake3(vector.view(np.uint8).data).digest())


def position(run: str, round_number: int, vector_digest: bytes) -> bytes:
    """SHA-256 of run, round and the digest of all that was sent down for it, 32 bytes."""
    return digest("position", run, round_number, vector_digest)


def down_chunks(parameters: int) -> int:
    """In how many chunks a vector of so many numbers is sent down."""
    return -(-parameters // DOWN_CHUNK_PARAMETERS)


def down_slice(index: int) -> slice:
    """The part of the vector that chunk `index` holds; the last one may end early."""
    return slice(index * DOWN_CHUNK_PARAMETERS, (index + 1) * DOWN_CHUNK_PARAMETERS)
