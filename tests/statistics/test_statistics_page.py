"""The page of a plan's results: every number is on it, own estimates only where they belong, and names are texts."""

from __future__ import annotations

import io
import re
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from statsmodels.api import Logit, add_constant

import host
from host import plots, statistics_drawings
from host import statistics_page as made
from host.plots import Axis, Series
from host.statistics_page import statistics_page
from protos.plan.analyses import Cox, Curve, Regression, Unanswerable
from protos.statistics.cox import CoxArithmetic
from protos.statistics.group_curves import CurveArithmetic
from protos.statistics.printed_results import named, results_as_csv, results_as_lines
from protos.statistics.regression import RegressionArithmetic
from tests.statistics.federations import frames_of as frames_of_plan
from tests.statistics.federations import patients, results_of, statistics_plan
from tests.statistics.one_process import concepts_of, frames_of, run, size, without_missing
from tests.statistics.survival_tables import LUNG, ROSSI, SurvivalTable
from tests.statistics.test_regression import regression

HEAD = {"study": "lungs <b>", "version": 2, "plan_digest": "ab" * 32, "run": "lungs-2", "sites": ["one", "two"]}
TABLE_ONE: dict[str, Any] = {
    "name": "characteristics", "kind": "table_one", "groups": ["all", "arm=a"],
    "units": {"age": "years", "rare": None},
    "columns": {
        "age": {
            "all": {"rows": 1200, "missing": 7, "mean": 61.25, "deviation": 9.5, "quartiles": [55.0, 61.0, 68.5],
                    "resolution": 0.5},
            "arm=a": {"rows": 1, "missing": 0, "mean": None, "deviation": None},
        },
        "stage": {"all": {"rows": 3, "missing": 0, "codes": {"<I>": {"rows": 2, "share": 2 / 3}}},
                  "arm=a": {"rows": 0, "missing": 0, "codes": {"<I>": {"rows": 0, "share": None}}}},
        "rare": {"all": {"void": "join codes of rare"}, "arm=a": {"void": "join codes of rare"}},
    },
}  # fmt: skip


