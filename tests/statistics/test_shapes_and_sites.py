"""Splines, joint tests, Firth's correction and differences between sites: those of one pooled table, or of own fits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import patsy
import pytest
import statsmodels.api as sm
from scipy.stats import chi2, f, norm, t
from statsmodels.duration.hazard_regression import PHReg

from host.statistics_page import statistics_page
from tests.for_each import for_each
from tests.statistics.federations import frames_of, patients, results_of, statistics_plan
from tests.statistics.test_regression import DIGITS, fitted, regression
from tests.statistics.test_statistics_page import HEAD

KNOTS = [45.0, 57.0, 63.0, 75.0]
FAMILIES: dict[str, tuple[dict[str, Any], Any]] = {
    "binomial": ({}, sm.families.Binomial()),
    "gaussian": ({"family": "gaussian", "outcome": "pressure"}, sm.families.Gaussian()),
    "poisson": ({"family": "poisson", "outcome": "admissions", "exposure": "days"}, sm.families.Poisson()),
}


def _fit(table: pd.DataFrame, family: str, right: str) -> Any:
    keys, of = FAMILIES[family]
    left = keys.get("outcome", "event")
    return fitted(table, f"{left} ~ {right}", of, **({"offset": np.log(table.days)} if family == "poisson" else {}))


def _cox(rows: pd.DataFrame, design: pd.DataFrame) -> Any:
    model = PHReg(rows.days, design.to_numpy(), rows.died == "yes", strata=rows.site, ties="efron")
    return model.fit(method="newton", disp=0, tol=1e-14)


def _natural(values: Any) -> pd.DataFrame:
    """Another basis of the same curves, by patsy: natural cubic splines, without the constant."""
    made = patsy.dmatrix(
        f"cr(x, knots={KNOTS[1:-1]}, lower_bound={KNOTS[0]}, upper_bound={KNOTS[-1]})-1", {"x": values}
    )
    basis = np.asarray(made)
    slopes = (basis[:, 1:] - basis[:, :1]) if len(basis) else basis
    return pd.DataFrame(slopes[:, :3], columns=["s1", "s2", "s3"])


@pytest.mark.parametrize("kind", [*FAMILIES, "cox"])
def test_a_spline_is_that_of_another_basis_on_the_pooled_table(kind: str) -> None:
    """Estimates at the knots with intervals, and both joint tests."""
    table = patients(3).dropna(subset=["age"]).reset_index(drop=True)
    table["age"] = table.age.clip(KNOTS[0], KNOTS[-1])  # patsy's basis has no straight line beyond
    table, terms = table.join(_natural(table.age)), {"terms": ["age", "sex"], "splines": {"age": KNOTS}}
    analysis = {"name": "m", "cox": {"time": "days", "event": "died", **terms}}
    plan = statistics_plan(analysis if kind == "cox" else regression(**FAMILIES[kind][0], **terms))

    (found,) = results_of(plan, frames_of(plan, table))

    if kind == "cox":
        pooled = _cox(table, table[["s1", "s2", "s3"]].assign(sex=table.sex == "male").astype(float))
        names = list(range(3))
        values, covariance = pooled.params[:3], pooled.cov_params()[:3, :3]
    else:
        pooled = _fit(table, kind, "C(site) + s1 + s2 + s3 + C(sex)")
        names = ["s1", "s2", "s3"]
        values, covariance = pooled.params[names].to_numpy(), pooled.cov_params().loc[names, names].to_numpy()
    basis = _natural(np.array(KNOTS)).to_numpy()
    (curve,) = found["splines"]
    assert (curve["concept"], curve["reference"]) == ("age", KNOTS[2])
    for one, weights in zip(curve["at"], basis - basis[2], strict=True):
        half = (one["high"] - one["low"]) / 2
        limit = t.ppf(0.975, found["degrees of freedom"]) if kind == "gaussian" else norm.ppf(0.975)
        assert one["estimate"] == pytest.approx(weights @ values, abs=DIGITS)
        assert half == pytest.approx(limit * np.sqrt(max(0.0, weights @ covariance @ weights)), rel=1e-6, abs=1e-9)
    whole, curved = found["tests"]
    assert (whole["term"], whole["degrees"], curved["degrees"]) == ("age", 3, 2)
    chi_squared = 3 * whole["f"] if kind == "gaussian" else whole["chi_squared"]
    assert chi_squared == pytest.approx(values @ np.linalg.solve(covariance, values), rel=1e-6)
    if kind == "gaussian":
        assert whole["residual_degrees"] == pooled.df_resid
        assert whole["p"] == pytest.approx(f.sf(whole["f"], 3, pooled.df_resid), rel=1e-9)
    else:
        assert whole["p"] == pytest.approx(chi2.sf(chi_squared, 3), rel=1e-9)
    assert "knots at 45, 57, 63, 75" in statistics_page(HEAD | {"analyses": [found]})


def _firth(table: pd.DataFrame, right: str) -> tuple[dict[str, float], dict[str, float]]:
    """Firth's estimates by iterating logistic fits of augmented rows: each is split by its leverage."""
    own = table.assign(event=(table.died == "yes").astype(float))
    target, design = patsy.dmatrices(f"event ~ {right}", own, return_type="dataframe")
    outcome, columns = target.to_numpy()[:, 0], design.to_numpy()
    at = np.zeros(columns.shape[1])
    for _ in range(500):
        means = 1 / (1 + np.exp(-columns @ at))
        weights = means * (1 - means)
        inverse = np.linalg.inv(columns.T @ (columns * weights[:, None]))
        shares = weights * np.einsum("ij,jk,ik->i", columns, inverse, columns)
        step = inverse @ columns.T @ (outcome - means + shares * (0.5 - means))
        at = at + step * min(1.0, 2 / np.abs(step).max())
        if np.abs(step).max() < 1e-13:
            break
    names = list(design.columns)
    return dict(zip(names, at, strict=True)), dict(zip(names, np.sqrt(np.diagonal(inverse)), strict=True))


