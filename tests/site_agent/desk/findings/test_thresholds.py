"""Shares and net benefit at a threshold, how certain they are, and curves, against values by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix

from site_agent.desk.comparison.evaluation import calibration_curve
from site_agent.desk.findings.clinical_parts import verdict
from site_agent.desk.findings.thresholds import at_thresholds
from tests.for_each import for_each


def drawn(seed: int, rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes and probabilities that are right on average."""
    generator = np.random.default_rng(seed)
    scores = generator.beta(1.0, 3.0, size=rows)
    return (generator.random(rows) < scores).astype(np.int64), scores


@for_each("seed", range(20))
def test_the_shares_are_scikit_learns(seed: int) -> None:
    """The four counts of each threshold give all five shares, each inside its interval, which is scipy's."""
    happened, scores = drawn(seed)
    threshold = float(np.random.default_rng(seed).uniform(0.05, 0.6))

    (found,) = at_thresholds(happened, scores, [threshold], None)

    ((true_no, false_yes), (false_no, true_yes)) = confusion_matrix(happened, scores >= threshold)
    for share, count, among in (
        (found["sensitivity"], true_yes, true_yes + false_no),
        (found["specificity"], true_no, true_no + false_yes),
        (found["positive_predictive_value"], true_yes, true_yes + false_yes),
        (found["negative_predictive_value"], true_no, true_no + false_no),
        (found["treated"], true_yes + false_yes, len(happened)),
    ):
        interval = binomtest(int(count), int(among)).proportion_ci(method="wilson")
        assert share["value"] == pytest.approx(count / among)
        assert share["interval"] == pytest.approx([interval.low, interval.high], abs=1e-9)


@pytest.mark.parametrize(
    ("metric", "difference", "interval", "words"),
    [
        ("auroc", 0.1, [0.01, 0.2], "better"),
        ("auroc", -0.1, [-0.2, -0.01], "worse"),
        ("brier", 0.1, [0.01, 0.2], "worse"),
        ("rmse", -0.1, [-0.2, -0.01], "better"),
        ("auroc", 0.1, [-0.01, 0.2], "no clear difference"),
        ("auroc", 0.1, None, "no clear difference"),
    ],
)
def test_better_is_said_only_beyond_chance(
    metric: str, difference: float, interval: list[float] | None, words: str
) -> None:
    """Whether more is better depends on the metric."""
    assert verdict(metric, difference, interval) == words


HAPPENED = np.array([0, 0, 1, 0, 1, 1, 0, 1])
SCORES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6, 0.9])


def test_net_benefit_by_hand() -> None:
    """At a threshold of 0.5 three of the four treated had the outcome, at 0.2 four of seven: at odds of 1 and 0.25."""
    thresholds = [0.2, 0.5, 0.8, 0.95]
    found = {one["threshold"]: one["net_benefit"] for one in at_thresholds(HAPPENED, SCORES, thresholds, None)}

    assert found[0.5] == pytest.approx(3 / 8 - 1 / 8)
    assert found[0.2] == pytest.approx(4 / 8 - 3 / 8 * 0.25)
    assert found[0.8] == pytest.approx(1 / 8)
    assert found[0.95] == 0.0


def test_calibration_groups_by_hand() -> None:
    """Twenty rows in ten groups of two: mean probability against the share that had the outcome."""
    scores = np.repeat(np.linspace(0.05, 0.95, 10), 2) + np.tile([0.0, 0.02], 10)
    found = calibration_curve(np.array([0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1]), scores)

    assert found is not None
    np.testing.assert_allclose(found["xs"], np.linspace(0.06, 0.96, 10))
    np.testing.assert_allclose(found["ys"], [0, 0, 0.5, 0, 0.5, 0.5, 1, 0.5, 1, 1])


def test_one_class_has_no_curve() -> None:
    """None instead of a number that somebody would read."""
    assert calibration_curve(np.ones(8), SCORES) is None
