"""Regressions from sums over sites: equal to statsmodels on one pooled table, and refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from statsmodels.duration.hazard_regression import PHReg

from global_layers.one_process import run_rounds
from tests.for_each import for_each
from tests.statistics.federations import frames_of, patients, results_of, statistics_plan, studies_of

# Sums are rounded to 2**-37 a site; the condition of the Hessians here is below 1e3.
DIGITS = 1e-8


def regression(name: str = "model", **keys: Any) -> dict[str, Any]:
    """An analysis of a plan."""
    return {"name": name, "regression": {"family": "binomial", "outcome": "died", "terms": ["age", "sex"]} | keys}


def fitted(table: pd.DataFrame, formula: str, family: Any, **keys: Any) -> Any:
    """The pooled fit, to the last digits."""
    own = table.assign(event=(table.died == "yes").astype(float))
    model = smf.glm(formula, own, family=family, **keys)
    return model.fit(tol=1e-14, maxiter=100)


def compare(found: dict[str, Any], pooled: Any, names: dict[str, str]) -> None:
    """Coefficients, standard errors and p values are those of the pooled fit."""
    terms = {one["term"]: one for one in found["terms"]}
    assert set(terms) == set(names)
    for term, name in names.items():
        one = terms[term]
        assert one["estimate"] == pytest.approx(pooled.params[name], rel=DIGITS, abs=DIGITS * pooled.bse[name])
        assert one["error"] == pytest.approx(pooled.bse[name], rel=DIGITS)
        assert one["p"] == pytest.approx(pooled.pvalues[name], rel=1e-7, abs=DIGITS)
        assert (one["low"], one["high"]) == pytest.approx(tuple(pooled.conf_int().loc[name]), rel=1e-7, abs=1e-9)


TERMS = ["age", "lactate", "sex", "stage", "age:sex"]
FORMULA = "age + lactate + C(sex) + C(stage) + age:C(sex)"
NAMES = {
    "age": "age", "lactate": "lactate", "sex=male": "C(sex)[T.male]", "stage=II": "C(stage)[T.II]",
    "stage=III": "C(stage)[T.III]", "age:sex=male": "age:C(sex)[T.male]",
}  # fmt: skip


@for_each("seed", range(5))
def test_a_logistic_model_with_an_intercept_for_each_site_is_that_of_the_pooled_table(seed: int) -> None:
    """Complete rows alone take part, products and codes included."""
    table, plan = patients(seed), statistics_plan(regression(terms=TERMS))

    (found,) = results_of(plan, frames_of(plan, table))

    pooled = fitted(table, f"event ~ C(site) + {FORMULA}", sm.families.Binomial())
    compare(found, pooled, NAMES)
    assert found["rows"] == pooled.nobs
    assert found["rows"] + found["rows that take no part"] == len(table)


@pytest.mark.parametrize("intercept", ["site", "common"])
@pytest.mark.parametrize(
    ("keys", "right", "family", "names"),
    [
        ({"references": {"stage": "III"}}, "age + C(stage, Treatment('III'))", sm.families.Binomial(), {
            "age": "age", "stage=I": "C(stage, Treatment('III'))[T.I]", "stage=II": "C(stage, Treatment('III'))[T.II]",
        }),
        ({"family": "gaussian", "outcome": "pressure"}, "age + C(stage)", None, {
            "age": "age", "stage=II": "C(stage)[T.II]", "stage=III": "C(stage)[T.III]",
        }),
        ({"family": "poisson", "outcome": "admissions", "exposure": "days"}, "age + C(stage)", sm.families.Poisson(), {
            "age": "age", "stage=II": "C(stage)[T.II]", "stage=III": "C(stage)[T.III]",
        }),
    ],
    ids=["logistic", "linear", "poisson"],
)  # fmt: skip
@for_each("seed", range(3))
def test_a_model_is_that_of_the_pooled_table(
    seed: int, intercept: str, keys: dict[str, Any], right: str, family: Any, names: dict[str, str]
) -> None:
    """With own or common intercepts and a chosen reference; t tests of a linear model count the sites' intercepts."""
    table, plan = patients(seed), statistics_plan(regression(terms=["age", "stage"], intercept=intercept, **keys))

    (found,) = results_of(plan, frames_of(plan, table))

    left, sites = keys.get("outcome", "event"), "C(site) + " if intercept == "site" else ""
    offset, formula = {"offset": np.log(table.days)} if "exposure" in keys else {}, f"{left} ~ {sites}{right}"
    pooled = smf.ols(formula, table).fit() if family is None else fitted(table, formula, family, **offset)
    compare(found, pooled, names | ({} if sites else {"intercept": "Intercept"}))
    if family is None:
        assert found["degrees of freedom"] == pooled.df_resid
        assert found["dispersion"] == pytest.approx(pooled.scale, rel=DIGITS)