@pytest.mark.parametrize("intercept", ["site", "common"])
@pytest.mark.parametrize("change", ["none", "separated", "a site without events"])
@for_each("seed", range(2))
def test_firths_correction_is_that_of_the_pooled_table(seed: int, change: str, intercept: str) -> None:
    """With separation it has an estimate, and a hospital without an event takes part."""
    table = patients(seed)
    if change == "separated":
        table.loc[table.stage == "III", "died"] = "yes"
    if change == "a site without events":
        table.loc[table.site == 1, "died"] = "no"
    terms: dict[str, Any] = {"terms": ["age", "stage"], "intercept": intercept}
    plan = statistics_plan(regression(**terms, firth=True), newton_rounds=30)

    (found,) = results_of(plan, frames_of(plan, table))

    values, errors = _firth(table, ("C(site) + " if intercept == "site" else "") + "age + C(stage)")
    names = {"age": "age", "stage=II": "C(stage)[T.II]", "stage=III": "C(stage)[T.III]", "intercept": "Intercept"}
    for one in found["terms"]:
        assert one["estimate"] == pytest.approx(values[names[one["term"]]], abs=DIGITS)
        assert one["error"] == pytest.approx(errors[names[one["term"]]], abs=DIGITS)
    assert found["sites"] == 4


@pytest.mark.parametrize("kind", [*FAMILIES, "cox"])
@pytest.mark.parametrize("sites", [4, 6])
def test_differences_between_sites_are_those_of_own_fits(kind: str, sites: int) -> None:
    """Q, I^2 and the random-effects mean from the fits of statsmodels to each hospital alone. With four hospitals the
    sums could be solved for the estimates of the others, so they are not printed."""
    table = patients(4, rows=(150, 160, 130, 170, 180, 140)[:sites]).dropna(subset=["age"])
    cox = {"name": "m", "cox": {"time": "days", "event": "died", "terms": ["age", "sex"]}}
    plan = statistics_plan(cox if kind == "cox" else regression(**FAMILIES[kind][0]), sites=sites)

    (found,) = results_of(plan, frames_of(plan, table))

    between = [one["between_sites"] for one in found["terms"]]
    if sites == 4:
        assert between == [None, None]
        return
    design = pd.DataFrame({"age": table.age, "male": (table.sex == "male").astype(float)})
    groups = [table.site == k for k in range(sites)]
    own = [
        _cox(table[of], design[of]) if kind == "cox" else _fit(table[of], kind, "age + I(1.0 * (sex == 'male'))")
        for of in groups
    ]
    for place, one in enumerate(between):
        at = place - 2  # a regression's first coefficient is the intercept
        values = np.array([np.asarray(fit.params)[at] for fit in own])
        weights = np.array([np.asarray(fit.bse)[at] for fit in own]) ** -2.0
        q = weights @ values**2 - (weights @ values) ** 2 / weights.sum()
        variance = max(0.0, (q - 5) / (weights.sum() - (weights**2).sum() / weights.sum()))
        both = 1 / (1 / weights + variance)
        assert (one["sites"], one["q"], one["p"]) == (6, pytest.approx(q, rel=1e-6), pytest.approx(chi2.sf(q, 5)))
        assert one["i_squared"] == pytest.approx(max(0.0, 1 - 5 / q), abs=1e-6)
        assert one["estimate"] == pytest.approx(both @ values / both.sum(), rel=1e-6)
        shown = f"<td>{100 * one['i_squared']:.0f}%</td><td>{one['q']:.2f} (5 df)"
        assert shown in statistics_page(HEAD | {"analyses": [found]})


@pytest.mark.parametrize(
    "keys",
    [
        {"splines": {"age": [60.0, 50.0, 70.0]}}, {"splines": {"age": [50.0, 60.0, 130.0]}},
        {"splines": {"sex": [0.1, 0.2, 0.3]}}, {"splines": {"lactate": [1.0, 2.0, 3.0]}},
        {"references": {"age": "I"}}, {"references": {"stage": "III"}}, {"firth": True, "ridge": 1.0},
        *({"family": "poisson", "outcome": "days"} | one for one in ({"firth": True}, {"exposure": "days"})),
    ],
)  # fmt: skip
def test_knots_references_and_corrections_that_do_not_fit_are_refused(keys: dict[str, Any]) -> None:
    """Before anybody approves the plan."""
    with pytest.raises(ValueError, match="model"):
        statistics_plan(regression(**keys))


def test_a_nearly_perfect_fit_has_estimates_and_no_comparison() -> None:
    """Weights beyond the bounds of their sums do not make the whole model void."""
    table = patients(6, rows=(150, 160, 130, 170, 180, 140)).dropna(subset=["age"])
    table["pressure"] = 60 + table.age + 0.01 * np.random.default_rng(0).normal(size=len(table))
    plan = statistics_plan(regression(**FAMILIES["gaussian"][0]), sites=6)

    (found,) = results_of(plan, frames_of(plan, table))

    assert found["terms"][0]["estimate"] == pytest.approx(1.0, abs=1e-3)
    assert found["terms"][0]["between_sites"] is None
    table.loc[table.site == table.site[0], "pressure"] = 120.0  # of a hospital with an intercept nonetheless
    (found,) = results_of(plan, frames_of(plan, table))
    assert found["degrees of freedom"] == found["rows"] - len(found["terms"]) - 6
