"""R on the pooled table gives the same coefficients, errors, p values, tests, curves and differences between sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.for_each import for_each
from tests.statistics.federations import frames_of, patients, results_of, statistics_plan
from tests.statistics.references import has_r, largest_difference, lines_of_r, of_r, of_sums
from tests.statistics.survival_tables import TABLES, SurvivalTable
from tests.statistics.test_regression import regression
from tests.statistics.test_shapes_and_sites import FAMILIES, KNOTS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_r(), reason="no Rscript with survival (Debian: apt install r-cran-survival)"),
]


@for_each("table", TABLES)
def test_r_gives_the_same(table: SurvivalTable, tmp_path: Path) -> None:
    """All differ by less than 1e-9; the rounding of sums to 2**-37 gives up to about 1e-10."""
    expected, found = of_r(table, tmp_path), of_sums(table).printed

    assert largest_difference(expected, found, *expected) < 1e-9


def test_splines_firths_correction_and_differences_are_those_of_r(tmp_path: Path) -> None:
    """For all families and Cox models of six hospitals: R's splines are another basis, and Firth's fit another way."""
    table = patients(7, rows=(150, 160, 130, 170, 180, 140)).dropna(subset=["age"])
    coded = table.assign(male=(table.sex == "male").astype(int), event=(table.died == "yes").astype(int))
    coded.to_csv(tmp_path / "table.csv", index=False, float_format="%.17g")
    expected = lines_of_r("models.R", tmp_path / "table.csv", *KNOTS)
    kinds: dict[str, dict[str, Any]] = {kind: regression(kind, **keys) for kind, (keys, _) in FAMILIES.items()}
    kinds["cox"] = {"name": "cox", "cox": {"time": "days", "event": "died", "terms": ["age", "sex"]}}

    for kind, analysis in kinds.items():
        (model,) = (key for key in analysis if key != "name")
        bent = {"name": "bent", model: analysis[model] | {"splines": {"age": KNOTS}}}
        plan = statistics_plan(analysis, bent, sites=6)
        straight, curved = results_of(plan, frames_of(plan, table))
        for one, knot in zip(curved["splines"][0]["at"], KNOTS, strict=True):
            assert one["estimate"] == pytest.approx(expected[f"{kind} spline"][f"{knot:g}"], abs=1e-8)
        for one, name in zip(straight["terms"], ("age", "male"), strict=True):
            between = one["between_sites"]
            assert between["q"] == pytest.approx(expected[f"{kind} q"][name], rel=1e-6)
            assert between["estimate"] == pytest.approx(expected[f"{kind} mean"][name], rel=1e-6)
    plan = statistics_plan(regression(firth=True), sites=6)
    (found,) = results_of(plan, frames_of(plan, table))
    for one, name in zip(found["terms"], ("age", "male"), strict=True):
        assert one["estimate"] == pytest.approx(expected["firth coefficient"][name], abs=1e-9)
        assert one["error"] == pytest.approx(expected["firth error"][name], abs=1e-9)
