"""Wrong chunks, and the model at the end of a run without them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Chunk, SiteMessage
from tests.federation import encoded, update_of

THREE_CHUNKS = 600_000
Meddle = Callable[[Chunk], list[SiteMessage]]


def undisturbed(plan: Plan) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The result of one round among these sites."""
    zeros = np.zeros(manifest_of(plan).parameters, np.float32)
    total = np.sum([encoded(plan, update_of(site, 0, zeros)) for site in plan.site_names], axis=0, dtype=np.int64)
    scale = 2.0 ** np.floor(np.log2(((1 << 31) - 1) // len(plan.sites) / plan.masking.clipping_range))
    mean: np.ndarray[Any, np.dtype[np.float32]] = (total / (scale * len(plan.sites))).astype(np.float32)
    return mean


def flipped(chunk: Chunk) -> Chunk:
    """The chunk with one bit of its last number changed."""
    body = bytearray(chunk.body)
    body[-1] ^= 1
    return replace(chunk, body=bytes(body))


def wrong_masks(chunk: Chunk) -> Chunk:
    """As a site that forgot a pair: noise of its own on every number."""
    generator = np.random.default_rng(chunk.index)
    return replace(chunk, body=generator.bytes(len(chunk.body)))


def shifted(chunk: Chunk) -> Chunk:
    """As a site whose vector lies four bytes further on."""
    return replace(chunk, body=bytes(chunk.body[4:]) + bytes(chunk.body[:4]))
