"""Survival curves and the log-rank test from counts: those of one pooled table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from statsmodels.duration.survfunc import SurvfuncRight, survdiff

from protos.plan.analyses import AnnouncedPart, Curve, Unanswerable
from protos.statistics.group_curves import MONTH, CurveArithmetic, SurvivalCurve, step_of
from tests.for_each import for_each
from tests.statistics.one_process import codes, concepts_of, frames_of, number, run, size
from tests.statistics.survival_tables import FROM_0, LEUKEMIA, LUNG, TABLES, SurvivalTable

_PRODUCT = 1e-12  # a product of a thousand fractions


def _curves(table: SurvivalTable, to: float, *, by: str | None = None, grid: float | str = 1.0) -> CurveArithmetic:
    curve = Curve.model_validate({"time": "time", "event": "event", "by": by, "grid": grid, "to": to})
    of = size(table.rows["site"].nunique(), fewest_sites=1)  # to the last patient
    return CurveArithmetic(curve, concepts_of(table.rows, table.coded), of)


@for_each("table", (*TABLES, FROM_0))
def test_a_federated_curve_is_that_of_the_pooled_table(table: SurvivalTable) -> None:
    """Survival, log-log limits and restricted means of each group are those of statsmodels."""
    units = 10 if table.name == "larynx" else 1  # tenths of a year
    table = replace(table, rows=table.rows.assign(time=np.ceil(table.rows["time"] * units)))
    rows = table.rows.dropna(subset=[table.by])

    found, _ = run(_curves(table, float(rows["time"].max()), by=table.by), frames_of(table.rows, "site", table.coded))

    assert not found["not shown"]
    for record, code in zip(found["groups"], table.coded[table.by], strict=True):
        mine = rows[rows[table.by] == code]
        expected = SurvfuncRight(mine["time"], mine["event"])
        places = np.searchsorted(expected.surv_times, record["times"], side="right")
        survival = np.append(1.0, expected.surv_prob)[places]
        np.testing.assert_allclose(record["survival"], survival, rtol=0, atol=_PRODUCT)
        # Log-log limits from Greenwood's error of the survival itself.
        errors, inner = np.append(0.0, expected.surv_prob_se)[places], (survival > 0) & (survival < 1)
        reach = norm.ppf(0.975) * errors[inner] / survival[inner] / np.log(survival[inner])
        for side, sign in (("low", -1), ("high", 1)):
            limits = survival[inner] ** np.exp(sign * reach)
            np.testing.assert_allclose(np.array(record[side], float)[inner], limits, rtol=0, atol=1e-10)
        assert (record["patients"], record["events"]) == (len(mine), int(mine["event"].sum()))
        until, steps = record["restricted_mean"]["until"], np.append(expected.surv_times, np.inf)
        area = np.append(1.0, expected.surv_prob) @ np.diff(np.minimum(np.append(0.0, steps), until))
        assert record["restricted_mean"]["value"] == pytest.approx(area, rel=1e-12)


@for_each("table", (*TABLES, FROM_0))
def test_the_log_rank_test_is_stratified_by_site(table: SurvivalTable) -> None:
    """Its statistic is that of statsmodels with a stratum for each site, from exact times whatever the grid is."""
    rows = table.rows.dropna(subset=[table.by])

    found, _ = run(
        _curves(table, float(rows["time"].max()), by=table.by, grid=float(rows["time"].max()) / 3),
        frames_of(table.rows, "site", table.coded),
    )
    value, p = survdiff(rows["time"], rows["event"], rows[table.by], strata=rows["site"])

    assert found["log_rank"]["chi_squared"] == pytest.approx(value, rel=1e-8)
    assert found["log_rank"]["p"] == pytest.approx(p, rel=1e-7)


@pytest.mark.parametrize(
    ("events", "censored", "median"),
    [
        ([1, 1, 1, 1], [0, 0, 0, 0], 2.5),  # 1/2 from 2 to 3: the middle, as R's survfit
        ([1, 1, 1, 0], [0, 0, 0, 0], 2.0),
        ([1, 0, 0, 0], [0, 0, 0, 3], None),
        ([2, 0, 0, 0], [0, 0, 0, 2], 1.0),  # 1/2 to the end of follow-up
        ([0, 0, 0, 5], [0, 0, 0, 0], 4.0),
    ],
)
def test_the_median_is_where_half_have_the_event(events: list[int], censored: list[int], median: float | None) -> None:
    """It is the first time at which survival is below 1/2, or the middle of the time during which it is 1/2."""
    curve = SurvivalCurve(
        grid=np.arange(1.0, 5.0), events=np.array(events, float), censored=np.array(censored, float), beyond=0.0
    )

    assert curve.median["value"] == median


def test_the_interval_of_the_median_is_that_of_r() -> None:
    """On the leukaemia table R's survfit with log-log limits gives 8 (4, 11) and 23 (13, none)."""
    table = LEUKEMIA

    found, _ = run(_curves(table, 35.0, by="arm"), frames_of(table.rows, "site", table.coded))

    assert {record["group"]: record["median"] for record in found["groups"]} == {
        "arm=1": {"value": 8.0, "low": 4.0, "high": 11.0}, "arm=0": {"value": 23.0, "low": 13.0, "high": None},
    }  # fmt: skip


