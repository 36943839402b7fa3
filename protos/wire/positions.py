"""Computes digests of the shared parameters.

The parameters are sent to sites as one float32 vector, in the manifest's order. The digest of the vector is BLAKE3 of
its little-endian bytes. A position identifies the computation that a site is requested to do: the run, the round and
everything that was sent for the round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from protos.plan.canonical import digest, pack
from protos.wire.messages import Finish, Offer

DOWN_CHUNK_BYTES: Final = 1 << 19  # the fastest size between 256 KiB and 1 MiB in measurements


def parameters_digest(vector: npt.NDArray[np.float32]) -> bytes:
    """Return the BLAKE3 digest (32 bytes) of a vector, float32 of shape (parameters,)."""
    return bytes(blake3(vector.view(np.uint8).data, max_threads=blake3.AUTO).digest())


def arrays_digest(subject: str, arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return the BLAKE3 digest of a subject and its arrays (names, types, shapes, values), 32 bytes."""
    digest = blake3(pack("arrays", subject))
    for name, array in sorted(arrays.items()):
        digest.update(pack(name, array.dtype.str, str(array.shape)))
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return bytes(digest.digest())


def position(run: str, offer: Offer) -> bytes:
    """Return the SHA-256 (32 bytes) of the run and of each part of an offer that decides a site's contribution."""
    best = 0 if offer.best_round is None else 1 + offer.best_round
    facts = offer.parameters_digest, offer.stage, offer.layers, best, offer.scales, offer.summed_rows
    return digest("position", run, offer.round, *facts)


def received_position(run: str, message: Offer | Finish) -> bytes:
    """Return the SHA-256 (32 bytes) that names the bytes after an offer or a result, and what they are for."""
    if isinstance(message, Offer):
        here = position(run, message)
    else:
        best = 0 if message.best_round is None else 1 + message.best_round
        here = digest("result", run, message.round, message.parameters_digest, message.layers, best)
    return digest("sum", here) if message.is_sum else here


def down_chunks(size: int) -> int:
    """Return the number of chunks in which so many bytes of parameters, or of a sum, are sent to sites."""
    return -(-size // DOWN_CHUNK_BYTES)


def down_slice(index: int) -> slice:
    """Return which bytes are in chunk `index`. The last chunk may be shorter."""
    return slice(index * DOWN_CHUNK_BYTES, (index + 1) * DOWN_CHUNK_BYTES)
