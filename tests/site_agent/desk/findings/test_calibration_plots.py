"""When a difference counts, and the points of a calibration curve, against values by hand."""

from __future__ import annotations

import numpy as np
import pytest

from site_agent.desk.comparison.evaluation import calibration_curve
from site_agent.desk.findings.report_page import verdict


@pytest.mark.parametrize(
    ("metric", "difference", "interval", "words"),
    [
        ("auroc", 0.1, [0.01, 0.2], "better"), ("auroc", -0.1, [-0.2, -0.01], "worse"),
        ("brier", 0.1, [0.01, 0.2], "worse"), ("rmse", -0.1, [-0.2, -0.01], "better"),
        ("auroc", 0.1, [-0.01, 0.2], "no clear difference"), ("auroc", 0.1, None, "no clear difference"),
    ],
)  # fmt: skip
def test_better_is_said_only_beyond_chance(
    metric: str, difference: float, interval: list[float] | None, words: str
) -> None:
    """Whether more is better depends on the metric."""
    assert verdict(metric, difference, interval) == words


def test_calibration_groups_by_hand() -> None:
    """Twenty rows in ten groups of two: mean probability against the share that had the outcome."""
    scores = np.repeat(np.linspace(0.05, 0.95, 10), 2) + np.tile([0.0, 0.02], 10)
    found = calibration_curve(np.array([0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1]), scores)

    assert found is not None
    np.testing.assert_allclose(found["xs"], np.linspace(0.06, 0.96, 10))
    np.testing.assert_allclose(found["ys"], [0, 0, 0.5, 0, 0.5, 0.5, 1, 0.5, 1, 1])


def test_one_class_has_no_curve() -> None:
    """None instead of a number that somebody would read."""
    assert calibration_curve(np.ones(8), np.linspace(0.1, 0.9, 8)) is None