def _results(table: SurvivalTable) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is printed, and what the first site has alone."""
    concepts, of = concepts_of(table.rows.drop(columns="site"), table.coded), size(table.rows["site"].nunique())
    frames, grid = frames_of(table.rows, "site", table.coded), float(table.rows["time"].max()) / 20
    cox = CoxArithmetic(Cox(time="time", event="event", terms=table.terms), concepts, of)
    wide = Curve(time="time", event="event", by=table.by, grid=grid, to=20 * grid)
    curve = CurveArithmetic(wide, concepts, replace(of, fewest_sites=1))
    analyses = [
        {"name": "hazards"} | run(cox, frames)[0], {"name": "survival"} | run(curve, frames)[0],
        {"name": "other", "refused": "age follows from the other columns."}, TABLE_ONE,
    ]  # fmt: skip
    own = {"survival": curve.own(frames[0]), "characteristics": TABLE_ONE}
    with suppress(Unanswerable):  # one site of rossi alone has no estimate
        own["hazards"] = cox.own(without_missing(frames[0]))
    return HEAD | {"analyses": analyses}, own


@pytest.mark.parametrize("table", [LUNG, ROSSI], ids=["lung", "rossi"])
def test_every_estimate_is_on_the_page(table: SurvivalTable) -> None:
    """Each term has its ratio, interval, coefficient and p value; each curve its median; each plot its description."""
    results, _ = _results(table)
    page = statistics_page(results)
    for term in named(results["analyses"][0]["terms"]):
        row = re.search(rf'<th scope="row">{term["label"]}</th>(.*?)</tr>', page)
        assert row is not None
        assert f"{term['estimate']:.4g}" in row[1]
        assert f"{term['error']:.4g}" in row[1]
    for group in results["analyses"][1]["groups"]:
        assert f"<td>{group['patients']:,}</td><td>{group['events']:,}</td>" in page
    assert page.count('<img class="plot"') == 2
    assert "61.2 (9.50)" in page
    assert "61.0 [55.0, 68.5]" in page
    left_out = [{**one, "rows that take no part": 1234} for one in results["analyses"]]
    assert statistics_page({**results, "analyses": left_out}).count("1,234 further rows") == 1
    assert "2 (66.7)" in page
    assert "age follows from the other columns." in page
    assert "ab" * 32 in page


def test_the_csv_is_tidy_and_a_median_has_its_unit() -> None:
    """Each column has one kind, and each estimate one row with its interval. The terminal names units and ratios."""
    hazards, survival, *others = (content := _results(LUNG)[0])["analyses"]
    table = pd.read_csv(io.StringIO(results_as_csv([hazards, survival, *others])))

    assert set(table.dtypes[["at", "estimate", "error", "low", "high", "p", "degrees"]]) == {np.dtype(float)}
    assert not table.duplicated(["analysis", "statistic", "term", "group", "at"]).any()
    terms, groups = (
        table[table.statistic == one].set_index(of) for one, of in (("coefficient", "term"), ("median", "group"))
    )
    for term in hazards["terms"]:
        assert all(terms.loc[term["term"], key] == term[key] for key in ("estimate", "error", "low", "high", "p"))
    header, *lines = [*results_as_lines(content | {"analyses": [hazards]})][3:]
    assert hazards["ratio"] in header
    for term, line in zip(hazards["terms"], lines, strict=False):
        assert f"[{np.exp(term['low']):.4g}, {np.exp(term['high']):.4g}]" in line
    header, *lines = [*results_as_lines(content | {"analyses": [survival | {"unit": "weeks"}]})][2:]
    assert "weeks" in header
    for group, line in zip(survival["groups"], lines, strict=False):
        assert groups.loc[group["group"], "estimate"] == (median := group["median"])["value"]
        assert f"{median['value']:g}  [{median['low']:g}, " in line


def test_a_spline_is_shown_by_its_test_and_its_knots() -> None:
    """A hazard ratio of one of its columns says nothing: neither terminal nor CSV has it, nor a knot against itself."""
    model = {"terms": ["age", "sex"], "splines": {"age": [45.0, 55.0, 65.0]}}
    plan = statistics_plan({"name": "survival", "cox": {"time": "days", "event": "died", **model}})
    found = results_of(plan, frames_of_plan(plan, patients(0)))

    head = {"study": "deaths", "version": 1, "run": "deaths-v1"}
    lines, table = [*results_as_lines(head | {"analyses": found})][4:], pd.read_csv(io.StringIO(results_as_csv(found)))

    named_first = "sex: male", "age 45 against", "age 65 against", "age  ", "age, not", "proportional"
    assert all(line.startswith(f"  {name}") for name, line in zip(named_first, lines, strict=True))
    assert len({line.find("]") for line in lines[:3]}) == 1
    assert table[table.statistic == "hazard ratio"].term.to_list() == ["sex=male"]


def test_numbers_at_risk_stand_where_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """At ends of intervals, and not at a round time between two of them: of months the axis has the number."""
    monkeypatch.setattr(statistics_drawings, "image", lambda _, figure: figure)
    groups = _results(LUNG)[0]["analyses"][1]["groups"]
    for is_monthly, first in ((False, f"{groups[0]['times'][5]:.4g}"), (True, "6")):
        (axes, _) = statistics_drawings.survival("", "", groups, is_monthly=is_monthly).axes
        assert set() < set(axes.get_xticks()) < set(groups[0]["times"])
        assert axes.get_xticklabels()[1].get_text() == first


def test_a_telephone_shows_all_letters_of_a_plot(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 390 pixels each letter has 11, and the longest names are in the plot, between its edges."""
    for one in (plots, statistics_drawings):
        monkeypatch.setattr(one, "image", lambda _, figure: figure)
    name, axis = "stage: " + "Advanced III-B " * 5, Axis(label="share that had the outcome", low=0.0, high=1.0)
    legend = [Series(label=words, xs=[0], ys=[0]) for words in ("perfect", "groups of about equal size")]
    groups = [one | {"group": name} for one in _results(LUNG)[0]["analyses"][1]["groups"]]
    terms = [{"term": "a", "label": name, "low": 1e-3, "value": 1.0, "high": 1e3, "text": "0.988 (0.954 to 1.024)"}]
    for drawn in (
        statistics_drawings.survival("", "days", groups, is_monthly=True),
        statistics_drawings.forest("", "odds ratio", terms * 3, {"a": terms[0]}, is_ratio=True),
        plots.plot("", axis, axis, legend),
    ):
        drawn.draw_without_rendering()
        letters = min(one.get_fontsize() for one in drawn.findobj(Text) if one.get_text())
        assert letters / 72 / drawn.get_figwidth() * (390 - 2 * 14.4) >= 11
        ends = drawn.get_tightbbox().get_points()
        np.testing.assert_array_equal(np.clip(ends, 0.0, drawn.get_size_inches()), ends)


