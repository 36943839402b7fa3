"""The running sum adds only chunks in order, of the right size, from bound sites."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.rounds.aggregation import RunningSum
from protos.numbers.chunk_layout import CHUNK_PARAMETERS, Layout
from protos.wire.messages import MalformedMessage
from tests.for_each import for_each

LAYOUT = Layout(2 * CHUNK_PARAMETERS + 5, 2)


def body(layout: Layout, index: int, number: int, scalars: tuple[int, ...] = (0, 0), check: int = 1) -> bytes:
    """A chunk whose every update is `number`."""
    raw = bytearray(layout.chunk_bytes(index))
    words = layout.words(memoryview(raw), index)
    words[0] = check
    words[1:] = scalars[: len(words) - 1]
    layout.updates(memoryview(raw), index)[:] = number
    return bytes(raw)


def _sum_of(*sites: str, layout: Layout = LAYOUT) -> RunningSum:
    sums = RunningSum(layout.parameters)
    sums.reset(layout, sites)
    return sums


def test_chunks_are_added_as_they_come() -> None:
    """Updates and scalars of all sites are in the sum, and each site's progress is known."""
    sums = _sum_of("a", "b")

    last = [sums.add("a", index, body(LAYOUT, index, 3, (5, -1))) for index in range(3)]
    first = sums.add("b", 0, body(LAYOUT, 0, 4))
    arrived = (sums.arrived("a"), sums.arrived("b"), sums.is_complete)
    for index in (1, 2):
        sums.add("b", index, body(LAYOUT, index, 4, (7, -2)))

    assert last == [False, False, True]
    assert first is False
    assert arrived == (3, 1, False)
    assert (sums.is_complete, sums.is_consistent, sums.scalars) == (True, True, (12, -3))
    np.testing.assert_array_equal(sums.updates, np.full(LAYOUT.parameters, 7, np.int32))


@pytest.mark.parametrize(("site", "index"), [("a", 1), ("a", 3), ("a", -1), ("c", 0), ("", 0), ("b", 2)])
def test_a_chunk_out_of_order_or_of_a_stranger_is_refused(site: str, index: int) -> None:
    """Only the next chunk of a bound site is added. A refused chunk has no effect."""
    sums = _sum_of("a", "b")

    with pytest.raises(MalformedMessage, match="out of order"):
        sums.add(site, index, body(LAYOUT, 0, 9))

    assert not sums.updates.any()
    assert sums.arrived("a") == 0


@pytest.mark.parametrize("difference", [-8, -4, -1, 1, 4, 8])
@for_each("index", range(3))
def test_a_chunk_of_another_size_is_refused(index: int, difference: int) -> None:
    """A chunk with one byte more or less than in the layout is refused."""
    sums = _sum_of("a")
    for before in range(index):
        sums.add("a", before, body(LAYOUT, before, 1))
    right = body(LAYOUT, index, 1)

    with pytest.raises(MalformedMessage, match="wrong size"):
        sums.add("a", index, (right + bytes(8))[: len(right) + difference])

    assert sums.arrived("a") == index


@for_each("seed", range(20))
def test_sums_wrap_and_come_back(seed: int) -> None:
    """Masks that cancel modulo 2**32 and 2**64 leave the plain sum, however often it wrapped."""
    generator = np.random.default_rng(seed)
    layout = Layout(int(generator.integers(0, 50)), 2)
    sums = _sum_of("a", "b", layout=layout)
    mask = generator.integers(0, 256, layout.total_bytes, dtype=np.uint8).tobytes()
    plain = {"a": bytearray(body(layout, 0, -7, (3, 4))), "b": bytearray(body(layout, 0, 9, (10, 20)))}

    for site, add in (("a", np.add), ("b", np.subtract)):
        raw = memoryview(plain[site])
        with np.errstate(over="ignore"):
            for view in (layout.words, layout.updates):
                add(view(raw, 0), view(mask, 0), out=view(raw, 0))
        sums.add(site, 0, bytes(raw))

    assert sums.is_consistent
    assert sums.scalars == (13, 24)
    np.testing.assert_array_equal(sums.updates, np.full(layout.parameters, 2, np.int32))


@pytest.mark.parametrize("parameters", [0, 3, 1000, CHUNK_PARAMETERS])
def test_a_smaller_vector_uses_the_same_memory_and_leaves_nothing_behind(parameters: int) -> None:
    """Rounds with fewer numbers are summed in the memory of larger ones, from zero."""
    sums = _sum_of("a")
    for index in range(3):
        sums.add("a", index, body(LAYOUT, index, 3, (5, 6)))
    large, layout = sums.updates, Layout(parameters, 1)

    sums.reset(layout, ("b",))
    sums.add("b", 0, body(layout, 0, 4, (7,)))

    assert sums.updates.shape == (parameters,)
    assert sums.scalars == (7,)
    assert not parameters or np.shares_memory(sums.updates, large)
    np.testing.assert_array_equal(sums.updates, np.full(parameters, 4, np.int32))
