"""Calibration measures are compared with values computed by hand, and with their meaning."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import numpy.typing as npt
import pytest

from site_agent.desk.comparison.calibration import calibration
from site_agent.desk.comparison.evaluation import Scores
from site_agent.trainer.plain_models import probabilities
from tests.for_each import for_each


def drawn(seed: int, rows: int, tilt: float = 1.0, shift: float = 0.0) -> tuple[npt.NDArray[np.int64], Scores]:
    """Outcomes of probability sigmoid(shift + tilt * logit), and the probabilities that a model says."""
    generator = np.random.default_rng(seed)
    logit = generator.normal(-0.5, 1.2, size=rows)
    happened = generator.random(rows) < probabilities("binary", shift + tilt * logit)
    return happened.astype(np.int64), probabilities("binary", logit)


@for_each("seed", range(20))
def test_the_line_solves_the_equations_of_logistic_regression(seed: int) -> None:
    """At the fit neither the residuals nor their product with the logit has a sum."""
    happened, scores = drawn(seed, 80, 0.7, 0.4)
    found = calibration(happened, scores)
    assert found.intercept is not None
    assert found.slope is not None
    logit = np.log(scores / (1 - scores))

    wrong = happened - probabilities("binary", found.intercept + found.slope * logit)

    assert wrong.sum() == pytest.approx(0.0, abs=1e-6)
    assert (wrong * logit).sum() == pytest.approx(0.0, abs=1e-6)


def test_two_groups_by_hand() -> None:
    """One of four at 20% and three of four at 60%: the line goes through both groups exactly."""
    scores = np.repeat([0.2, 0.6], 4)
    happened = np.array([1, 0, 0, 0, 1, 1, 1, 0])

    found = calibration(happened, scores)

    low, high = np.log(0.2 / 0.8), np.log(0.6 / 0.4)
    slope = (np.log(3.0) - np.log(1.0 / 3.0)) / (high - low)
    assert found.slope == pytest.approx(slope, rel=1e-6)
    assert found.intercept == pytest.approx(np.log(3.0) - slope * high, rel=1e-6)
    assert (found.predicted, found.observed) == pytest.approx((0.4, 0.5))


@pytest.mark.parametrize("scores", [[0.1, 0.2, 0.7, 0.8], [0.1, 0.4, 0.4, 0.8], [0.5] * 4, [0.8, 0.7, 0.2, 0.1]])
def test_a_score_that_parts_the_classes_has_no_slope(scores: list[float]) -> None:
    """No line is steep enough. The means are still there, and finite."""
    found = calibration(np.array([0, 0, 1, 1]), np.array(scores))

    assert (found.intercept, found.slope) == (None, None)
    assert json.dumps(asdict(found), allow_nan=False)
