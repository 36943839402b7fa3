"""Cox models from sums: the same as statsmodels on one pooled table, and a sentence where there is no estimate."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2
from statsmodels.duration.hazard_regression import PHReg, PHRegResults

from protos.plan.analyses import AnnouncedPart, Cox, Unanswerable
from protos.statistics.cox import CoxArithmetic, RiskSets, WeightedRiskSets
from protos.statistics.distributions import p_of_chi_squared
from tests.for_each import for_each
from tests.statistics.one_process import codes, concepts_of, frames_of, number, run, size
from tests.statistics.survival_tables import FROM_0, LARYNX, TABLES, SurvivalTable, pooled

# Each site rounds its sums to 2**-37. Divided by an information of at least 1, in units of a deviation, 12 sites are
# below 1e-10; a column's deviation may be .1.
_EXACT = 1e-9


def _model(table: SurvivalTable, **changes: object) -> CoxArithmetic:
    cox = Cox.model_validate({"time": "time", "event": "event", "terms": table.terms} | changes)
    concepts = concepts_of(table.rows.drop(columns="site"), table.coded)
    return CoxArithmetic(cox, concepts, size(table.rows["site"].nunique()))


def _fitted(rows: pd.DataFrame, columns: list[str], strata: pd.Series | None = None) -> PHRegResults:
    model = PHReg(rows["time"], rows[columns].to_numpy(float), rows["event"], strata=strata, ties="efron")
    return model.fit(method="newton", disp=0, tol=1e-14)


def _made(rows: int, seed: int, sites: int = 3) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    times = np.ceil(generator.exponential(20, rows))
    return pd.DataFrame({
        "time": times, "event": (generator.random(rows) < 0.7).astype(float), "age": generator.normal(60, 10, rows),
        "dose": generator.normal(0, 1, rows), "site": np.arange(rows) % sites,
    })  # fmt: skip


def _on(rows: pd.DataFrame, terms: tuple[str, ...], **of_size: object) -> dict[str, object]:
    concepts = (
        number("time", 0, 1000), codes("event", "0", "1"), number("age", 0, 120), number("dose", -10, 10),
        number("double", -20, 20), codes("drug", "0", "1"),
    )  # fmt: skip
    coded, of = {"event": (0.0, 1.0), "drug": (0.0, 1.0)}, {"fewest_sites": 3} | of_size
    model = CoxArithmetic(Cox(time="time", event="event", terms=terms), concepts, size(3, **of))  # type: ignore[arg-type]
    return run(model, frames_of(rows, "site", coded))[0]


@for_each("table", (*TABLES, FROM_0))
def test_a_federated_cox_model_is_that_of_the_pooled_table(table: SurvivalTable) -> None:
    """Coefficients, standard errors and p values are those of statsmodels with a stratum for each site."""
    whole = pooled(table).dropna()
    columns = [name for name in whole.columns if name.split("=")[0] in table.terms]

    found, sums = run(_model(table), frames_of(table.rows, "site", table.coded))
    expected = _fitted(whole, columns, strata=whole["site"])

    terms = pd.DataFrame(found["terms"]).set_index("term").loc[columns]
    np.testing.assert_allclose(terms["estimate"], expected.params, rtol=0, atol=_EXACT)
    np.testing.assert_allclose(terms["error"], expected.bse, rtol=0, atol=_EXACT)
    np.testing.assert_allclose(terms["p"], expected.pvalues, rtol=0, atol=_EXACT)
    assert found["log_likelihood"] == pytest.approx(expected.llf, abs=_EXACT)
    assert (found["rows"], found["events"]) == (len(whole), int(whole["event"].sum()))
    assert len(sums.newton) <= 1 + 7  # the first one only counts hospitals


@for_each("seed", range(10))
def test_the_sums_are_derivatives_of_the_partial_likelihood(seed: int) -> None:
    """Score and information are the derivatives of the log likelihood, also if all times are tied."""
    generator = np.random.default_rng(seed)
    times = generator.integers(1, 2 + seed, 30).astype(float)
    events, design = generator.random(30) < 0.6, generator.normal(size=(30, 3))
    sets = RiskSets.of(times, events)
    at, step = generator.normal(size=3) / 2, 1e-5

    sums = WeightedRiskSets(sets, design, at, 1).likelihood_sums()
    moved = [
        [WeightedRiskSets(sets, design, at + sign * step * one, 1).likelihood_sums() for sign in (1, -1)]
        for one in np.eye(3)
    ]

    slopes = [(up.log_likelihood - down.log_likelihood) / (2 * step) for up, down in moved]
    bends = [(down.score - up.score) / (2 * step) for up, down in moved]
    # A central difference has an error of about step**2 and eps / step.
    np.testing.assert_allclose(sums.score, slopes, rtol=0, atol=1e-7)
    np.testing.assert_allclose(sums.information, bends, rtol=0, atol=1e-7)


def test_tied_events_follow_efron_by_hand() -> None:
    """Two of three patients die together: Efron averages the second denominator."""
    design, times, events = np.array([[1.0], [0.0], [2.0]]), np.array([1.0, 1.0, 2.0]), np.array([True, True, False])
    at, hazards = np.array([0.3]), np.exp(0.3 * np.array([1.0, 0.0, 2.0]))

    found = WeightedRiskSets(RiskSets.of(times, events), design, at, 1).likelihood_sums().log_likelihood

    total, dying = hazards.sum(), hazards[:2].sum()
    assert found == pytest.approx(0.3 - np.log(total) - np.log(total - dying / 2), abs=1e-14)


def test_times_that_differ_by_rounding_are_tied() -> None:
    """The result is that of the times as written, as with R's `timefix`. Later times stay apart."""
    rows = _made(90, 5).assign(time=lambda one: one["time"] % 7 / 10)
    sums = np.where(np.arange(90) % 2, rows["time"], rows["time"] + 64.1 - 64.1)

    assert len(np.unique(sums)) > rows["time"].nunique()
    assert _on(rows.assign(time=sums), ("age",)) == _on(rows, ("age",))
    assert _on(rows.assign(time=rows["time"] + np.arange(90) * 1e-6), ("age",)) != _on(rows, ("age",))


