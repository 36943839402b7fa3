"""Quartiles and differences of a Table 1, from counts: those of the pooled table within a bin's width."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from protos.plan.analyses import Frame, TableOne
from protos.plan.concepts import NumberConcept
from protos.statistics.binned_values import without_extremes
from protos.statistics.table_one import TableOneArithmetic
from tests.for_each import for_each
from tests.statistics.federations import statistics_plan
from tests.statistics.one_process import concepts_of, frames_of, run, size
from tests.statistics.survival_tables import TABLES, SurvivalTable


@for_each("table", TABLES)
def test_quartiles_are_half_a_bin_from_the_pooled_ones(table: SurvivalTable) -> None:
    """Or as far as is printed if each site moves its extreme values inward; means are exact."""
    numbers = tuple(term for term in table.terms if term not in table.coded)
    concepts, frames = concepts_of(table.rows, table.coded), frames_of(table.rows, "site", table.coded)
    for smallest in (1, 3):
        arithmetic = TableOneArithmetic(
            TableOne(columns=numbers, by=table.by, bins=200), concepts, size(len(frames), smallest_cell=smallest)
        )

        found, _ = run(arithmetic, [replace(one, smallest_cell=smallest) for one in frames])

        for name in numbers:
            record, values = found["columns"][name]["all"], table.rows[[name, table.by]].dropna()[name]
            if smallest > 1 and record.get("void"):  # a small cell of a group
                continue
            # Between two values with a gap that is wider than a bin, every number is a quantile.
            shares = (0.25, 0.5, 0.75)
            ends = [np.quantile(values, shares, method=one) for one in ("inverted_cdf", "higher")]
            assert record["mean"] == pytest.approx(values.mean(), rel=1e-8, abs=1e-8)
            assert (record["quartiles"] >= ends[0] - record["resolution"]).all()
            assert (record["quartiles"] <= ends[1] + record["resolution"]).all()
            differences = np.abs(record["quartiles"] - np.quantile(values, shares))
            assert (differences <= record["resolution"] * (0.5 + 1e-9)).all()


def test_quartiles_of_whole_numbers_in_the_middles_of_bins_are_exact() -> None:
    """With the range and the bins that docs/statistics.md names."""
    ages = pd.DataFrame({"site": np.arange(400) % 4, "age": np.random.default_rng(0).integers(18, 100, 400) * 1.0})
    for bins, high, is_exact in ((121, 120.5, True), (107, 106.5, True), (121, 122.5, False)):
        age = NumberConcept(kind="number", name="age", definition="Age.", low=-0.5, high=high)
        arithmetic = TableOneArithmetic(TableOne(columns=("age",), bins=bins), (age,), size(4))
        found = run(arithmetic, frames_of(ages, "site", {}))[0]["columns"]["age"]["all"]
        quartiles = ages.age.quantile([0.25, 0.5, 0.75])
        assert found["exact if whole"] == np.allclose(found["quartiles"], quartiles, rtol=1e-7) == is_exact
    assert found["resolution"] == float(f"{123 / 121:.12g}")  # no digits of a computation


def test_no_bin_shows_an_extreme_value() -> None:
    """The lowest and the highest bin with rows have at least as many as a smallest cell, at every site."""
    values = np.random.default_rng(0).lognormal(size=100)

    moved = without_extremes(values, 5)

    assert [(moved == end).sum() for end in (moved.min(), moved.max())] == [5, 5]
    np.testing.assert_array_equal(np.quantile(moved, [0.25, 0.5, 0.75]), np.quantile(values, [0.25, 0.5, 0.75]))
    np.testing.assert_array_equal(without_extremes(values[:7], 5), values[:7])


def test_standardised_differences_follow_from_means_deviations_and_shares() -> None:
    """Numbers by Austin 2009; two codes have the same formula; of three groups the largest difference counts."""
    generator = np.random.default_rng(1)
    rows = pd.DataFrame({
        "site": np.arange(600) % 3, "arm": generator.choice(["a", "b", "c"], 600),
        "sex": generator.choice(["f", "m"], 600), "age": generator.normal(60, 9, 600),
    })  # fmt: skip
    rows["age"] += 5 * (rows["arm"] == "c")
    coded: dict[str, tuple[object, ...]] = {"arm": ("a", "b", "c"), "sex": ("f", "m")}
    table = TableOne(columns=("age", "sex"), by="arm")

    found, _ = run(TableOneArithmetic(table, concepts_of(rows, coded), size(3)), frames_of(rows, "site", coded))

    groups = [part for _, part in rows.groupby("arm")]
    ages, shares = [], []
    for one, other in ((0, 1), (0, 2), (1, 2)):
        first, second = groups[one], groups[other]
        pooled = np.sqrt((first["age"].var() + second["age"].var()) / 2)
        ages.append(abs(first["age"].mean() - second["age"].mean()) / pooled)
        p, q = (first["sex"] == "m").mean(), (second["sex"] == "m").mean()
        shares.append(abs(p - q) / np.sqrt((p * (1 - p) + q * (1 - q)) / 2))
    assert found["differences"]["age"] == pytest.approx(max(ages), rel=1e-8)
    assert found["differences"]["sex"] == pytest.approx(max(shares), rel=1e-12)


def test_a_code_may_be_the_word_missing() -> None:
    """Its rows have a value, and are no rows without one."""
    words = np.array(["yes", "no", "missing", None] * 75)
    rows = pd.DataFrame({"site": np.arange(300) % 3, "smoker": words})
    coded: dict[str, tuple[object, ...]] = {"smoker": ("no", "yes", "missing")}
    arithmetic = TableOneArithmetic(TableOne(columns=("smoker",)), concepts_of(rows, coded), size(3))

    found, _ = run(arithmetic, frames_of(rows, "site", coded))

    record = found["columns"]["smoker"]["all"]
    assert (record["rows"], record["missing"]) == (225, 75)
    assert {code: one["rows"] for code, one in record["codes"].items()} == {"no": 75, "yes": 75, "missing": 75}
    assert len({number.name for number in arithmetic.first}) == len(arithmetic.first)


def test_a_small_group_without_any_value_is_void() -> None:
    """The number of its missing values would be the number of its patients."""
    rows = pd.DataFrame({"site": np.arange(90) % 3, "arm": [*"ab" * 43, *"cccc"], "age": [50.0] * 86 + [np.nan] * 4})
    coded: dict[str, tuple[object, ...]] = {"arm": ("a", "b", "c")}
    arithmetic = TableOneArithmetic(TableOne(columns=("age",), by="arm"), concepts_of(rows, coded), size(3))

    found, _ = run(arithmetic, [replace(frame, smallest_cell=5) for frame in frames_of(rows, "site", coded)])

    assert "void" in found["columns"]["age"]["arm=c"]


@pytest.mark.parametrize("visits", [3, 300])
def test_one_patient_with_most_of_the_rows_makes_a_cell_void(visits: int) -> None:
    """The mean would be nearly that of this patient."""
    plan = statistics_plan({"name": "t", "table_one": {"columns": ["lactate"]}})
    patients = np.concatenate([np.zeros(visits, np.int64), np.arange(1, 40)])
    values = np.random.default_rng(0).uniform(1.0, 5.0, len(patients))
    frame = Frame(columns={"lactate": values}, patients=patients, smallest_cell=10)

    is_there, is_small, *_ = plan.arithmetics[0].first_values(frame)

    assert (is_there, is_small) == (1.0, visits == 300)
