"""Updates as integers of 8 and 16 bits: sums fit, rounding is unbiased, and nothing is lost."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from protos.numbers.fixed_point import NotFinite
from protos.numbers.short_integers import (
    WIDTHS,
    Scales,
    encode_short,
    largest_integer,
    pack_exponents,
    rounding_stream,
    unpack_exponents,
)
from tests.for_each import for_each

KEY = bytes(range(32))
Float32 = npt.NDArray[np.float32]


def encoded(
    values: Float32, residual: Float32, *, exponent: int = 0, weight: float = 1.0, limit: int = 9000,
    clipped: int = 1 << 30, key: bytes = KEY,
) -> npt.NDArray[np.signedinteger]:  # fmt: skip
    """The integers of an update. The residual is changed."""
    out = np.empty(values.size, WIDTHS[8 if limit < 128 else 16])
    encode_short(values, residual, np.ldexp(np.float32(weight), exponent), limit, clipped, rounding_stream(key), out)
    return out


@for_each("seed", range(40))
def test_a_sum_of_all_sites_fits(seed: int) -> None:
    """Whatever the weights, also where every site sends the largest values: no sum leaves the ring of its bits."""
    generator, bits = np.random.default_rng(seed), (8, 16)[seed % 2]
    sites, total = int(generator.integers(2, 100 if bits == 16 else 15)), np.zeros(500, np.int64)
    for site in range(sites):
        values = np.float32(generator.choice([-1.0, 1.0])) * np.full(500, 1e9, np.float32)
        weight, limit = generator.uniform(1e-3, 1.0), largest_integer(bits, sites)
        out = encoded(values, np.zeros(500, np.float32), weight=weight, limit=limit, key=site.to_bytes(32, "big"))
        assert set(np.abs(out).tolist()) == {limit}  # a clipped value tells nothing of the weight
        total += np.abs(out.astype(np.int64))
    assert total.max() <= (1 << (bits - 1)) - 1


@for_each("seed", range(20))
def test_nothing_is_lost(seed: int) -> None:
    """What was sent, divided or not, and the residual are what was to be sent, up to a rounding in each step."""
    generator, facts = np.random.default_rng(seed), ({"limit": 9000}, {"limit": 24, "clipped": 70})[seed % 2]
    exponent, weight = int(generator.integers(-4, 12)), float(np.float32(generator.uniform(0.01, 1.0)))
    values = generator.normal(0, 2.0 ** (3 - exponent), (6, 70_000)).astype(np.float32)
    residual, sent = np.zeros(70_000, np.float32), np.zeros(70_000)
    for number, update in enumerate(values):
        out = encoded(update, residual, exponent=exponent, weight=weight, key=number.to_bytes(32, "big"), **facts)
        assert np.count_nonzero(np.abs(out) >= facts["limit"]) <= facts.get("clipped", 0)
        sent += out / np.float64(np.float32(math.ldexp(1.0, exponent)) * np.float32(weight))
    largest = np.abs(values).sum(axis=0).max() + np.abs(sent).max()
    np.testing.assert_allclose(sent + residual, values.sum(axis=0, dtype=np.float64), atol=12 * 2.0**-24 * largest)


def test_rounding_is_unbiased() -> None:
    """The mean over many draws is the value. Its standard error is below half a step over the root of their number."""
    values = np.full(1 << 18, 2.3, np.float32)
    out = encoded(values, np.zeros_like(values))
    assert set(np.unique(out).tolist()) == {2, 3}
    assert abs(out.mean() - 2.3) < 5 * 0.5 / 2**9 + 2.0**-8  # a draw has eight bits


def test_the_same_key_rounds_alike_and_another_differently() -> None:
    """A repeated round has the same integers. Blocks and their order leave no trace."""
    values = np.random.default_rng(0).normal(0, 3, 200_000).astype(np.float32)
    first, again, other = (encoded(values, np.zeros_like(values), key=key) for key in (KEY, KEY, bytes(32)))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(value: float) -> None:
    """No integer stands for it."""
    values = np.ones(70_000, np.float32)
    values[66_000] = value
    with pytest.raises(NotFinite):
        encoded(values, np.zeros_like(values))


@for_each("seed", range(30))
def test_the_next_scale_leaves_room_for_larger_sums(seed: int) -> None:
    """The largest power of two that leaves it, but not much finer than before. The first scale is the coarsest."""
    generator, (bits, times) = np.random.default_rng(seed), ((8, 8), (16, 64))[seed % 2]
    sites, exponent = int(generator.integers(3, 15)), int(generator.integers(20))
    room = sites * largest_integer(bits, sites)
    largest = int(generator.integers(1, room))
    scales, finest = Scales(bits, sites, 0.5), Scales(bits, sites, 2.0**100)
    found = finest.next(exponent, largest, 0)
    grown = times * largest * 2.0 ** (found - exponent)
    assert grown <= room
    assert room < 2 * grown or found == finest.most_after(exponent) == exponent + 2
    coarsest = scales.coarsest
    assert math.ldexp(0.5, coarsest) <= largest_integer(bits, sites) < math.ldexp(0.5, coarsest + 1)
    assert scales.first == coarsest + (10 if bits == 8 else 0)
    unshortened = [scales.next(coarsest, room, 0), scales.next(coarsest, 0, 0), scales.next(coarsest + 1, 0, 0)]
    assert unshortened == [coarsest, coarsest + 10, coarsest + 3]
    assert [scales.next(coarsest + 5, one, 1) - coarsest for one in (0, 1, room)] == [4, 4, 2 if bits == 8 else 0]


def test_exponents_travel_as_bytes() -> None:
    """Each exponent from -100 to 40 is one byte."""
    exponents = tuple(range(-100, 41))
    assert unpack_exponents(pack_exponents(exponents)) == exponents