def test_a_term_is_named_as_a_clinician_would() -> None:
    """Each code has its reference beside it; a colon in a code divides no product."""
    scales = {"age:sex=male": "per unit, against female", "age": "per unit", "sex=male": "against female",
              "stage=II": "against I", "stage=at: III": "against I", "her2=c:pos": "against c", "age'": ""}  # fmt: skip
    assert [one["label"] for one in named([{"term": name, "scale": scale} for name, scale in scales.items()])] == [
        "age × sex: male", "age, per unit", "sex: male, against female", "stage: II, against I",
        "stage: at: III, against I", "her2: c:pos, against c", "age'",
    ]  # fmt: skip


def test_own_estimates_are_on_the_own_page_only() -> None:
    """The page of the coordinator has no word about a single hospital, nor why it did not answer."""
    (results, own), reason = _results(LUNG), "Only 3 rows have the event."

    with_own, without = statistics_page(results, own, [reason]), statistics_page(results)

    assert [reason in page for page in (with_own, without)] == [True, False]
    assert with_own.count("this hospital alone") >= 2
    assert [page.count("61.2 (9.50)") for page in (with_own, without)] == [2, 1]
    assert "his hospital alone" not in without
    for found in own["hazards"].values():
        assert made._with_ends(*np.exp([found["estimate"], found["low"], found["high"]])) in with_own


def test_a_hospital_gets_its_own_estimates_of_every_model() -> None:
    """Also of regressions, by the arithmetic for all sites."""
    table = replace(ROSSI, terms=("age", "prio"))
    concepts, frames = concepts_of(table.rows, table.coded), frames_of(table.rows, "site", table.coded)
    model = Regression(family="binomial", outcome="event", terms=table.terms)
    arithmetic = RegressionArithmetic(model, concepts, size(5))
    first = table.rows[table.rows["site"] == 0]

    own = arithmetic.own(frames[0])
    expected = Logit(first["event"], add_constant(first[["age", "prio"]])).fit(disp=0, tol=1e-14)

    assert set(own) == {"age", "prio"}
    for term, found in own.items():
        alone = [expected.params[term], *expected.conf_int().loc[term]]
        np.testing.assert_allclose([found["estimate"], found["low"], found["high"]], alone)
    results = {"name": "death"} | run(arithmetic, frames)[0]
    page = statistics_page(HEAD | {"analyses": [results]}, {"death": own})
    assert all(made._with_ends(*np.exp(list(found.values()))) in page for found in own.values())


def test_a_page_names_what_it_counts() -> None:
    """F tests, rows of patients under robust errors, exposures of 0, rows beside products, totals of a rate."""
    table = patients(4).assign(patient=lambda rows: np.arange(len(rows)) // 2)
    table.loc[::40, "days"] = 0.0
    plan = statistics_plan(
        regression("F", family="gaussian", outcome="pressure", terms=["stage", "stage:sex", "sex"]),
        regression("rows", robust=True, terms=["sex"]),
        regression("rates", family="poisson", outcome="admissions", exposure="days", terms=["sex"]),
    )
    found = results_of(plan, frames_of_plan(plan, table, patients="patient"))

    pages = [statistics_page(HEAD | {"analyses": [one]}) for one in found]

    shown = ">F</th>", "joint test of one of its columns", f"of {len(table) // 2} patients of", "exposure above 0"
    counted = table[(table.days > 0) & ~table.sex.isna()]
    shown += (f"{counted.admissions.sum():,.0f} admissions in {counted.days.sum():,.0f} days",)
    assert [[one in page for one in shown] for page in pages] == [
        [True, True, False, True, False], [False, False, True, True, False], [False, False, False, True, True],
    ]  # fmt: skip


def test_names_are_texts_and_the_page_loads_nothing() -> None:
    """Names of studies and codes are escaped, and the page has no script and no address."""
    page = statistics_page(_results(LUNG)[0])

    assert "lungs &lt;b&gt;" in page
    assert all(one in page for one in ("&lt;I&gt;", "rare: mean (SD)"))
    assert "<script" not in page
    assert "http://" not in page.replace("http-equiv", "")


def test_a_coordinator_without_matplotlib_has_all_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plots are missing, and a sentence says so."""
    results, _ = _results(LUNG)
    whole = statistics_page(results)
    monkeypatch.setitem(sys.modules, "host.statistics_drawings", None)
    monkeypatch.delattr(host, "statistics_drawings")
    page = statistics_page(results)

    assert "<img" not in page
    assert "matplotlib is not installed" in page
    rows = re.compile(r"<tbody>.*?</tbody>")
    assert rows.findall(page) == rows.findall(whole)
