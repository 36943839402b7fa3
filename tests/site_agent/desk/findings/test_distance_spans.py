"""The intervals of the two distances of calibration: their coverage, and the curve that they refit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from site_agent.desk.comparison.bootstrap_intervals import over_patients
from site_agent.desk.comparison.calibration import smoothed
from site_agent.desk.comparison.evaluation import Scores
from site_agent.desk.findings.calibration_spans import NAMES, distance_spans
from site_agent.desk.findings.thresholds import at_thresholds
from site_agent.trainer.probabilities import probabilities
from tests.for_each import for_each

ERROR, INDEX = NAMES


@pytest.fixture(scope="module", autouse=True)
def small_reports() -> None:
    """The intervals are those of all resamples."""


def drawn(seed: int, rows: int, tilt: float = 1.0, shift: float = 0.0) -> tuple[npt.NDArray[np.int64], Scores]:
    """Outcomes of probability sigmoid(shift + tilt * logit), and the probabilities that a model predicts."""
    generator = np.random.default_rng(seed)
    logit = generator.normal(-0.5, 1.2, size=rows)
    happened = generator.random(rows) < probabilities("binary", shift + tilt * logit)
    return happened.astype(np.int64), probabilities("binary", logit)


@pytest.mark.parametrize(("tilt", "shift", "truth"), [(1.0, 0.0, 0.0), (0.6, 0.0, 0.070), (1.0, 0.8, 0.154)])
def test_the_intervals_cover_the_true_distance(tilt: float, shift: float, truth: float) -> None:
    """In 50 tables of 150 rows each interval covers the true distance in 42 or more, also where it is 0."""
    spans = [distance_spans(*drawn(seed, 150, tilt, shift), None, seed) for seed in range(50)]

    for name in NAMES:
        covered = sum(low <= truth <= high for low, high in (one[name] for one in spans))  # type: ignore[misc]
        assert covered >= 42


def test_the_interval_of_net_benefit_covers_the_truth() -> None:
    """In 100 tables of 120 rows the interval at 20% covers the net benefit of many rows in 90% to 99%."""
    happened, scores = drawn(0, 200_000)
    (truth,) = at_thresholds(happened, scores, [0.2], None, 0)
    spans = [at_thresholds(*drawn(seed, 120), [0.2], None, seed)[0].net_benefit for seed in range(1, 101)]

    covered = np.mean([one.low <= truth.net_benefit.value <= one.high for one in spans])  # type: ignore[operator]

    assert 0.90 <= covered <= 0.99


@for_each("seed", range(1))
def test_resamples_are_those_of_the_rows_written_out(seed: int) -> None:
    """The resamples' distances are those that the report's own measures find on the drawn rows written out."""
    happened, scores = drawn(seed, 150, 0.5)
    found = distance_spans(happened, scores, None, 7)
    indices = []
    for counts in over_patients(150, None, 7, 200).blocks():
        for count in counts:
            rows = np.repeat(np.arange(150), count.astype(int))
            smooth = smoothed(happened[rows], scores[rows])
            assert smooth is not None
            indices.append(float(np.abs(smooth - scores[rows]).mean()))

    # Knots are those of all rows here, and of the drawn ones there.
    assert found[INDEX][1] == pytest.approx(np.percentile(indices, 97.5), abs=0.015)  # type: ignore[index, arg-type]


@for_each("seed", range(10))
def test_rows_of_one_patient_count_as_one(seed: int) -> None:
    """Every row four times: as one patient's the intervals stay nearly as wide, as four patients' they shrink."""
    happened, scores = (np.repeat(part, 4) for part in drawn(seed, 100, 0.3))
    owners = np.repeat(np.arange(100), 4)

    whole, apart = (distance_spans(happened, scores, who, seed)[INDEX] for who in (owners, None))

    assert whole[1] - whole[0] > 1.2 * (apart[1] - apart[0])  # type: ignore[index, operator]


def test_what_is_undefined_has_no_interval() -> None:
    """Rows of one class have none, and equal predictions have one."""
    level = np.full(40, 0.3)

    assert set(distance_spans(np.zeros(40), np.linspace(0.1, 0.9, 40), None, 0).values()) == {None}
    found = distance_spans(np.repeat([0, 1], [28, 12]), level, None, 0)
    assert found[INDEX][0] == 0.0  # type: ignore[index]
    assert found[INDEX][1] < 0.2  # type: ignore[index, operator]


def test_classes_that_are_separated_have_intervals_too() -> None:
    """The curve's small penalty keeps it finite, and clear faults exclude 0."""
    happened = np.repeat([0, 1], 60)

    found = distance_spans(happened, np.repeat([0.45, 0.55], 60), None, 0)

    assert found[ERROR][0] > 0.3  # type: ignore[index, operator]
    assert found[INDEX][0] > 0.3  # type: ignore[index, operator]
