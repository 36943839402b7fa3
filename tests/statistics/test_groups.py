"""Table 1 by group, from sums over sites: that of one pooled table, void where a cell is small, and in notebooks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from global_layers import simulate
from host.statistics_page import statistics_page
from protos.statistics.table_one import void_groups
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.tables import read_table
from site_agent.trainer.statistics.concept_frame import concept_frame
from tests.for_each import for_each
from tests.statistics.federations import CONCEPTS, frames_of, patients, results_of, statistics_plan, studies_of
from tests.statistics.test_regression import regression
from tests.statistics.test_statistics_page import HEAD


def table_one(*columns: str, by: str | None = None) -> dict[str, Any]:
    """An analysis of a plan."""
    return {"name": "patients", "table_one": {"columns": list(columns)} | ({"by": by} if by else {})}


@for_each("seed", range(3))
def test_groups_and_all_are_those_of_the_pooled_table(seed: int) -> None:
    """Rows, missing, means, deviations and codes; moments are sums rounded to 2**-36. A hospital has the same of its
    own rows, although few of them, or of one patient, are never sent."""
    table, plan = patients(seed), statistics_plan(table_one("age", "stage", by="sex"), smallest_cell=3)

    (pooled,) = results_of(plan, frames_of(plan, table))
    strict = statistics_plan(table_one("age", "stage", by="sex"), smallest_cell=200)
    first = studies_of(strict, frames_of(strict, table.assign(patient=7), "patient"))[plan.site_names[0]]

    for found, rows in ((pooled, table), (first.own()["patients"], table[table.site == 0])):
        assert found["groups"] == ["all", "sex=female", "sex=male"]
        for group in found["groups"]:
            own = rows if group == "all" else rows[rows.sex == group.removeprefix("sex=")]
            age, stage = found["columns"]["age"][group], found["columns"]["stage"][group]
            assert (age["rows"], age["missing"]) == (own.age.notna().sum(), own.age.isna().sum())
            assert age["mean"] == pytest.approx(own.age.mean(), rel=1e-9)
            assert age["deviation"] == pytest.approx(own.age.std(), rel=1e-8)
            assert {code: one["rows"] for code, one in stage["codes"].items()} == own.stage.value_counts().to_dict()


@pytest.mark.parametrize(("column", "usual"), [("stage", "I"), ("lactate", 1.0)])
def test_a_small_cell_of_one_site_makes_its_column_void_for_all(column: str, usual: object) -> None:
    """Neither this group is printed, nor the other one, which would give it with a total. Other columns stand."""
    table = patients(1)
    few = table.index[(table.site == 2) & (table.sex == "male") & (table[column] != usual)]
    table.loc[few[3:], column] = usual
    plan = statistics_plan(table_one(column, "pressure", by="sex"))

    (found,) = results_of(plan, frames_of(plan, table))

    void = found["columns"][column]
    assert set(void["sex=male"]) == set(void["sex=female"]) == set(void["all"]) == {"void"}
    assert found["columns"]["pressure"]["sex=male"]["rows"] == (table.sex == "male").sum()
    page = statistics_page(HEAD | {"analyses": [found]})
    assert [f"{column}: {kind}" in page for kind in ("n (%)", "mean (SD)")] == [column == "stage", column == "lactate"]


@for_each("seed", range(30))
def test_no_total_minus_shown_groups_has_a_small_cell(seed: int) -> None:
    """Groups that are left out have no small cell together, or no group is shown; never is one left out alone."""
    generator = np.random.default_rng(seed)
    cells = generator.choice([0, 1, 2, 3, 6, 9, 20], (int(generator.integers(1, 6)), 3))

    def is_small(places: Sequence[int]) -> bool:
        return bool(((cells[list(places)].sum(axis=0) - 1) % (1 << 20) < 4).any())

    void = void_groups(cells.sum(axis=1).tolist(), is_small)
    shown = [place for place in range(len(cells)) if place not in void and cells[place].any()]

    assert not any(is_small([place]) for place in shown)
    assert not void or not shown or (len(void) > 1 and not is_small(sorted(void)))
    assert void or not any(is_small([place]) for place in range(len(cells)))


def test_rows_that_a_contract_leaves_out_are_counted(tmp_path: Path) -> None:
    """A Table 1 says how many rows without an outcome its hospitals dropped."""
    (tmp_path / "table.csv").write_text("age,ill\n" + "\n".join(f"{30 + k},{['0', '1', ''][k % 3]}" for k in range(60)))
    target = {"name": "ill", "role": "target", "task": "binary", "positive": ("1",), "missing": "drop"}
    age = {"name": "age", "role": "feature", "type": "numeric", "missing": "median", "concept": "age", "unit": "years"}
    contract = Contract.model_validate({"format": {"header": True}, "columns": (age, target)})
    plan = statistics_plan(table_one("age"), concepts=[CONCEPTS[0]])
    table = read_table(tmp_path / "table.csv", contract)

    (found,) = results_of(plan, {name: concept_frame(plan, table, name, 10) for name in plan.site_names})

    assert (found["columns"]["age"]["all"]["rows"], found["rows that take no part"]) == (160, 80)
    assert "80 further rows" in statistics_page(HEAD | {"analyses": [found]})


def test_a_plan_whose_sums_differ_by_one_hospital_or_one_group_is_refused() -> None:
    """Two recorders of two columns, and a column by two groups: the difference would be of one site or a void cell."""
    names = [site.name for site in statistics_plan(table_one("age")).sites]
    concepts = [one | ({"recorded_by": names[:3]} if one["name"] == "age" else {}) for one in CONCEPTS]

    with pytest.raises(ValueError, match="recorded_by"):
        statistics_plan(table_one("age", "sex"), concepts=concepts, fewest_sites=3)
    with pytest.raises(ValueError, match="described twice"):
        statistics_plan(table_one("age", by="stage"), table_one("age", by="sex") | {"name": "another"})
    wrong = [{"name": name, "table_one": {"columns": ["days"], "by": "age"}} for name in ("one", "two")]
    with pytest.raises(ValueError, match=r"sex with stage .* by patients and another,.*; one: by .*; two: by names"):
        statistics_plan(table_one("sex", by="stage"), table_one("stage", by="sex") | {"name": "another"}, *wrong)
    curve = {"time": "days", "event": "died", "by": "sex", "grid": 50.0, "to": 900.0}
    with pytest.raises(ValueError, match="described twice"):
        statistics_plan(table_one("died", by="sex"), {"name": "another", "curve": curve})
    fine = [{"name": f"{k}", "curve": curve | {"by": None, "grid": k}} for k in (50.0, 50.5)]
    fine[1]["curve"] |= {"event": "sex"}
    with pytest.raises(ValueError, match="curves differ"):
        statistics_plan(*fine)
    knots = [regression(name, terms=["age"], splines={"age": [40.0, at, 60.0]}) for name, at in (("a", 50), ("b", 51))]
    with pytest.raises(ValueError, match="age has two sets"):
        statistics_plan(*knots)
    plan = statistics_plan(table_one("age"), concepts=concepts, fewest_sites=3)
    table = patients(2)
    (found,) = results_of(plan, frames_of(plan, table))

    assert found["columns"]["age"]["all"]["sites"] == 3
    assert found["columns"]["age"]["all"]["rows"] == table[table.site < 3].age.notna().sum()


def test_all_are_void_where_a_group_is_of_too_few_hospitals() -> None:
    """The group would be the rest of all: here men are at two of four hospitals, with enough patients at each."""
    table = patients(0)
    table.loc[table.site < 2, "sex"] = "female"
    plan = statistics_plan(table_one("age", by="sex"))

    age = results_of(plan, frames_of(plan, table))[0]["columns"]["age"]

    assert [name for name, one in age.items() if "void" in one] == ["all", "sex=female", "sex=male"]


def test_a_notebook_has_the_same_numbers() -> None:
    """The same plan over frames with texts for codes."""
    table, plan = patients(3), statistics_plan(table_one("age", by="stage"), regression())

    keys = plan.model_dump(mode="json", include={"concepts", "analyses", "smallest_cell", "rows_per_unknown"})
    found = simulate(keys, {name: table[table.site == k] for k, name in enumerate(plan.site_names)})

    assert found == results_of(plan, frames_of(plan, table))
    years = table.assign(age=table.age.where(table.site != 1, table.age / 12))
    with pytest.warns(UserWarning, match=rf"{plan.site_names[1]}: age: .* 1/"):
        simulate(keys, {name: years[years.site == k] for k, name in enumerate(plan.site_names)})
    stages = table.stage.map({"I": 1, "II": 2, "III": 3}).astype("category")
    numbered = json.loads(json.dumps(keys).replace('"III"', '"3"').replace('"II"', '"2"').replace('"I"', '"1"'))
    sites = {name: table.assign(stage=stages)[table.site == k] for k, name in enumerate(plan.site_names)}
    assert simulate(numbered, sites)[1]["terms"][0] == found[1]["terms"][0]
