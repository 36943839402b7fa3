"""Gorishniy et al. 2022, equation 1, written out and compared with the encoder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.experiments.data.dealt import breast_cancer
from benchmarks.experiments.data.piecewise import piecewise_linear
from site_agent.trainer.data.preprocessing import shares_of_bins
from tests.for_each import for_each


def equation_1(value: float, ends: npt.NDArray[np.float64]) -> list[float]:
    """As printed, for strictly rising ends."""
    bins = len(ends) - 1
    encoded = []
    for t in range(1, bins + 1):
        if value < ends[t - 1] and t > 1:
            encoded.append(0.0)
        elif value >= ends[t] and t < bins:
            encoded.append(1.0)
        else:
            encoded.append((value - ends[t - 1]) / (ends[t] - ends[t - 1]))
    return encoded


@for_each("seed", range(20))
def test_the_encoder_is_equation_1(seed: int) -> None:
    """Inside, between and beyond the bins, and exactly on their ends."""
    generator = np.random.default_rng(seed)
    ends = np.sort(generator.normal(size=generator.integers(2, 12)))
    values = np.concatenate([generator.normal(size=50) * 2, ends])

    encoded = shares_of_bins(values, ends)

    np.testing.assert_allclose(encoded, [equation_1(value, ends) for value in values], atol=1e-12)


def test_a_known_value_has_known_columns() -> None:
    """Two and a half in bins of one from 0 to 4: two are full, one is half full, one is empty."""
    encoded = shares_of_bins(np.array([2.5, -1.0, 5.0]), np.arange(5.0))

    np.testing.assert_array_equal(encoded, [[1, 1, 0.5, 0], [-1, 0, 0, 0], [1, 1, 1, 2]])


def test_collapsed_bins_are_zero_and_the_others_are_the_papers() -> None:
    """If quantiles are equal, the result is equation 1 over the distinct ends."""
    ends = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 3.0, 3.0])
    values = np.linspace(-1, 4, 21)

    encoded = shares_of_bins(values, ends)

    assert not encoded[:, [0, 1, 3, 5]].any()
    np.testing.assert_allclose(encoded[:, [2, 4]], shares_of_bins(values, np.array([0.0, 1.0, 3.0])))


def test_a_constant_column_says_nothing() -> None:
    """All bins have collapsed, also for a value that training did not see."""
    assert not shares_of_bins(np.array([1.0, 2.0]), np.ones(11)).any()


@for_each("seed", range(5))
def test_scaling_first_changes_nothing(seed: int) -> None:
    """The encoding of a z-score is that of the number itself, so it can come after the scaling."""
    generator = np.random.default_rng(seed)
    raw = generator.lognormal(size=200)
    scaled = (raw - 3.0) / 7.0
    quantiles = np.linspace(0, 1, 11)

    from_raw = shares_of_bins(raw, np.quantile(raw, quantiles))
    from_scaled = shares_of_bins(scaled, np.quantile(scaled, quantiles))

    np.testing.assert_allclose(from_raw, from_scaled, atol=1e-9)


def test_bins_come_from_training_rows_alone() -> None:
    """Other test rows do not change the training rows' columns."""
    dataset = breast_cancer(0)["ahus"]
    changed = replace(dataset, test=replace(dataset.test, features=dataset.test.features * 100))
    name = dataset.columns[0]

    first, second = piecewise_linear(dataset, [name]), piecewise_linear(changed, [name])

    np.testing.assert_array_equal(first.training.features, second.training.features)
    assert first.columns[:10] == tuple(f"{name} in bin {number} of 10" for number in range(1, 11))
    assert first.columns[10:] == dataset.columns[1:]
    np.testing.assert_array_equal(first.test.features[:, 10:], dataset.test.features[:, 1:])
    assert first.training.features.flags.c_contiguous


def test_quantile_bins_hold_a_tenth_each() -> None:
    """The mean of each bin's column falls by a tenth from bin to bin, up to the rows inside it."""
    dataset = breast_cancer(3)["cluj"]

    encoded = piecewise_linear(dataset, dataset.columns[:1]).training.features[:, :10]

    np.testing.assert_allclose(encoded.mean(axis=0), np.arange(0.95, 0, -0.1), atol=0.03)


def test_a_strange_column_is_refused() -> None:
    """A misspelt name is reported."""
    with pytest.raises(ValueError, match="no such columns: weight"):
        piecewise_linear(breast_cancer(0)["ahus"], ["weight"])
