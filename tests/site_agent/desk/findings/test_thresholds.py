"""Sensitivity, predictive values and net benefit at a threshold, and how certain they and the calibration are."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix

from site_agent.desk.comparison.bootstrap_intervals import over_patients
from site_agent.desk.comparison.calibration import calibration, recalibration
from site_agent.desk.findings.calibration_spans import calibration_spans
from site_agent.desk.findings.clinical_parts import verdict
from site_agent.desk.findings.curves import THRESHOLDS, decision_curve
from site_agent.desk.findings.thresholds import at_thresholds, prevalence_of
from tests.for_each import for_each


@pytest.fixture(scope="module", autouse=True)
def small_reports() -> None:
    """The intervals are those of all resamples."""


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

    (found,) = at_thresholds(happened, scores, [threshold], None, seed)

    ((true_no, false_yes), (false_no, true_yes)) = confusion_matrix(happened, scores >= threshold)
    for share, count, among in (
        (found.sensitivity, true_yes, true_yes + false_no),
        (found.specificity, true_no, true_no + false_yes),
        (found.positive_predictive_value, true_yes, true_yes + false_yes),
        (found.negative_predictive_value, true_no, true_no + false_no),
        (found.treated, true_yes + false_yes, len(happened)),
    ):
        interval = binomtest(int(count), int(among)).proportion_ci(method="wilson")
        assert share.value == pytest.approx(count / among)
        assert (share.low, share.high) == pytest.approx((interval.low, interval.high), abs=1e-9)


@for_each("seed", range(10))
def test_net_benefit_is_that_of_the_decision_curve(seed: int) -> None:
    """Also its difference to the better of treating all and nobody, and both lie in their intervals."""
    happened, scores = drawn(seed)

    found = at_thresholds(happened, scores, THRESHOLDS[4:50:5], None, seed)

    curve = dict(zip(THRESHOLDS, decision_curve(happened, scores).ys, strict=True))
    share = happened.mean()
    for one in found:
        everybody = share - (1 - share) * one.threshold / (1 - one.threshold)
        assert one.net_benefit.value == pytest.approx(curve[one.threshold])
        assert one.difference.value == pytest.approx(curve[one.threshold] - max(0.0, everybody))
        assert one.compared_with == ("treating all" if everybody > 1e-9 else "treating nobody")
        for span in (one.net_benefit, one.difference):
            assert span.low is not None
            assert span.high is not None
            assert span.low - 1e-12 <= span.value <= span.high + 1e-12  # type: ignore[operator]


def test_rows_of_one_patient_make_nothing_more_certain() -> None:
    """Each row five times is no more information: intervals stay as they were; without a row nothing is defined."""
    happened, scores = drawn(3)
    patients = np.repeat(np.arange(len(happened)), 5)

    (once,) = at_thresholds(happened, scores, [0.3], None, 0)
    (often,) = at_thresholds(np.repeat(happened, 5), np.repeat(scores, 5), [0.3], patients, 0)
    (nobody,) = at_thresholds(happened, scores * 0.1, [0.9], None, 0)

    assert often.sensitivity == once.sensitivity
    assert (often.net_benefit.low, often.net_benefit.high) == pytest.approx(
        (once.net_benefit.low, once.net_benefit.high)
    )
    assert prevalence_of(np.repeat(happened, 5), patients) == prevalence_of(happened, None)
    assert nobody.positive_predictive_value.value is None
    assert nobody.sensitivity.value == 0.0


def test_calibration_lines_of_resamples_are_scikit_learns() -> None:
    """The spans are the percentiles of lines that a library fits to the drawn rows."""
    happened, scores = drawn(5, 300)
    lines = []
    for counts in over_patients(300, None, 7, 200).blocks():
        for count in counts:
            rows = np.repeat(np.arange(300), count.astype(int))
            lines.append(recalibration(happened[rows], scores[rows]))

    found = calibration_spans(happened, scores, None, 7)

    slopes = [line[1] for line in lines if line]
    intercepts = [line[0] for line in lines if line]
    assert len(slopes) == 200
    assert found["slope"] == pytest.approx(list(np.percentile(slopes, [2.5, 97.5])), abs=1e-4)
    assert found["intercept"] == pytest.approx(list(np.percentile(intercepts, [2.5, 97.5])), abs=1e-4)


@for_each("seed", range(40))
def test_good_predictions_have_good_calibration_in_most_tables(seed: int) -> None:
    """The intervals include 0 and 1 in about 95 of 100 tables; here far outside of none."""
    happened, scores = drawn(seed, 400)

    found = calibration_spans(happened, scores, None, seed)

    low, high = found["slope"]  # type: ignore[misc, union-attr]
    shift = calibration(happened, scores).in_the_large
    assert found["in_the_large"][0] < shift < found["in_the_large"][1]  # type: ignore[index, operator]
    assert low < 1.35  # type: ignore[operator]
    assert high > 0.75  # type: ignore[operator]


def test_classes_that_are_separated_have_no_interval() -> None:
    """Nor has an outcome that nobody had."""
    happened = np.repeat([0, 1], 20)

    assert calibration_spans(happened, happened * 0.8 + 0.1, None, 0)["slope"] is None
    assert set(calibration_spans(np.zeros(20), np.linspace(0.1, 0.9, 20), None, 0).values()) == {None}


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