def test_proportional_hazards_are_tested_as_by_adding_columns_times_log_time() -> None:
    """The score test equals that of a model in which each column also stands times the logarithm of time."""
    rows = _made(60, 3)

    found = _on(rows, ("age", "dose"))

    # By brute force: the likelihood with time-dependent columns, its score and information by differences.
    def gain(at: np.ndarray) -> float:
        total = 0.0
        for _, site in rows.groupby("site"):
            design = site[["age", "dose"]].to_numpy()
            for time, dying in site[site["event"] == 1].groupby("time"):
                risk = site["time"].to_numpy() >= time
                line = design @ (at[:2] + at[2:] * np.log(time))
                here = ((site["time"] == time) & (site["event"] == 1)).to_numpy()
                for step in range(len(dying)):
                    weight = np.exp(line)
                    total -= np.log(weight[risk].sum() - step / len(dying) * weight[here].sum())
                total += line[here].sum()
        return total

    at = np.array([one["estimate"] for one in found["terms"]] + [0.0, 0.0])  # type: ignore[index, union-attr]
    steps = np.diag([1e-4, 1e-3, 1e-4, 1e-3])
    score = np.array([(gain(at + one) - gain(at - one)) / (2 * one.sum()) for one in steps])
    bend = np.array([
        [(gain(at + a + b) - gain(at + a - b) - gain(at - a + b) + gain(at - a - b)) / (4 * a.sum() * b.sum())
         for b in steps] for a in steps
    ])  # fmt: skip
    whole = float(score @ np.linalg.solve(-bend, score))
    assert found["proportional"]["p"] == pytest.approx(chi2.sf(whole, 2), rel=1e-4)


def test_a_penalty_has_no_interval_and_no_p_value() -> None:
    """With a ridge the estimates shrink, and no standard error, interval or p value is printed."""
    table = LARYNX
    frames = frames_of(table.rows, "site", table.coded)

    free, shrunk = (run(_model(table, ridge=ridge), frames)[0]["terms"] for ridge in (0.0, 50.0))

    assert sum(one["estimate"] ** 2 for one in shrunk) < sum(one["estimate"] ** 2 for one in free)
    assert {one[key] for one in shrunk for key in ("error", "low", "high", "p", "proportional")} == {None}


def _separated(rows: pd.DataFrame) -> pd.DataFrame:
    lives = 1.0 - rows["event"]
    return rows.assign(drug=lives, dose=lives * (rows.index % 2), time=5.0 + 45.0 * lives)