@for_each("seed", range(3))
def test_skewed_columns_are_fitted(seed: int) -> None:
    """As most laboratory values, and a code of nearly all: a whole first step would give few patients all weight."""
    draw = np.random.default_rng(seed)
    lactate = np.exp(draw.normal(0.0, 1.2, 1280)).clip(0.05, 29.0)
    days = np.ceil(draw.exponential(300, 1280) * np.exp(-0.12 * lactate)).clip(1, 1990)
    admissions = draw.poisson(np.exp(0.1 * lactate - 0.5)).clip(0, 60).astype(float)
    table = pd.DataFrame({"site": np.arange(1280) % 4, "lactate": lactate, "days": days, "admissions": admissions})
    table["died"] = np.where(draw.random(1280) < 0.7, "yes", "no")
    table["sex"] = np.where(table.index // 4 % 80 == 0, "female", "male")
    hazards = {"name": "hazards", "cox": {"time": "days", "event": "died", "terms": ["lactate"]}}
    plan = statistics_plan(hazards, regression(family="poisson", outcome="admissions", terms=["lactate", "sex"]))

    cox, poisson = results_of(plan, frames_of(plan, table))
    pooled = PHReg(table.days, table[["lactate"]], table.died == "yes", strata=table.site, ties="efron").fit(disp=0)
    assert cox["terms"][0]["estimate"] == pytest.approx(pooled.params[0], rel=DIGITS)
    names = {"lactate": "lactate", "sex=male": "sex[T.male]"}
    compare(poisson, fitted(table, "admissions ~ C(site) + lactate + sex", sm.families.Poisson()), names)


def test_several_analyses_share_their_rounds() -> None:
    """Each has the numbers that it has alone, and the run has the rounds of the slowest."""
    table = patients(0)
    analyses = [
        regression("one"),
        regression("two", family="poisson", outcome="admissions", exposure="days"),
        regression("three", family="gaussian", outcome="pressure"),
    ]
    plan = statistics_plan(*analyses)
    together = results_of(plan, frames_of(plan, table))

    for analysis, found in zip(analyses, together, strict=True):
        alone = statistics_plan(analysis)
        assert results_of(alone, frames_of(alone, table)) == [found]


@for_each("seed", range(3))
def test_robust_errors_allow_for_several_rows_of_a_patient(seed: int) -> None:
    """As statsmodels computes them for groups, with its correction for few groups."""
    table = patients(seed)
    table["patient"] = table.site * 1000 + np.random.default_rng(seed).integers(0, 40, len(table))
    plan = statistics_plan(regression(robust=True))

    (found,) = results_of(plan, frames_of(plan, table, patients="patient"))

    own = table.dropna(subset=["age"])
    own = own.assign(event=(own.died == "yes").astype(float))
    model = smf.glm("event ~ C(site) + age + C(sex)", own, family=sm.families.Binomial())
    pooled = model.fit(tol=1e-14, cov_type="cluster", cov_kwds={"groups": own.patient})
    compare(found, pooled, {"age": "age", "sex=male": "C(sex)[T.male]"})


def refusal(table: pd.DataFrame, *, sites: int = 4, **keys: Any) -> str:
    """Why a model has no numbers."""
    plan = statistics_plan(regression(**keys), sites=sites)
    (found,) = results_of(plan, frames_of(plan, table))
    assert set(found) == {"name", "refused"}
    return str(found["refused"])


@pytest.mark.parametrize("intercept", ["site", "common"])
def test_separation_names_the_column(intercept: str) -> None:
    """A code whose patients all died has no odds ratio of a million; the intercept is not blamed."""
    table = patients(2)
    table.loc[table.stage == "III", "died"] = "yes"

    found = refusal(table, terms=["age", "stage"], intercept=intercept)

    assert ["stage=III" in found, "Firth" in found, "intercept" in found] == [True, True, False]
    assert "Firth" not in refusal(table, terms=["age", "stage"], intercept=intercept, robust=True)


def test_a_number_that_separates_all_outcomes_is_named() -> None:
    """Here few rows near the border would decide the sums; the sites stop, and the column is named."""
    table = patients(3)
    table["died"] = np.where(table.lactate.fillna(0) > 2, "yes", "no")

    assert "lactate" in refusal(table, terms=["age", "lactate"])


def test_a_rare_code_at_one_site_is_named() -> None:
    """One patient of a code would show as a row of the sums."""
    table = patients(5)
    third = (table.site == 2) & (table.stage == "III")
    table.loc[third, "stage"] = "I"
    table.loc[table.index[table.site == 2][0], ["stage", "age"]] = "III", 50.0

    for references in ({}, {"stage": "III"}):
        assert "decide stage" in refusal(table, terms=["age", "stage"], references=references)


def test_a_reference_that_no_hospital_has_is_named() -> None:
    """The other codes then follow from each other, but the remedy is another reference."""
    found = refusal(patients(5).replace({"stage": {"I": "II"}}), terms=["age", "stage"])
    assert found.startswith("No hospital has stage=I,")
    assert "`references`" in found


def test_a_site_without_an_event_is_left_out_and_the_rest_is_exact() -> None:
    """A site indicator would take all of its rows, so the pooled fit has the same coefficients."""
    table = patients(6, rows=(90, 140, 60, 200, 120))
    table.loc[table.site == 1, "died"] = "no"
    plan = statistics_plan(regression(), sites=5)

    (found,) = results_of(plan, frames_of(plan, table))

    pooled = fitted(table[table.site != 1], "event ~ C(site) + age + C(sex)", sm.families.Binomial())
    compare(found, pooled, {"age": "age", "sex=male": "C(sex)[T.male]"})
    assert (found["sites"], found["sites that record it"]) == (4, 5)
    assert "3 hospitals" in refusal(table[table.site < 4])  # fewer than the plan needs


def test_a_rare_outcome_is_fitted() -> None:
    """Three percent of the rows at each of four sites, as ordinary data have it."""
    table, generator = patients(8, rows=(300, 400, 350, 500)), np.random.default_rng(8)
    risk = 0.03 * np.exp(0.03 * (table.age.fillna(60) - 60))
    table["died"] = np.where(generator.random(len(table)) < risk, "yes", "no")
    plan = statistics_plan(regression())

    (found,) = results_of(plan, frames_of(plan, table))

    pooled = fitted(table, "event ~ C(site) + age + C(sex)", sm.families.Binomial())
    compare(found, pooled, {"age": "age", "sex=male": "C(sex)[T.male]"})


def _is_own_reason(table: pd.DataFrame, **keys: Any) -> bool:
    plan = statistics_plan(regression(**keys))
    studies = studies_of(plan, frames_of(plan, table))
    run_rounds(plan, studies)
    reasons = studies[plan.site_names[1]].reasons.values()
    return any(one.startswith(("Few patients", "One patient")) for one in reasons)


@pytest.mark.parametrize("one", ["beyond the knot", "with another exposure", "far away"])
def test_one_patient_decides_no_sum(one: str) -> None:
    """Nor its product with a column of a spline or the exposure under a common intercept, nor the robust errors."""
    table = patients(0)
    own = table.index[(table.site == 1) & (table.sex == "male")]
    if one == "beyond the knot":
        table.loc[own, "age"], column, value = np.linspace(30.0, 59.0, len(own)), "age", 77.0
        keys: dict[str, Any] = {"splines": {"age": [60, 70, 80]}, "intercept": "common"}
    elif one == "with another exposure":
        table.loc[own, "days"], column, value = 365.0, "days", 123.0
        keys = {"family": "poisson", "outcome": "admissions", "exposure": "days", "terms": ["sex"]}
        keys["intercept"] = "common"
    else:
        for name, middle in (("age", 60.0), ("pressure", 125.0)):
            table[name] = np.random.default_rng(1).normal(middle, 3.0, (2, len(table)))[int(middle > 60.0)]
        column, value, keys = (
            "age",
            78.0,
            {"family": "gaussian", "outcome": "pressure", "terms": ["age"], "robust": True},
        )
    table.loc[own[:30], "died"] = ["no", "yes"] * 15
    assert not _is_own_reason(table, **keys)

    table.loc[own[0], [column, "pressure"]] = value, 170.0
    assert _is_own_reason(table, **keys)
