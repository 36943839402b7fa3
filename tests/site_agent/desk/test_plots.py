"""Plots show the computed values: paths are read back from the page and compared with values from other code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.metrics import precision_recall_curve, roc_curve

from site_agent.desk.comparison.evaluation import HeldOutRows
from site_agent.desk.comparison.scored_rows import scored_rows
from site_agent.desk.findings.curves import THRESHOLDS
from site_agent.desk.findings.drawings import calibration_plots, decision_plots, ranking_plots, title_of
from site_agent.desk.findings.facts import site_facts
from site_agent.desk.findings.plots import Axis, Series, plot
from site_agent.desk.findings.report_page import report_page
from site_agent.desk.findings.subgroups import subgroups
from tests.site_agent.trainer.after_a_run import RUN, site_after_run

LEFT, WIDTH, TOP, HEIGHT = 58, 390, 12, 272  # of the room between the axes
UNIT = Axis(label="", low=0.0, high=1.0)
Points = npt.NDArray[np.float64]


def drawn(markup: str, style: str, y: Axis = UNIT) -> Points:
    """The points of the path of a style in a plot, in the axes' own units, (points, 2); x from 0 to 1."""
    (path,) = re.findall(rf'<path class="{style}" d="(M[^"]+)"/>', markup.split("</svg>")[0])
    places = np.array([pair.split() for pair in re.split("[ML]", path)[1:]], dtype=np.float64)
    across, up = (places[:, 0] - LEFT) / WIDTH, 1 - (places[:, 1] - TOP) / HEIGHT
    return np.stack([across, y.low + up * (y.high - y.low)], axis=1)


def plots_of(markup: str) -> dict[str, str]:
    """Each figure's markup by its caption."""
    found = re.findall(r"<figure[^>]*><figcaption>(.*?)</figcaption>(.*?)</figure>", markup, re.DOTALL)
    return dict(found)


@pytest.fixture(scope="module")
def wine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mapping[str, Any], HeldOutRows, Points]:
    """The facts of a run with three classes, its test rows and the federated model's scores."""
    hospital = site_after_run(tmp_path_factory.mktemp("wine"), table="wine", siloed_baseline=False)
    kept = scored_rows(hospital.state_path, RUN)
    return site_facts(hospital, None), kept.test, kept.scores["federated"]


def test_the_drawn_ranking_is_scikit_learns(wine: tuple[Mapping[str, Any], HeldOutRows, Points]) -> None:
    """Each point of each class's ROC, and of its precision and recall, to a tenth of a pixel."""
    facts, rows, scores = wine
    plots = plots_of(report_page(facts))

    for place in range(3):
        false, true, _ = roc_curve(rows.labels == place, scores[:, place])
        precision, recall, _ = precision_recall_curve(rows.labels == place, scores[:, place])
        np.testing.assert_allclose(
            drawn(plots["ROC curve"], f"line c{place} d{place}"), np.stack([false, true], axis=1), atol=4e-4
        )
        np.testing.assert_allclose(
            drawn(plots["Precision and recall"], f"line c{place} d{place}"),
            np.stack([recall[::-1], precision[::-1]], axis=1),
            atol=4e-4,
        )


def test_each_class_has_its_own_decision_curve(wine: tuple[Mapping[str, Any], HeldOutRows, Points]) -> None:
    """With treating all of that class: prevalence minus the rest at the threshold's odds, by hand."""
    facts, rows, scores = wine
    plots = plots_of("".join(decision_plots({**facts, "thresholds": [0.1, 1 / 1.2]})))

    assert list(plots) == [f"Decision curve, class {name}" for name in rows.classes]
    for place, markup in enumerate(plots.values()):
        share = float((rows.labels == place).mean())
        inside = facts["treat_all"][rows.classes[place]]
        highest = max(*inside["ys"], *facts["curves"]["federated"][rows.classes[place]]["decision"]["ys"])
        y = Axis(label="", low=-0.25 * highest, high=1.1 * highest)
        for threshold, benefit in drawn(markup, "line all", y)[:-1]:
            assert benefit == pytest.approx(share - (1 - share) * threshold / (1 - threshold), abs=6e-3)
        model = drawn(markup, "line c0 d0", y)
        treated = scores[:, place] >= 0.5
        hits, misses = (treated & (rows.labels == place)).mean(), (treated & (rows.labels != place)).mean()
        assert model[THRESHOLDS.index(0.5), 1] == pytest.approx(hits - misses, abs=2e-3)
        assert "treat all" in markup
        assert "treat nobody" in markup