@pytest.mark.parametrize(
    ("terms", "change", "column"),
    [
        pytest.param(("age", "drug"), _separated, "drug", id="separation"),
        pytest.param(("dose", "double"), lambda rows: rows.assign(double=2 * rows["dose"]), "dose, d", id="collinear"),
        pytest.param(("age", "drug"), lambda rows: rows.assign(drug=0.0, age=1.0), "age, drug", id="one value"),
        pytest.param(("drug", "dose"), _separated, "drug.*dose", id="two separations"),
        pytest.param(("age",), lambda rows: rows.assign(event=0.0), "event", id="all censored"),
        pytest.param(
            ("age",), lambda rows: rows.assign(event=rows["event"].where(rows["site"] > 0, 0.0)), "event",
            id="one of three sites without events",
        ),
        pytest.param(("age", "dose"), lambda rows: rows.groupby("site").head(4), "columns", id="three sites, 12 rows"),
    ],
)  # fmt: skip
def test_what_has_no_estimate_names_its_column(
    terms: tuple[str, ...], change: Callable[[pd.DataFrame], pd.DataFrame], column: str
) -> None:
    """There is no coefficient of 20 with an interval of 4,000: a sentence names all columns that are the cause."""
    with pytest.raises(Unanswerable, match=column):
        _on(change(_made(300, 5)), terms)


def test_ties_everywhere_have_an_estimate_and_no_number_is_infinite() -> None:
    """All patients have one time, and a ratio is too large for a number in the unit of its column."""
    rows = _made(300, 6).assign(time=10.0)
    rows["dose"] /= 1e9
    concepts = (number("time", 0, 1000), codes("event", "0", "1"), number("dose", -1e-8, 1e-8))
    model = CoxArithmetic(Cox(time="time", event="event", terms=("dose",)), concepts, size(3))

    found, _ = run(model, frames_of(rows, "site", {"event": (0.0, 1.0)}))
    expected = _fitted(rows.assign(dose=1e9 * rows["dose"]), ["dose"], strata=rows["site"])

    assert found["terms"][0]["estimate"] / 1e9 == pytest.approx(expected.params[0], abs=_EXACT)
    json.dumps(found, allow_nan=False)
    assert found["proportional"] is found["terms"][0]["proportional"] is None


def test_a_model_that_a_hospital_did_not_answer_has_a_sentence() -> None:
    """Also with a penalty, and if the hospital refused the first step."""
    model = _model(LARYNX, ridge=1.0)
    first = AnnouncedPart(first=run(model, frames_of(LARYNX.rows, "site", LARYNX.coded))[1].first)

    with pytest.raises(Unanswerable):
        model.result(first)


def test_few_events_at_a_site_make_the_model_void() -> None:
    """With a smallest cell of 5, a site with 3 events answers nothing. One with none adds only its rows."""
    rows = _made(400, 8, sites=4)
    rows["event"] = rows["event"].where((rows["site"] < 3) | (rows.groupby("site").cumcount() < 3), 0.0)
    concepts = (number("time", 0, 1000), codes("event", "0", "1"), number("age", 0, 120), number("dose", -10, 10))
    model = CoxArithmetic(Cox(time="time", event="event", terms=("age",)), concepts, size(4, smallest_cell=5))
    frames = frames_of(rows, "site", {"event": (0.0, 1.0)})

    with pytest.raises(Unanswerable):
        run(model, frames)
    rows["event"] = rows["event"].where(rows["site"] < 3, 0.0)
    found, without = run(model, frames_of(rows, "site", {"event": (0.0, 1.0)}))[0], run(model, frames[:3])[0]

    assert found["sites without events"] == 1
    assert found["rows"] == without["rows"] + int((rows["site"] == 3).sum())
    assert found["terms"][0]["estimate"] == pytest.approx(without["terms"][0]["estimate"], rel=1e-9)


@for_each("degrees", range(1, 12))
def test_p_values_are_those_of_scipy(degrees: int) -> None:
    """Tails have all digits down to 1e-300."""
    for value in (0.0, 0.01, 1.0, 3.84, 40.0, 900.0):
        assert p_of_chi_squared(value, degrees) == pytest.approx(chi2.sf(value, degrees), rel=1e-12)
