"""Table 1 by group, from sums over sites: that of one pooled table, void where a cell is small, and in notebooks."""

from __future__ import annotations

from typing import Any

import pytest

from global_layers.statistics_simulation import simulate_statistics
from tests.for_each import for_each
from tests.statistics.federations import CONCEPTS, frames_of, patients, results_of, statistics_plan
from tests.statistics.test_regression import regression


def table_one(*columns: str, by: str | None = None) -> dict[str, Any]:
    """An analysis of a plan."""
    return {"name": "patients", "table_one": {"columns": list(columns)} | ({"by": by} if by else {})}


@for_each("seed", range(3))
def test_groups_and_all_are_those_of_the_pooled_table(seed: int) -> None:
    """Rows, missing, means, deviations and codes; moments are sums rounded to 2**-36."""
    table = patients(seed)
    plan = statistics_plan(table_one("age", "stage", by="sex"), smallest_cell=3)

    (found,) = results_of(plan, frames_of(plan, table))

    assert found["groups"] == ["all", "sex=female", "sex=male"]
    for group in found["groups"]:
        own = table if group == "all" else table[table.sex == group.removeprefix("sex=")]
        age, stage = found["columns"]["age"][group], found["columns"]["stage"][group]
        assert (age["rows"], age["missing"]) == (own.age.notna().sum(), own.age.isna().sum())
        assert age["mean"] == pytest.approx(own.age.mean(), rel=1e-9)
        assert age["deviation"] == pytest.approx(own.age.std(), rel=1e-8)
        assert {code: one["rows"] for code, one in stage["codes"].items()} == own.stage.value_counts().to_dict()


def test_a_small_cell_of_one_site_makes_its_column_void_for_all() -> None:
    """Neither the code nor the other codes of this group are printed, nor all groups together. Others stand."""
    table = patients(1)
    few = table.index[(table.site == 2) & (table.sex == "male") & (table.stage == "III")]
    table.loc[few[3:], "stage"] = "I"
    plan = statistics_plan(table_one("stage", "pressure", by="sex"))

    (found,) = results_of(plan, frames_of(plan, table))

    stage = found["columns"]["stage"]
    assert set(stage["sex=male"]) == {"void"} == set(stage["all"])
    assert "codes" not in stage["all"]
    assert found["columns"]["pressure"]["sex=male"]["rows"] == (table.sex == "male").sum()


def test_a_plan_whose_sums_differ_by_one_hospital_or_one_group_is_refused() -> None:
    """Two recorders of two columns, and a column by two groups: the difference would be of one site or a void cell."""
    names = [site.name for site in statistics_plan(table_one("age")).sites]
    concepts = [one | ({"recorded_by": names[:3]} if one["name"] == "age" else {}) for one in CONCEPTS]

    with pytest.raises(ValueError, match="recorded_by"):
        statistics_plan(table_one("age", "sex"), concepts=concepts, fewest_sites=3)
    with pytest.raises(ValueError, match="described twice"):
        statistics_plan(table_one("age", by="stage"), table_one("age", by="sex") | {"name": "another"})
    plan = statistics_plan(table_one("age"), concepts=concepts, fewest_sites=3)
    table = patients(2)
    (found,) = results_of(plan, frames_of(plan, table))

    assert found["columns"]["age"]["all"]["sites"] == 3
    assert found["columns"]["age"]["all"]["rows"] == table[table.site < 3].age.notna().sum()


def test_a_notebook_has_the_same_numbers() -> None:
    """The same plan over frames with texts for codes."""
    table = patients(3)
    plan = statistics_plan(table_one("age", by="stage"), regression())

    found = simulate_statistics(plan, {name: table[table.site == k] for k, name in enumerate(plan.site_names)})

    assert found == results_of(plan, frames_of(plan, table))
    with pytest.raises(ValueError, match="no codes"):
        simulate_statistics(plan, dict.fromkeys(plan.site_names, table.assign(sex="unknown")))
