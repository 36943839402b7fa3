"""Gorishniy et al. 2022, equation 1, written out and compared with the encoder."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

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


def test_a_constant_column_says_nothing() -> None:
    """All bins have collapsed, also for a value that training did not see."""
    assert not shares_of_bins(np.array([1.0, 2.0]), np.ones(11)).any()


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