def test_a_monthly_grid_rounds_times_up_to_the_ends_of_months() -> None:
    """The curve is that of the times rounded up, and its resolution is printed."""
    table = LUNG
    rounded = np.ceil(table.rows["time"] / MONTH) * MONTH

    found, _ = run(_curves(table, 24 * MONTH, grid="monthly"), frames_of(table.rows, "site", table.coded))
    expected = SurvfuncRight(rounded, table.rows["event"])

    (record,) = found["groups"]
    assert found["resolution"] == pytest.approx(30.4375)
    places = np.searchsorted(expected.surv_times, np.array(record["times"]) + 1e-6)
    np.testing.assert_allclose(record["survival"], np.append(1.0, expected.surv_prob)[places], rtol=0, atol=_PRODUCT)


@for_each("step", (0.1, 0.3, 0.7, 1 / 12))
def test_a_time_on_a_border_is_in_the_interval_that_ends_there(step: float) -> None:
    """Borders are products, and times are decimals or differences: 3 * 0.3 is below 0.9, and 0.1 + 0.2 above 0.3."""
    places = np.repeat(np.arange(1, 41), 3)
    times = np.where(np.arange(len(places)) % 2, np.round(places * step, 12), (places * step + 64.1) - 64.1)
    rows = pd.DataFrame({"time": times, "event": 1, "site": np.arange(len(places)) % 3})
    concepts = (number("time", 0, 100), codes("event", "0", "1"))
    curve = CurveArithmetic(
        Curve(time="time", event="event", grid=step, to=41 * step), concepts, size(3, fewest_sites=1)
    )

    (record,) = run(curve, frames_of(rows, "site", {"event": (0, 1)}))[0]["groups"]

    assert record["interval_events"][:41] == [0, *[3] * 40]


def _small(
    rows: pd.DataFrame, grid: float = 10.0, joins: bool = False, sums: list[AnnouncedPart] | None = None, **of_size: int
) -> dict[str, object]:
    concepts = (number("time", 0, 1000, "days"), codes("event", "0", "1"), codes("arm", "a", "b"))
    curve = Curve(time="time", event="event", by="arm", grid=grid, to=100.0)
    frames = frames_of(rows, "site", {"event": (0, 1), "arm": ("a", "b")})
    of = replace(size(len(frames), **of_size), joins=joins)
    found, made = run(CurveArithmetic(curve, concepts, of), frames)
    if sums is not None:
        sums.append(made)
    return found


