"""Server rules: from the sums to the next parameters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coordinator.rules import apply_rule, begin_rule, total_weight
from protos.fixed_point import BLOCK, FixedPoint
from protos.ingredients import Adaptive, Mean, Moment
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

    apply_rule(Mean(), parameters, sums, fixed_point, 2.5, {})

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
        apply_rule(Mean(), parameters, one * np.int32(sites), fixed_point, float(sites), {})

    np.testing.assert_array_equal(parameters, np.full(10, 1000, np.float32))


def test_the_parameters_are_changed_in_place_and_the_sum_is_not() -> None:
    """The vector that peers are sent is the one that was changed; the sum stays for the record."""
    parameters, sums = np.zeros(3, np.float32), np.full(3, 1 << 20, np.int32)
    before = sums.copy()

    apply_rule(Mean(), parameters, sums, FixedPoint(8.0, 3), 1.0, {})

    assert parameters.all()
    np.testing.assert_array_equal(sums, before)


# Two rounds by hand from x = 1: the mean changes are 1/2 and -1/4, rate 0.1, first decay 0.9, offset 0.001.
# m: 0.05, then 0.045 - 0.025 = 0.02. v after each round, by kind, with second decay 0.99:
BY_HAND = {
    Moment.ADAM: (0.0025, 0.00310),  # 0.01 * 0.25; 0.99 * 0.0025 + 0.01 * 0.0625
    Moment.YOGI: (0.0025, 0.003125),  # 0 + 0.01 * 0.25; 0.0025 + 0.01 * 0.0625
    Moment.ADAGRAD: (0.25, 0.3125),
}


@pytest.mark.parametrize("moment", Moment)
def test_an_adaptive_rule_steps_as_computed_by_hand(moment: Moment) -> None:
    """Two rounds of each adaptive rule end where the formula says, and m and v with them."""
    rule = Adaptive(moment=moment, rate=0.1, offset=0.001, first_decay=0.9, second_decay=0.99)
    fixed_point = FixedPoint(8.0, 2)
    parameters, state = np.ones(1, np.float32), begin_rule(rule, 1)

    for total in (1.0, -0.5):  # of two sites, so that the means are 1/2 and -1/4
        changes = np.array([int(total * fixed_point.scale)], np.int32)
        apply_rule(rule, parameters, changes, fixed_point, 2.0, state)

    first, second = BY_HAND[moment]
    middle = 1.0 + 0.1 * 0.05 / (math.sqrt(first) + 0.001)
    np.testing.assert_allclose(state["first moment"], [0.02], rtol=1e-12)
    np.testing.assert_allclose(state["second moment"], [second], rtol=1e-12)
    np.testing.assert_allclose(parameters, [middle + 0.1 * 0.02 / (math.sqrt(second) + 0.001)], rtol=1e-6)


@pytest.mark.parametrize("moment", Moment)
def test_an_adaptive_rule_never_has_a_negative_second_moment(moment: Moment) -> None:
    """However the changes vary, the root of v is a number; a momentum step on a variance would not be."""
    rule = Adaptive(moment=moment, rate=0.1, offset=1e-9, first_decay=0.9, second_decay=0.99)
    generator = np.random.default_rng(0)
    parameters, state = np.zeros(1000, np.float32), begin_rule(rule, 1000)

    for scale in (1.0, 1e-6, 1e3, 0.0, 1.0):
        changes = (generator.uniform(-1, 1, size=1000) * scale * 1e6).astype(np.int32)
        apply_rule(rule, parameters, changes, FixedPoint(8.0, 3), 3.0, state)

    assert (state["second moment"] >= 0).all()
    assert np.isfinite(parameters).all()
