"""Real numbers as integers: exact sums, no overflow, and only finite numbers."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest

from protos.numbers.fixed_point import BLOCK, FixedPoint, NotFinite, is_power_of_two, round_rows
from tests.for_each import for_each

RANGES = (2.0**-10, 0.5, 1.0, 8.0, 1024.0)


def encoded(fixed_point: FixedPoint, values: npt.NDArray[np.float32], weight: float = 1.0) -> npt.NDArray[np.int32]:
    """The values as integers."""
    out = np.empty(values.size, np.int32)
    fixed_point.encode(values, weight, out)
    return out


@for_each("sites", range(1, 101))
def test_no_sum_overflows_and_no_bit_is_wasted(sites: int) -> None:
    """S is a power of two with K * S * C below 2**31, and 2S would break that bound, for each range."""
    for clipping_range in RANGES:
        scale = FixedPoint(clipping_range, sites).scale

        assert is_power_of_two(scale)
        assert scale * clipping_range <= (2**31 - 1) // sites < 2 * scale * clipping_range


@pytest.mark.parametrize("sites", [1, 3, 100])
def test_no_honest_sum_exceeds_most_and_one_reaches_it(sites: int) -> None:
    """Largest values with drawn weights stay within `most`; where every site rounds up by a half, the sum equals it."""
    fixed_point = FixedPoint(8.0, sites)
    generator = np.random.default_rng(sites)
    one_and_a_half = 1.5 / (fixed_point.scale * 8.0)
    for weight in (one_and_a_half, *generator.uniform(0, 1, 50).astype(np.float32), *generator.uniform(0, 1e-6, 50)):
        total = sites * int(encoded(fixed_point, np.full(1, 8.0, np.float32), float(np.float32(weight)))[0])

        assert total <= fixed_point.most(sites * float(np.float32(weight)), sites)
        if weight == one_and_a_half:
            assert total == 2 * sites == fixed_point.most(sites * weight, sites)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5, 3 * BLOCK - 1])
def test_what_is_not_finite_is_refused_where_it_stands(value: float, index: int) -> None:
    """The refusal names the value's place in the vector, in the first block and behind it."""
    values = np.zeros(3 * BLOCK, np.float32)
    values[index] = value

    with pytest.raises(NotFinite) as refusal:
        encoded(FixedPoint(8.0, 3), values)

    assert refusal.value.index == index


@for_each("seed", range(20))
def test_clipped_values_are_counted_and_stay_at_the_bound(seed: int) -> None:
    """Exactly the values beyond C are counted; they are sent as plus or minus C."""
    generator = np.random.default_rng(seed)
    values = generator.normal(0, 6, BLOCK + 1000).astype(np.float32)
    fixed_point = FixedPoint(8.0, 3)
    out = np.empty(values.size, np.int32)

    clipped = fixed_point.encode(values, 1.0, out)

    assert clipped == np.count_nonzero(np.abs(values) > 8) > 0
    np.testing.assert_allclose(out / fixed_point.scale, np.clip(values, -8, 8), atol=0.5 / fixed_point.scale)


@pytest.mark.parametrize("weight", [-0.1, 1.0000001, float("nan"), float("inf")])
def test_a_weight_lies_between_nothing_and_one(weight: float) -> None:
    """A weight beyond one could overflow the sum, so it is a programmer's mistake."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        FixedPoint(8.0, 3).encode(np.zeros(1, np.float32), weight, np.empty(1, np.int32))


@for_each("seed", range(10))
def test_the_blocks_leave_no_trace(seed: int) -> None:
    """A vector encoded whole and in two parts is the same, and its source is unchanged."""
    generator = np.random.default_rng(seed)
    values = generator.normal(0, 1, 2 * BLOCK + 17).astype(np.float32)
    before = values.copy()
    cut = int(generator.integers(values.size))
    fixed_point = FixedPoint(8.0, 5)

    whole = encoded(fixed_point, values)
    parts = np.concatenate([encoded(fixed_point, values[:cut]), encoded(fixed_point, values[cut:])])

    np.testing.assert_array_equal(whole, parts)
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize(
    ("clipping_range", "sites"), [(3.0, 3), (0.0, 3), (-8.0, 3), (8.0, 0), (2.0**31, 1), (np.inf, 1)]
)
def test_impossible_encodings_are_refused(clipping_range: float, sites: int) -> None:
    """A range that is no power of two, no site, or no bit left for fractions is a programmer's mistake."""
    with pytest.raises((ValueError, OverflowError)):
        FixedPoint(clipping_range, sites)


@pytest.mark.parametrize(
    ("rows", "rounded"),
    [
        (1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 6), (7, 8), (9, 8), (10, 12), (100, 96), (303, 256), (462, 512),
        (1000, 1024),
    ],
)  # fmt: skip
def test_rows_are_put_on_the_public_grid(rows: int, rounded: int) -> None:
    """Two significant bits, to the nearest, halves upwards."""
    assert round_rows(rows, 1 << 20) == rounded


@pytest.mark.parametrize("rows", [0, -1])
def test_a_site_without_rows_is_refused(rows: int) -> None:
    """There is no weight for nobody."""
    with pytest.raises(ValueError, match="without rows"):
        round_rows(rows, 64)


@pytest.mark.parametrize("value", [3e38, -3e38])
def test_a_huge_finite_value_is_clipped_not_called_infinite(value: float) -> None:
    """What overflows only when it is scaled is a large number, and is counted as clipped."""
    fixed_point, out = FixedPoint(8.0, 3), np.empty(1, np.int32)

    clipped = fixed_point.encode(np.array([value], np.float32), 1.0, out)

    assert clipped == 1
    assert out[0] == math.copysign(fixed_point.scale * 8.0, value)
