"""Metrics equal scikit-learn's, calibration equals values by hand, and what is undefined is None."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import numpy.typing as npt
import pytest
from sklearn import metrics

from site_agent.desk.comparison.evaluation import HeldOutRows, Scores, calibration, measure
from site_agent.trainer.fitted_models import probabilities
from tests.for_each import for_each

TWO = ("negative", "positive")


@pytest.mark.parametrize("classes", [2, 4])
@for_each("seed", range(20))
def test_classes_are_measured_as_scikit_learn_does(seed: int, classes: int) -> None:
    """All four metrics. Of several classes each is measured against the rest, and the macro mean is taken."""
    generator = np.random.default_rng(seed)
    targets = np.r_[:classes, generator.integers(0, classes, size=60)]
    scores, apart = np.round(generator.random(62), 1), targets
    if classes > 2:
        scores, apart = probabilities("multi-class", generator.normal(size=(64, 4))), np.eye(4)[targets]

    found = measure(
        "binary" if classes == 2 else "multi-class", targets, scores, TWO if classes == 2 else tuple("abcd")
    )

    assert found == pytest.approx(
        {
            "auroc": metrics.roc_auc_score(targets, scores, multi_class="ovr", average="macro"),
            "auprc": metrics.average_precision_score(apart, scores, average="macro"),
            "brier": metrics.brier_score_loss(targets, scores),
            "log_loss": metrics.log_loss(targets, scores),
        }
    )


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_leaves_most_metrics_undefined(label: int) -> None:
    """None, so that nobody averages a NaN or a made-up 0.5; losses are still numbers."""
    binary = measure("binary", np.full(5, label), np.full(5, 0.9), TWO)
    several = measure("multi-class", np.full(5, label), np.eye(3)[np.full(5, label)], tuple("abc"))

    assert binary == {
        "auroc": None,
        "auprc": None,
        "brier": pytest.approx((label - 0.9) ** 2),
        "log_loss": pytest.approx(-math.log(0.9 if label else 0.1)),
    }
    assert several["brier"] == 0.0
    assert several["auroc"] is None


def test_losses_of_probabilities_by_hand() -> None:
    """Brier counts the positive class alone, or all classes; certainty that was wrong costs 36 nats, not infinity."""
    binary = measure("binary", np.array([1, 0]), np.array([0.8, 0.4]), TWO)
    several = measure("multi-class", np.array([1, 0]), np.array([[0.2, 0.8], [0.6, 0.4]]), TWO)
    wrong = measure("binary", np.array([1, 0]), np.array([0.0, 1.0]), TWO)

    assert binary["brier"] == pytest.approx((0.04 + 0.16) / 2)
    assert several["brier"] == pytest.approx(0.04 + 0.16)
    assert binary["log_loss"] == several["log_loss"] == pytest.approx(-(math.log(0.8) + math.log(0.6)) / 2)
    assert wrong["log_loss"] == pytest.approx(52 * math.log(2))


def test_held_out_rows_show_no_patient() -> None:
    """Their words in a traceback say how many they are, and their metrics are those of `measure`."""
    rows = HeldOutRows(task="binary", targets=np.array([0, 1, 1]), classes=TWO)

    assert repr(rows) == "HeldOutRows(rows=3)"
    assert rows.evaluate(np.array([0.1, 0.7, 0.8]))["auroc"] == 1.0


def test_numbers_are_measured_in_their_own_unit() -> None:
    """Root mean square, mean absolute error and r2 by hand; r2 is undefined for a constant."""
    found = measure("regression", np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.0, 6.0]), ())
    constant = measure("regression", np.array([2.0, 2.0]), np.array([1.0, 3.0]), ())

    assert found == pytest.approx({"rmse": 3**0.5, "mae": 1.0, "r2": -3.5})
    assert constant == {"rmse": 1.0, "mae": 1.0, "r2": None}


def drawn(seed: int, rows: int, tilt: float = 1.0, shift: float = 0.0) -> tuple[npt.NDArray[np.int64], Scores]:
    """Outcomes of probability sigmoid(shift + tilt * logit), and the probabilities that a model says."""
    generator = np.random.default_rng(seed)
    logit = generator.normal(-0.5, 1.2, size=rows)
    happened = generator.random(rows) < probabilities("binary", shift + tilt * logit)
    return happened.astype(np.int64), probabilities("binary", logit)


def test_two_groups_by_hand() -> None:
    """One of four at 20% and three of four at 60%: the line goes through both groups exactly."""
    scores = np.repeat([0.2, 0.6], 4)
    found = calibration(np.array([1, 0, 0, 0, 1, 1, 1, 0]), scores)

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
