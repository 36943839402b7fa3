"""Updates as integers of 16 bits: sums fit, rounding is unbiased, and nothing is lost."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from protos.numbers.fixed_point import NotFinite
from protos.numbers.short_integers import (
    WIDTHS,
    encode_short,
    first_exponent,
    largest_integer,
    most_after,
    next_exponent,
    pack_exponents,
    rounding_stream,
    unpack_exponents,
)
from tests.for_each import for_each

KEY = bytes(range(32))
Float32 = npt.NDArray[np.float32]


def encoded(
    values: Float32, residual: Float32, *, exponent: int = 0, weight: float = 1.0, limit: int = 9000, key: bytes = KEY
) -> npt.NDArray[np.signedinteger]:
    """The integers of an update. The residual is changed."""
    out = np.empty(values.size, WIDTHS[16])
    encode_short(values, residual, exponent, weight, limit, rounding_stream(key), out)
    return out


@for_each("seed", range(40))
def test_a_sum_of_all_sites_fits(seed: int) -> None:
    """Whatever the weights, also where every site sends the largest values: no sum leaves the ring of its bits."""
    generator = np.random.default_rng(seed)
    sites, total = int(generator.integers(2, 100)), np.zeros(500, np.int64)
    for site in range(sites):
        values = np.float32(generator.choice([-1.0, 1.0])) * np.full(500, 1e9, np.float32)
        weight, limit = generator.uniform(1e-3, 1.0), largest_integer(16, sites)
        out = encoded(values, np.zeros(500, np.float32), weight=weight, limit=limit, key=site.to_bytes(32, "big"))
        assert set(np.abs(out).tolist()) == {limit}  # a clipped value tells nothing of the weight
        total += np.abs(out.astype(np.int64))
    assert total.max() <= (1 << 15) - 1


@for_each("seed", range(20))
def test_nothing_is_lost(seed: int) -> None:
    """What was sent and the residual are what was to be sent, up to one rounding of float32 for each step."""
    generator = np.random.default_rng(seed)
    exponent, weight = int(generator.integers(-4, 12)), float(np.float32(generator.uniform(0.01, 1.0)))
    values = generator.normal(0, 2.0 ** (3 - exponent), (6, 70_000)).astype(np.float32)
    residual, sent = np.zeros(70_000, np.float32), np.zeros(70_000)
    for number, update in enumerate(values):
        out = encoded(update, residual, exponent=exponent, weight=weight, key=number.to_bytes(32, "big"))
        sent += out / np.float64(np.float32(math.ldexp(1.0, exponent)) * np.float32(weight))
    largest = np.abs(values).sum(axis=0).max() + np.abs(sent).max()
    np.testing.assert_allclose(sent + residual, values.sum(axis=0, dtype=np.float64), atol=12 * 2.0**-24 * largest)


def test_rounding_is_unbiased() -> None:
    """The mean over many draws is the value. Its standard error is below half a step over the root of their number."""
    values = np.full(1 << 18, 2.3, np.float32)
    out = encoded(values, np.zeros_like(values))
    assert set(np.unique(out).tolist()) == {2, 3}
    assert abs(out.mean() - 2.3) < 5 * 0.5 / 2**9 + 2.0**-10  # a draw has ten bits


def test_the_same_key_rounds_alike_and_another_differently() -> None:
    """A repeated round has the same integers. Blocks and their order leave no trace."""
    values = np.random.default_rng(0).normal(0, 3, 200_000).astype(np.float32)
    first, again, other = (encoded(values, np.zeros_like(values), key=key) for key in (KEY, KEY, bytes(32)))
    np.testing.assert_array_equal(first, again)
    assert np.any(first != other)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_with_its_place(value: float) -> None:
    """No integer stands for it."""
    values = np.ones(70_000, np.float32)
    values[66_000] = value
    with pytest.raises(NotFinite) as found:
        encoded(values, np.zeros_like(values))
    assert found.value.index == 66_000


@for_each("seed", range(30))
def test_the_next_scale_leaves_room_for_larger_sums(seed: int) -> None:
    """The largest power of two that leaves it, but not much finer than before. The first scale is the coarsest."""
    generator = np.random.default_rng(seed)
    sites, exponent = int(generator.integers(3, 100)), int(generator.integers(20))
    room, largest = sites * largest_integer(16, sites), int(generator.integers(1, 400))
    found = next_exponent(exponent, largest, 16, sites, -100)
    grown = 64 * largest * 2.0 ** (found - exponent)
    assert grown <= room
    assert room < 2 * grown or found == most_after(exponent, -100) == exponent + 2
    first = first_exponent(16, sites, 0.5)
    assert math.ldexp(0.5, first) <= largest_integer(16, sites) < math.ldexp(0.5, first + 1)
    assert next_exponent(first, room, 16, sites, first) == first
    assert next_exponent(first, 0, 16, sites, first) == first + 10
    assert next_exponent(first + 1, 0, 16, sites, first) == first + 3


def test_exponents_travel_as_bytes() -> None:
    """Each exponent from -100 to 40 is one byte."""
    exponents = tuple(range(-100, 41))
    assert unpack_exponents(pack_exponents(exponents)) == exponents
