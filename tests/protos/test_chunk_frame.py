"""A chunk's frame written by hand equals protobuf's in both directions, and anything else is refused."""

from __future__ import annotations

import numpy as np

from protos.wire.codec import (
    decode_coordinator_message,
    encode_coordinator_message,
)
from protos.wire.generated import federation_pb2 as generated
from protos.wire.messages import Chunk, MalformedMessage
from tests.for_each import for_each


def drawn_chunk(seed: int) -> Chunk:
    """A chunk with numbers of every width of a varint."""
    generator = np.random.default_rng(seed)
    width = int(generator.integers(0, 32))
    round_number = int(generator.integers(0, 1 << width, endpoint=True))
    attempt, index = (int(number) for number in generator.integers(0, 1 << 20, 2))
    return Chunk(min(round_number, 1 << 31), attempt, index, generator.bytes(int(generator.integers(0, 5000))))


@for_each("seed", range(300))
def test_a_changed_frame_is_the_parsers_chunk_or_refused(seed: int) -> None:
    """Whatever happens to a frame's bytes, it is read as protobuf reads it, or refused, and nothing else."""
    generator = np.random.default_rng(seed)
    raw = bytearray(encode_coordinator_message(drawn_chunk(seed)))
    for place in generator.integers(0, min(len(raw), 30), 2):
        raw[place] = int(generator.integers(0, 256))
    if seed % 3 == 0:
        del raw[int(generator.integers(0, len(raw))) :]

    try:
        message = decode_coordinator_message(bytes(raw))
    except MalformedMessage:
        return

    if isinstance(message, Chunk):
        outer = generated.CoordinatorMessage()
        outer.ParseFromString(bytes(raw))
        assert (outer.chunk.index, outer.chunk.body) == (message.index, bytes(message.body))
