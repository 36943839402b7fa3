"""The place of every number in a contribution's buffer."""

from __future__ import annotations

import numpy as np
import pytest

from protos.numbers.chunk_layout import CHUNK_PARAMETERS, Layout

SIZES = (
    0,
    1,
    2,
    3,
    10,
    CHUNK_PARAMETERS - 1,
    CHUNK_PARAMETERS,
    CHUNK_PARAMETERS + 1,
    298_688,
    717_640,
    3 * CHUNK_PARAMETERS,
)
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
