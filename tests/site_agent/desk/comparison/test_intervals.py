"""Intervals have their promised coverage, and differences are paired."""

from __future__ import annotations

import numpy as np
import pytest

from site_agent.desk.comparison.bootstrap_intervals import Interval, compare
from site_agent.desk.comparison.evaluation import HeldOutRows, Scores
from tests.for_each import for_each

TWO = ("negative", "positive")
AUROC_OF_UNIT_SHIFT = 0.7602  # P(a < b + 1) for standard normal a and b: Phi(1 / sqrt(2))


def shifted(seed: int, rows: int = 120) -> tuple[HeldOutRows, Scores]:
    """Two classes whose scores lie one standard deviation apart."""
    generator, labels = np.random.default_rng(seed), np.arange(rows) % 2
    return HeldOutRows(task="binary", targets=labels, classes=TWO), generator.normal(size=rows) + labels


def _squashed(values: Scores) -> Scores:
    return np.asarray(1.0 / (1.0 + np.exp(-values)))


def test_an_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    """Of 200 hospitals with the same true AUROC, between 90% and 99% have it in their interval."""
    held = 0
    for seed in range(200):
        rows, scores = shifted(seed)
        interval = compare(rows, {"one": _squashed(scores)}, seed, resamples=200).interval("one", "auroc")
        assert interval is not None
        held += interval.low <= AUROC_OF_UNIT_SHIFT <= interval.high

    assert 180 <= held <= 198


def test_a_class_with_one_patient_still_has_an_interval() -> None:
    """AUROC is taken over the resamples with that patient; where most lack a class there is none."""
    labels, scores = (np.arange(40) == 0).astype(np.int64), np.linspace(0.9, 0.1, 40)

    compared = compare(HeldOutRows(task="binary", targets=labels, classes=TWO), {"one": scores}, 0)

    assert np.isnan(compared.resampled["one"]["auroc"]).mean() == pytest.approx((1 - 1 / 40) ** 40, abs=0.03)
    assert compared.interval("one", "auroc") == Interval(1.0, 1.0)
    three = HeldOutRows(task="multi-class", targets=np.r_[0, 1, 2, np.zeros(37)].astype(int), classes=tuple("abc"))
    assert compare(three, {"one": np.full((40, 3), 1 / 3)}, 0).interval("one", "auroc") is None


@for_each("seed", range(10))
def test_a_difference_is_paired(seed: int) -> None:
    """Two nearly equal models differ with far more certainty than either is known."""
    rows, scores = shifted(seed)
    noise = 0.1 * np.random.default_rng(seed + 1_000).normal(size=len(rows))

    compared = compare(rows, {"one": _squashed(scores), "other": _squashed(scores + noise)}, seed)

    difference, alone = compared.difference("one", "other", "auroc"), compared.interval("one", "auroc")
    assert difference is not None
    assert difference.interval is not None
    assert alone is not None
    assert difference.value == pytest.approx(difference.first - difference.second)
    assert difference.interval.high - difference.interval.low < 0.3 * (alone.high - alone.low)


def test_what_is_undefined_is_null_everywhere() -> None:
    """One class: no ranking, no interval of it, no difference in it; what is defined still has all three."""
    rows = HeldOutRows(task="binary", targets=np.zeros(5), classes=TWO)

    compared = compare(rows, {"one": np.full(5, 0.2), "other": np.full(5, 0.3)}, 0, 50)

    assert compared.intervals("one")["auroc"] is None
    assert compared.differences("one", "other")["auroc"] is None
    assert compared.intervals("one")["brier"] == pytest.approx([0.04, 0.04])
    assert compared.differences("one", "other")["brier"] is not None