def _two_arms(rows: int = 240, sites: int = 4) -> pd.DataFrame:
    generator = np.random.default_rng(2)
    return pd.DataFrame({
        "time": np.ceil(generator.exponential(25, rows)), "event": generator.integers(0, 2, rows),
        "arm": np.where(np.arange(rows) // sites % 2, "a", "b"), "site": np.arange(rows) % sites,
    })  # fmt: skip


def test_a_group_with_few_patients_at_a_site_is_void() -> None:
    """Nobody sees the group, nor the other one, which would give it with a total. Without its patients both are."""
    rows = _two_arms()
    few = (rows["site"] == 0) & (rows["arm"] == "a")
    dropped = few & (rows.groupby(few).cumcount() >= 3)

    with pytest.raises(Unanswerable):
        _small(rows[~dropped], smallest_cell=5)
    without = _small(rows[~few], smallest_cell=5)

    assert [one["sites"] for one in without["groups"]] == [3, 4]  # type: ignore[index, attr-defined]
    assert without["log_rank"] is not None


def test_a_group_of_too_few_sites_is_not_shown() -> None:
    """There is no curve if two sites have a group, or its events: it would be a total minus the other group."""
    rows = _two_arms()

    for few in (rows[(rows["site"] > 1) | (rows["arm"] == "a")], rows.assign(event=rows["event"] * (rows["site"] > 1))):
        with pytest.raises(Unanswerable, match="three"):
            _small(few)


def test_a_curve_ends_where_few_sites_have_patients_at_risk() -> None:
    """It is that of the pooled table, up to there. Of later times the sums have only how many patients there are."""
    rows = _two_arms(rows=800).assign(arm="a")
    rows["time"] = rows["time"].clip(upper=40 + 20 * rows["site"])
    sums: list[AnnouncedPart] = []

    (record,) = _small(rows, smallest_cell=15, sums=sums)["groups"]  # type: ignore[misc]
    (whole,) = _small(rows, fewest_sites=1)["groups"]  # type: ignore[misc]

    enough = [(rows["time"][rows["site"] == site] > 50).sum() >= 15 for site in range(4)]
    assert enough == [False, True, True, True]
    assert record["times"] == [10.0 * place for place in range(6)]  # nobody of the second site is followed beyond 60
    assert record["survival"] == whole["survival"][:6]
    assert sums[0].last is not None
    counts = sums[0].last[:23]
    assert not counts[[*range(6, 11), *range(17, 22)]].any()
    assert counts.sum() == len(rows)


def test_several_curves_of_a_plan_have_no_interval_of_few_patients() -> None:
    """Whoever left one alone would show the own group in each curve. Times of 0 are in the first interval."""
    rows = _two_arms(rows=4000).assign(time=lambda all_rows: all_rows["time"] - 1)

    found = _small(rows, smallest_cell=5, joins=True)
    with pytest.raises(Unanswerable, match="grid"):
        _small(rows, smallest_cell=400, joins=True)

    parts = [np.array([one["interval_events"], one["interval_censored"]]) for one in found["groups"]]  # type: ignore[attr-defined]
    length = min(part.shape[1] for part in parts)
    leaving = sum(part[:, :length] for part in parts).sum(axis=0)
    assert leaving[0] == 0
    assert min(leaving[1:]) >= 3 * 5
    assert leaving[1] == (rows["time"] <= 10).sum()


def test_a_grid_that_is_finer_than_the_times_of_a_site_has_no_curve() -> None:
    """Intervals between its times would be of the other sites."""
    rows = _two_arms()
    rows["time"] *= np.where(rows["site"] == 2, 7.0, 0.5)

    with pytest.raises(Unanswerable, match="multiples of 7"):
        _small(rows, grid=5.0)
    assert _small(rows, grid=7.0)["groups"]
    assert [step_of(np.array(one)) for one in ([0.3, 0.9], [0.25], [np.pi], [], [12.0, 18.0, np.nan])] == [
        0.3,
        0.25,
        0,
        0,
        6,
    ]


def test_what_has_no_curve_is_a_sentence_or_a_flat_line() -> None:
    """Without events curves stay at 1, and have no mean and no test; without a group there is a sentence."""
    rows = _two_arms()

    found = _small(rows.assign(event=0))

    assert {value for one in found["groups"] for value in one["survival"]} == {1.0}  # type: ignore[attr-defined]
    assert {found["log_rank"], *(one["restricted_mean"]["value"] for one in found["groups"])} == {None}  # type: ignore[attr-defined]
    with pytest.raises(Unanswerable, match="group"):
        _small(rows.assign(arm=np.nan))


@pytest.mark.parametrize(
    "wrong", [{"to": 1000.0}, {"grid": 1e-3}, {"by": "time"}, {"by": "event"}, {"event": "time"}, {"time": "event"}]
)
def test_a_plan_that_makes_no_curve_is_refused(wrong: dict[str, object]) -> None:
    """The end is inside the time's range, the grid has limits, and groups and events have codes."""
    concepts = (number("time", 0, 1000, "days"), codes("event", "0", "1"), codes("arm", "a", "b"))
    keys = {"time": "time", "event": "event", "by": "arm", "grid": 10.0, "to": 100.0} | wrong

    with pytest.raises((ValueError, KeyError)):
        CurveArithmetic(Curve.model_validate(keys), concepts, size(4))
