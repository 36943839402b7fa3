"""Covertype by area and by dealt columns: the published counts, and pairs that are really paired."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.experiments.data.covertype import AREAS, covertype
from benchmarks.experiments.data.dealt_columns import chfl_covertype
from benchmarks.experiments.data.recipes import Authors, ColumnsOf, Default, Paper, Recipe, Statistician

from .conftest import DATA, needs_covertype

pytestmark = needs_covertype


@pytest.mark.parametrize(
    ("recipe", "width", "outputs"),
    [
        (Paper(), 11, (4, 3, 6, 4)),
        (Authors(), 11, (7, 7, 7, 7)),
        (Statistician(), 66, (4, 3, 6, 4)),
        (Default(), 66, (4, 3, 6, 4)),
        (Default(one_hot=False), 10, (4, 3, 6, 4)),
    ],
    ids=repr,
)
def test_areas_have_the_published_rows(recipe: Recipe, width: int, outputs: tuple[int, ...]) -> None:
    """All published training rows train; every validation row either chooses or reports."""
    sites = covertype(DATA, 8, recipe)

    assert tuple(sites) == AREAS
    assert [len(site.training) for site in sites.values()] == [2675, 386, 4771, 3508]
    assert [len(site.validation) + len(site.test) for site in sites.values()] == [922, 113, 1578, 1167]
    assert {site.training.features.shape[1] for site in sites.values()} == {width}
    assert tuple(site.outputs for site in sites.values()) == outputs


def test_classes_are_counted_as_described() -> None:
    """Poudre's class 2 has 14 training rows, under the site's own classes and under all seven."""
    own, all_seven = covertype(DATA, 0, Paper())["poudre"], covertype(DATA, 0, Authors())["poudre"]

    assert own.classes == ("2", "3", "4", "6")
    assert np.bincount(own.training.targets.astype(np.int64)).tolist() == [14, 976, 1620, 898]
    assert np.bincount(all_seven.training.targets.astype(np.int64), minlength=7).tolist() == [
        *(0, 14, 976, 1620, 0, 898, 0)
    ]


def test_the_area_is_a_constant_where_it_is_kept() -> None:
    """The paper's readings keep its column for the count of parameters; it holds nothing."""
    site = covertype(DATA, 0, Paper())["rawah"]

    assert not site.training.features[:, site.columns.index("wilderness_area")].any()
    assert not any("wilderness" in name for name in covertype(DATA, 0, Default())["rawah"].columns)


def test_the_seed_deals_who_chooses_and_nothing_else() -> None:
    """Training rows are the same bits under every seed, reporting rows are not."""
    first, second = covertype(DATA, 0, Paper())["neota"], covertype(DATA, 1, Paper())["neota"]

    np.testing.assert_array_equal(first.training.features, second.training.features)
    assert not np.array_equal(first.test.features, second.test.features)


def test_an_areas_numbers_can_be_piecewise_linear() -> None:
    """One column of one area becomes ten, elsewhere it stays one."""
    recipe = Default(one_hot=False, piecewise_linear=(ColumnsOf(site="rawah", columns=("elevation",)),))

    sites = covertype(DATA, 0, recipe)

    assert [len(site.columns) for site in sites.values()] == [19, 10, 10, 10]


@pytest.mark.parametrize("seed", range(5))
def test_dealt_columns_belong_to_one_site_or_to_all(seed: int) -> None:
    """15 common columns, first at every site and with equal names; the other 36 once each; every row once."""
    dealt = chfl_covertype(DATA, seed)

    own = [site.columns[15:] for site in dealt.sites.values()]

    assert len(dealt.sites) == 5
    assert len(dealt.common) == 15
    assert all(site.columns[:15] == dealt.common for site in dealt.sites.values())
    assert sorted(map(len, own)) == [7, 7, 7, 7, 8]
    assert len({name for names in (*own, dealt.common) for name in names}) == 51
    sizes = [(len(site.training), len(site.validation), len(site.test)) for site in dealt.sites.values()]
    assert sizes == [(2177, 242, 605)] * 5


def test_equal_seeds_give_pairs() -> None:
    """Two methods on one seed see the same columns and rows; another seed deals again."""
    first, again, other = chfl_covertype(DATA, 1), chfl_covertype(DATA, 1), chfl_covertype(DATA, 2)

    assert [site.digest for site in first.sites.values()] == [site.digest for site in again.sites.values()]
    assert first.common != other.common


def test_soils_and_areas_are_one_hot_again() -> None:
    """Over all sites the columns are the original's without hillshades, and their cells are 0 and 1."""
    dealt = chfl_covertype(DATA, 3)
    names = {name for site in dealt.sites.values() for name in site.columns}

    assert sum(name.startswith("soil_type=") for name in names) == 40
    assert sum(name.startswith("wilderness_area=") for name in names) == 4
    for site in dealt.sites.values():
        codes = [place for place, name in enumerate(site.columns) if "=" in name]
        assert set(np.unique(site.training.features[:, codes])) <= {0.0, 1.0}
