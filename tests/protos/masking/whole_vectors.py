"""Masking of a whole vector, as a site does it chunk by chunk."""

from __future__ import annotations

from protos.masking.mask_stream import Masker
from protos.numbers.chunk_layout import Layout


def mask_whole(masker: Masker, layout: Layout, vector: bytearray) -> None:
    """Add the masks to every chunk of a vector, in place."""
    for index in range(layout.chunks):
        body = layout.body(vector, index)
        body[:] = masker.masked(body, index)
