"""A recipe is a contract made from another one, so only its declarations can be wrong."""

from __future__ import annotations

import pytest

from benchmarks.experiments.data.recipes import (
    Authors,
    ColumnsOf,
    Default,
    Paper,
    Recipe,
    Statistician,
    adapted,
    piecewise_columns,
)
from benchmarks.experiments.data.sources import hospital_contract
from site_agent.trainer.data.columns import CategoricalFeature, NumericFeature


def kinds(site: str, recipe: Recipe) -> dict[str, str]:
    """Each feature's encoding by name: number, ordinal or one-hot."""
    features = adapted(hospital_contract(site), recipe).features
    return {item.name: item.encoding if isinstance(item, CategoricalFeature) else "number" for item in features}


def test_the_papers_discrete_columns_are_positions() -> None:
    """Every declared code and the one incomplete number are ordinal, the rest are numbers."""
    found = kinds("cleveland", Paper())

    assert {name for name, kind in found.items() if kind == "ordinal"} == {
        *("sex", "cp", "fbs", "restecg", "exang", "slope", "thal"),
        "ca",
    }
    assert "one-hot" not in found.values()


def test_the_authors_types_are_inferred() -> None:
    """Digits are numbers. Words, and columns with a "?", are positions."""
    cleveland, africa = kinds("cleveland", Authors()), kinds("south-africa", Authors())

    assert {name for name, kind in cleveland.items() if kind == "ordinal"} == {"ca", "thal"}
    assert {name for name, kind in africa.items() if kind == "ordinal"} == {"famhist"}


def test_a_statistician_spreads_codes_but_not_yes_and_no() -> None:
    """More than two codes, or words, are a column each; 0 and 1 are a number."""
    found = {
        name
        for site in ("cleveland", "south-africa")
        for name, kind in kinds(site, Statistician()).items()
        if kind == "one-hot"
    }

    assert found == {"cp", "restecg", "slope", "thal", "ca", "famhist"}


def test_the_default_may_keep_yes_and_no_as_they_are() -> None:
    """Only codes with more than two values become several columns, and numbers that may be missing remain numbers."""
    found = kinds("cleveland", Default(keeps_yes_or_no=True))

    assert {name for name, kind in found.items() if kind == "one-hot"} == {"cp", "restecg", "slope", "thal"}
    assert {name for name, kind in found.items() if kind == "ordinal"} == {"sex", "fbs", "exang"}
    assert found["ca"] == "number"


def test_the_default_refuses_nothing_that_hospitals_allowed_to_miss() -> None:
    """A number with a median gets a flag too, and a number that may not miss keeps its rule."""
    features = {item.name: item for item in adapted(hospital_contract("cleveland"), Default()).features}

    numbers = {name: item.missing for name, item in features.items() if isinstance(item, NumericFeature)}

    assert numbers["ca"] == "median-and-flag"
    assert {rule for name, rule in numbers.items() if name != "ca"} == {"refuse"}


def test_a_column_left_out_is_not_read() -> None:
    """It stays declared, because a declared table may not have strange columns, and is no feature."""
    contract = adapted(hospital_contract("faisalabad"), Paper(), without=["time"])

    assert "time" not in contract.encoded_columns
    assert [column.role for column in contract.columns if column.name == "time"] == ["ignore"]


@pytest.mark.parametrize(("columns", "expected"), [(None, 7), (("age",), 1), ((), 0)])
def test_piecewise_columns_are_chosen_site_by_site(columns: tuple[str, ...] | None, expected: int) -> None:
    """None means every number of that site, and other sites have none."""
    recipe = Default(piecewise_linear=(ColumnsOf(site="faisalabad", columns=columns),))

    found = {site: piecewise_columns(hospital_contract(site), recipe, site) for site in ("cleveland", "faisalabad")}

    assert [len(found["cleveland"]), len(found["faisalabad"])] == [0, expected]


def test_a_code_cannot_be_piecewise_linear() -> None:
    """A misspelt or categorical column is refused, not skipped."""
    recipe = Default(piecewise_linear=(ColumnsOf(site="faisalabad", columns=("smoking",)),))

    with pytest.raises(ValueError, match="smoking"):
        piecewise_columns(hospital_contract("faisalabad"), recipe, "faisalabad")
