"""Plots of a report: the same numbers give the same bytes, and every model has a plot."""

from __future__ import annotations

import base64
import re

import numpy as np
import pytest

from host.plots import Axis, Series, plot
from site_agent.desk.comparison.evaluation import HeldOutRows
from site_agent.desk.findings.facts import subgroups
from site_agent.desk.findings.report_page import calibration_plots, title_of

UNIT = Axis(label="<x>", low=0.0, high=1.0)


def test_equal_numbers_give_equal_bytes_that_load_nothing() -> None:
    """A drawing has no date, no random identifier and no address of another file, and its words are text."""
    lines = [Series(label="<b>", xs=[0.0, 1.0], ys=[0.5, 1.5], kind=kind) for kind in ("line", "points", "reference")]
    markup = plot("<about>", UNIT, UNIT, lines)

    assert markup == plot("<about>", UNIT, UNIT, lines)
    assert 'alt="&lt;about&gt;"' in markup
    svg = base64.b64decode(markup.partition("base64,")[2].partition('"')[0]).decode()
    assert re.findall(r'href="(?!#)|@import|<script|<image|url\((?!#)', svg) == []


def test_every_model_has_a_plot() -> None:
    """Each model but the guess has a plot of calibration."""
    names = ["federated", "siloed", "placebo", "random_forest"]
    line = {"xs": [0.0, 1.0], "ys": [0.0, 1.0]}
    facts = {"task": "binary", "calibration_curves": dict.fromkeys([*names, "majority_guess"], line)}

    (calibrated,) = calibration_plots(facts)

    told = re.findall(r"<figcaption>(.*?)</figcaption><", calibrated)
    assert told == [f"Calibration, {title_of(name)}" for name in names]


@pytest.mark.parametrize(("each", "is_small"), [(1, False), (5, True)])
def test_a_group_is_as_small_as_its_rarest_class_in_patients(each: int, is_small: bool) -> None:
    """Ninety rows of three classes are thirty patients each, or six where a patient has five rows."""
    labels = np.repeat([0, 1, 2], 30)
    rows = HeldOutRows(task="multi-class", targets=labels, classes=("a", "b", "c"), patients=np.arange(90) // each)
    scores = np.eye(3)[labels] * 0.8 + 0.2 / 3

    (found,) = subgroups(rows, scores, {"ward": ["x"] * 90}, 0)

    assert found["fewest"] == 30 // each
    assert found["is_small"] is is_small
