"""Parameters that sites receive, their digest and position, and the place of every number in a contribution."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from blake3 import blake3

from protos.numbers.chunk_layout import CHUNK_PARAMETERS, Layout
from protos.wire.messages import Offer, Stage
from protos.wire.positions import down_chunks, down_slice, parameters_digest, position
from tests.for_each import for_each


@for_each("seed", range(20))
def test_the_digest_is_of_the_little_endian_bytes(seed: int) -> None:
    """BLAKE3 over all chunks in order is the digest, so it can be computed while they arrive."""
    vector = np.random.default_rng(seed).standard_normal(seed * 977).astype(np.float32)
    hasher = blake3()

    for index in range(down_chunks(vector.nbytes)):
        hasher.update(vector.astype("<f4").tobytes()[down_slice(index)])

    assert parameters_digest(vector) == hasher.digest()


@for_each("seed", range(20))
def test_one_changed_bit_changes_the_digest(seed: int) -> None:
    """A single flipped bit anywhere, even the sign of a zero, is seen."""
    generator = np.random.default_rng(seed)
    vector = np.zeros(1000, np.float32)
    before = parameters_digest(vector)

    vector.view(np.uint32)[generator.integers(1000)] ^= np.uint32(1 << generator.integers(32))

    assert parameters_digest(vector) != before


OFFER = Offer(3, 0, b"d" * 32, Stage.TRAINING, b"\x01", 1)


def test_a_position_is_of_one_run_and_of_all_attempts() -> None:
    """Another run is another position; another attempt at the same step is not."""
    assert position("run2", OFFER) != position("run", OFFER)
    assert position("run", replace(OFFER, attempt=7)) == position("run", OFFER)


SIZES = (
    0, 1, 2, 3, 10, CHUNK_PARAMETERS - 1, CHUNK_PARAMETERS, CHUNK_PARAMETERS + 1, 298_688, 717_640,
    3 * CHUNK_PARAMETERS,
)  # fmt: skip
LAYOUTS = [Layout(parameters, scalars) for parameters in SIZES for scalars in (0, 1, 5)]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_every_number_has_one_place(layout: Layout) -> None:
    """Writing all words and updates through their views writes every byte of the buffer, none twice."""
    buffer = bytearray(layout.total_bytes)

    for index in range(layout.chunks):
        body = layout.body(buffer, index)
        layout.words(body, index)[:] += np.int64(0x0101010101010101)
        layout.updates(body, index)[:] += np.int32(0x01010101)

    assert bytes(buffer) == b"\x01" * layout.total_bytes


def test_the_layout_on_the_wire() -> None:
    """Little-endian: the check, then the scalars, then the updates."""
    layout = Layout(2, 1)
    buffer = bytearray(layout.total_bytes)

    body = layout.body(buffer, 0)
    layout.words(body, 0)[:] = [1, -2]
    layout.updates(body, 0)[:] = [3, -4]

    assert buffer.hex(" ", 4) == "01000000 00000000 feffffff ffffffff 03000000 fcffffff"
