"""Means, intervals and paired differences, compared with numbers computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.experiments.statistics import Mean, corrected_mean_of, difference, mean_of
from benchmarks.experiments.variants import Row


def row(variant: str, seed: int, site: str, value: float) -> Row:
    """A row with one metric."""
    return Row(variant=variant, seed=seed, site=site, chosen_round=-1, metrics={"auroc": value})


def test_the_interval_is_students() -> None:
    """For 1 to 5: deviation sqrt(2.5), 4 degrees of freedom, t = 2.7764, so 2.7764 * sqrt(2.5 / 5)."""
    found = mean_of([1.0, 2.0, 3.0, 4.0, 5.0])

    assert found.value == 3.0
    assert found.runs == 5
    assert found.half_width == pytest.approx(2.776445 * math.sqrt(0.5), rel=1e-6)


def test_differences_are_paired() -> None:
    """Only seeds that both have count. An effect that all models of a seed share does not widen the interval."""
    first = {1: 0.9, 2: 0.5, 3: 0.7, 8: 0.1}
    second = {1: 0.8, 2: 0.4, 3: 0.6, 9: 0.3}

    found = difference(first, second)

    assert found is not None
    assert found.runs == 3
    assert found.value == pytest.approx(0.1)
    assert found.half_width == pytest.approx(0.0, abs=1e-12)
    assert difference({1: 0.5}, {2: 0.5}) is None


def test_the_corrected_interval_by_hand() -> None:
    """For 1 to 5 with a third that tests: t * sqrt(2.5 * (1 / 5 + 1 / 2)); a single split has no interval."""
    found = corrected_mean_of([1.0, 2.0, 3.0, 4.0, 5.0], 1 / 3)

    assert found.value == 3.0
    assert found.half_width == pytest.approx(2.776445 * math.sqrt(2.5 * 0.7), rel=1e-6)
    assert math.isinf(corrected_mean_of([1.0], 1 / 3).half_width)


@pytest.mark.parametrize("training_rows", [60, 20])
def test_the_corrected_interval_covers_other_patients(training_rows: int) -> None:
    """Over 400 simulated tables of 90 patients and 8 splits each, the corrected interval of a difference of two
    models covers its true mean in 92% to 99%; Student's interval, which ignores the overlap, in less than 80%.
    """
    generator = np.random.default_rng(8)
    tables = [gains(generator, 8, training_rows) for _ in range(400)]
    truth = float(np.mean([gains(generator, 1, training_rows) for _ in range(8_000)]))

    def covered(means: list[Mean]) -> float:
        return float(np.mean([abs(mean.value - truth) <= mean.half_width for mean in means]))

    assert covered([mean_of(values) for values in tables]) < 0.8
    assert 0.88 <= covered([corrected_mean_of(values, 1 / 3) for values in tables]) <= 0.99


def gains(generator: np.random.Generator, splits: int, training_rows: int) -> list[float]:
    """A new table of 90 patients: by how much a line beats the mean in each split, in squared error of 30 test rows."""
    x = generator.normal(size=90)
    y = 0.4 * x + generator.normal(size=90)
    found = []
    for _ in range(splits):
        order = generator.permutation(90)
        test, training = order[:30], order[30 : 30 + training_rows]
        a, b = x[training], y[training]
        slope = ((a - a.mean()) @ (b - b.mean())) / ((a - a.mean()) @ (a - a.mean()))
        line = b.mean() + slope * (x[test] - a.mean())
        found.append(float(np.mean((y[test] - b.mean()) ** 2 - (y[test] - line) ** 2)))
    return found
