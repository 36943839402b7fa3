"""Curves against values computed by hand."""

from __future__ import annotations

import numpy as np
import pytest

from site_agent.desk.findings.curves import (
    THRESHOLDS,
    calibration_curve,
    decision_curve,
    precision_recall,
    receiver_operating_characteristic,
)

HAPPENED = np.array([0, 0, 1, 0, 1, 1, 0, 1])
SCORES = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.6, 0.9])


def test_net_benefit_by_hand() -> None:
    """At a threshold of 0.5 three of the four treated had the outcome, at 0.2 four of seven: at odds of 1 and 0.25."""
    found = dict(zip(THRESHOLDS, decision_curve(HAPPENED, SCORES).ys, strict=True))

    assert found[0.5] == pytest.approx(3 / 8 - 1 / 8)
    assert found[0.2] == pytest.approx(4 / 8 - 3 / 8 * 0.25)
    assert found[0.8] == pytest.approx(1 / 8)
    assert found[0.95] == 0.0


def test_calibration_groups_by_hand() -> None:
    """Twenty rows in ten groups of two: mean probability against the share that had the outcome."""
    scores = np.repeat(np.linspace(0.05, 0.95, 10), 2) + np.tile([0.0, 0.02], 10)
    happened = np.array([0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1])

    found = calibration_curve(happened, scores)

    assert found is not None
    np.testing.assert_allclose(found.xs, np.linspace(0.06, 0.96, 10))
    np.testing.assert_allclose(found.ys, [0, 0, 0.5, 0, 0.5, 0.5, 1, 0.5, 1, 1])


def test_one_class_has_no_ranking() -> None:
    """None instead of a number that somebody would read."""
    assert receiver_operating_characteristic(np.ones(8), SCORES) is None
    assert precision_recall(np.zeros(8), SCORES) is None
    assert calibration_curve(np.ones(8), SCORES) is None
