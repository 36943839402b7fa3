"""Means, intervals and paired differences, compared with numbers computed by hand."""

from __future__ import annotations

import math

import pytest

from benchmarks.experiments.statistics import corrected_error, difference, mean_of
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


def test_the_corrected_error_by_hand() -> None:
    """For 1 to 5 with a third that tests: sqrt(2.5 * (1 / 5 + 1 / 2)); a single split has no error."""
    assert corrected_error([1.0, 2.0, 3.0, 4.0, 5.0], 1 / 3) == (3.0, pytest.approx(math.sqrt(2.5 * 0.7)))
    assert math.isinf(corrected_error([1.0], 1 / 3)[1])