def test_a_line_that_leaves_a_plot_ends_at_its_border() -> None:
    """Lines are in an inner svg with the room between the axes, and a browser shows nothing outside of it."""
    markup = plot("", UNIT, UNIT, [Series(label="", xs=[0.0, 0.5, 1.0], ys=[0.5, 1.5, 0.5], colour=0)])

    (inner,) = re.findall(
        r'<svg x="(\S+)" y="(\S+)" width="(\S+)" height="(\S+)" viewBox="([^"]+)"[^>]*>(<path[^>]+>)</svg>', markup
    )

    assert [int(number) for number in inner[:4]] == [LEFT - 2, TOP - 2, WIDTH + 4, HEIGHT + 4]
    assert inner[4] == " ".join(inner[:4])  # so the path has the same places as the axes
    assert 'd="M58.0 148.0L253.0 -124.0L448.0 148.0"' in inner[5]


def test_every_model_has_a_line_or_is_named() -> None:
    """Seven models and a guess: seven lines of ranking, seven plots of calibration, and a sentence for the guess."""
    names = ["federated", "siloed", "placebo", "logistic_regression", "random_forest", "gradient_boosting"]
    line = {"xs": [0.0, 1.0], "ys": [0.0, 1.0]}
    of_one = {
        "receiver_operating_characteristic": line,
        "precision_recall": line,
        "decision": line,
        "calibration": {"groups": line, "smooth": line, "rows": [1, 1]},
    }
    curves = {name: {"yes": of_one} for name in [*names, "majority_guess"]}
    facts = {"task": "binary", "curves": curves, "treat_all": {"yes": line}, "prevalence": 0.5}

    ranking, left_out = ranking_plots(facts)
    calibrated, others = calibration_plots(facts)

    for plotted in plots_of(ranking).values():
        assert len(set(re.findall(r'class="line (c\d d\d)" d="M5', plotted))) == 7
    assert "guess by prevalence" in left_out
    assert list(plots_of(calibrated)) == [f"Calibration, {title_of(name)}" for name in names]
    assert "guess by prevalence" in others


@pytest.mark.parametrize(("each", "is_small"), [(1, False), (5, True)])
def test_a_group_is_as_small_as_its_rarest_class_in_patients(each: int, is_small: bool) -> None:
    """Ninety rows of three classes are thirty patients each, or six where a patient has five rows."""
    labels = np.repeat([0, 1, 2], 30)
    rows = HeldOutRows(task="multi-class", targets=labels, classes=("a", "b", "c"), patients=np.arange(90) // each)
    scores = np.eye(3)[labels] * 0.8 + 0.2 / 3

    (found,) = subgroups(rows, scores, {"ward": ["x"] * 90}, 0)

    assert found.fewest == 30 // each
    assert found.is_small is is_small


def test_the_page_of_a_figure_is_one_line_of_points(tmp_path: Path) -> None:
    """An outcome that is a number is drawn as predicted against observed, a point for each test row."""
    hospital = site_after_run(tmp_path, table="diabetes", siloed_baseline=False)
    facts, kept = site_facts(hospital, None), scored_rows(hospital.state_path, RUN)

    markup = plots_of(report_page(facts))["Predicted and observed"]

    assert markup.split("</svg>")[0].count("<circle") == min(300, len(kept.test))
    assert facts["predicted_and_observed"]["ys"] == pytest.approx(kept.test.targets.tolist())  # type: ignore[index,call-overload]
