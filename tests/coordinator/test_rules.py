"""Server rules: from the sums to the next parameters."""

from __future__ import annotations

import numpy as np
import pytest

from coordinator.rules import apply_rule, total_weight
from protos.fixed_point import BLOCK, FixedPoint
from protos.ingredients import Mean
from protos.plan import EqualWeights, RowWeights

ROWS = RowWeights(name="rows", largest_rows=1024)


@pytest.mark.parametrize("contributors", [1, 2, 3, 100])
def test_equal_weights_count_the_contributors(contributors: int) -> None:
    """Where all sites weigh the same, the sum of the weights is their number."""
    assert total_weight(EqualWeights(name="equal"), contributors, ()) == contributors


@pytest.mark.parametrize("rows", [1, 3, 512, 1024, 3072])
def test_row_weights_come_from_the_sum_of_rows_alone(rows: int) -> None:
    """By rows, the sum of the weights is the sum of the rows over the cap, whoever contributed."""
    weights = {total_weight(ROWS, contributors, (rows,)) for contributors in (1, 3, 100)}

    assert weights == {rows / 1024}


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7])
def test_the_mean_rule_adds_the_mean(size: int, seed: int) -> None:
    """Next is received plus sum over weight, computed in float64 and rounded once, block by block."""
    generator = np.random.default_rng(seed)
    fixed_point = FixedPoint(8.0, 3)
    received = generator.normal(size=size).astype(np.float32)
    sums = generator.integers(-(2**31), 2**31, size, dtype=np.int32)
    parameters = received.copy()

    apply_rule(Mean(), parameters, sums, fixed_point, 2.5)

    expected = received.astype(np.float64) + sums.astype(np.float64) / (fixed_point.scale * 2.5)
    np.testing.assert_array_equal(parameters, expected.astype(np.float32))


@pytest.mark.parametrize("sites", [1, 3, 100])
def test_adding_one_for_a_thousand_rounds_gives_a_thousand(sites: int) -> None:
    """A federation whose sites add 1 in every round has added exactly n after n rounds."""
    fixed_point = FixedPoint(8.0, sites)
    one = np.empty(10, np.int32)
    fixed_point.encode(np.ones(10, np.float32), 1.0, one)
    parameters = np.zeros(10, np.float32)

    for _ in range(1000):
        apply_rule(Mean(), parameters, one * np.int32(sites), fixed_point, float(sites))

    np.testing.assert_array_equal(parameters, np.full(10, 1000, np.float32))


def test_the_parameters_are_changed_in_place_and_the_sum_is_not() -> None:
    """The vector that peers are sent is the one that was changed; the sum stays for the record."""
    parameters, sums = np.zeros(3, np.float32), np.full(3, 1 << 20, np.int32)
    before = sums.copy()

    apply_rule(Mean(), parameters, sums, FixedPoint(8.0, 3), 1.0)

    assert parameters.all()
    np.testing.assert_array_equal(sums, before)
