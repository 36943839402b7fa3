"""Covertype by area and by divided columns: the published counts, and truly paired comparisons."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.experiments.data.covertype import AREAS, centralized, covertype
from benchmarks.experiments.data.dealt_columns import chfl_covertype, hillshades
from benchmarks.experiments.data.recipes import Authors, ColumnsOf, Default, Paper, Recipe, Statistician
from benchmarks.experiments.tables import chfl

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
    """All published training rows are training rows.

    Every validation row is in the validation set or the test set.
    """
    sites = covertype(DATA, 8, recipe)

    assert tuple(sites) == AREAS
    assert [len(site.training) for site in sites.values()] == [2675, 386, 4771, 3508]
    assert [len(site.validation) + len(site.test) for site in sites.values()] == [922, 113, 1578, 1167]
    assert {site.training.features.shape[1] for site in sites.values()} == {width}
    assert tuple(site.outputs for site in sites.values()) == outputs


def test_all_rows_in_one_place_are_the_areas_rows() -> None:
    """11,340 rows train, and whoever tests at an area or chooses there is here too."""
    sites, together = covertype(DATA, 8, Authors()), centralized(DATA, 8, Authors())["central"]

    assert len(together.training) == sum(len(site.training) for site in sites.values()) == 11_340
    assert len(together.validation) + len(together.test) == 3_780
    assert together.columns == sites["neota"].columns
    assert np.bincount(together.training.targets.astype(np.int64)).tolist() == [1620] * 7


def test_classes_are_counted_as_described() -> None:
    """Poudre's class 2 has 14 training rows, under the site's own classes and under all seven."""
    own, all_seven = covertype(DATA, 0, Paper())["poudre"], covertype(DATA, 0, Authors())["poudre"]

    assert own.classes == ("2", "3", "4", "6")
    assert np.bincount(own.training.targets.astype(np.int64)).tolist() == [14, 976, 1620, 898]
    assert np.bincount(all_seven.training.targets.astype(np.int64), minlength=7).tolist() == [
        *(0, 14, 976, 1620, 0, 898, 0)
    ]


def test_the_area_is_a_constant_where_it_is_kept() -> None:
    """The paper's readings keep its column for the count of parameters, although it has no information."""
    site = covertype(DATA, 0, Paper())["rawah"]

    assert not site.training.features[:, site.columns.index("wilderness_area")].any()
    assert not any("wilderness" in name for name in covertype(DATA, 0, Default())["rawah"].columns)


def test_the_seed_deals_who_chooses_and_nothing_else() -> None:
    """Training rows have the same bits under every seed, and test rows do not."""
    first, second = covertype(DATA, 0, Paper())["neota"], covertype(DATA, 1, Paper())["neota"]

    np.testing.assert_array_equal(first.training.features, second.training.features)
    assert not np.array_equal(first.test.features, second.test.features)


def test_an_areas_numbers_can_be_piecewise_linear() -> None:
    """One column of one area becomes ten, elsewhere it stays one."""
    recipe = Default(one_hot=False, piecewise_linear=(ColumnsOf(site="rawah", columns=("elevation",)),))

    sites = covertype(DATA, 0, recipe)

    assert [len(site.columns) for site in sites.values()] == [19, 10, 10, 10]


@pytest.mark.parametrize(("sites", "share", "common"), [(5, 0.3, 16), (2, 0.3, 16), (10, 0.3, 16), (5, 0.1, 5)])
def test_dealt_columns_belong_to_one_site_or_to_all(sites: int, share: float, common: int) -> None:
    """Common columns come first at every site, with equal names.

    Each other column exists once; there are 54 columns in all, and the published rows.
    """
    dealt = chfl_covertype(DATA, 1, 2, sites=sites, common_share=share)

    own = [site.columns[common:] for site in dealt.sites.values()]

    assert len(dealt.sites) == sites
    assert len(dealt.common) == common
    assert all(site.columns[:common] == dealt.common for site in dealt.sites.values())
    assert max(map(len, own)) - min(map(len, own)) <= 1
    assert len({name for names in (*own, dealt.common) for name in names}) == 54
    assert sum(len(site.training) for site in dealt.sites.values()) == 9072
    assert sum(len(site.validation) for site in dealt.sites.values()) == 3024
    assert {len(site.test) for site in dealt.sites.values()} == {3024}
    assert len({site.test.targets.tobytes() for site in dealt.sites.values()}) == 1


@pytest.mark.parametrize("split", [0, 1, 2, *chfl.SPLITS_WITH_ELEVATION])
def test_the_page_of_chfl_names_the_splits_with_a_common_elevation(split: int) -> None:
    """Elevation is at one of five clients in the three usual splits, and at all clients in the further splits."""
    sites = chfl_covertype(DATA, split, 0).sites.values()

    holders = sum("elevation" in site.columns for site in sites)

    assert holders == (5 if split in chfl.SPLITS_WITH_ELEVATION else 1)


def test_equal_seeds_give_pairs() -> None:
    """Two methods on one split and run have the same columns and rows.

    Another split divides columns, and another run divides rows.
    """
    first, again, split, run = (chfl_covertype(DATA, *seeds) for seeds in ((1, 1), (1, 1), (2, 1), (1, 2)))

    assert [site.digest for site in first.sites.values()] == [site.digest for site in again.sites.values()]
    assert first.common != split.common
    assert first.common == run.common
    assert first.sites["site-1"].digest != run.sites["site-1"].digest


def test_soils_and_areas_are_one_hot_again() -> None:
    """Over all sites the columns are the original's, and the cells of codes are 0 and 1."""
    dealt = chfl_covertype(DATA, 3, 0)
    names = {name for site in dealt.sites.values() for name in site.columns}

    assert sum(name.startswith("soil_type=") for name in names) == 40
    assert sum(name.startswith("wilderness_area=") for name in names) == 4
    assert sum(name.startswith("hillshade") for name in names) == 3
    for site in dealt.sites.values():
        codes = [place for place, name in enumerate(site.columns) if "=" in name]
        assert set(np.unique(site.training.features[:, codes])) <= {0.0, 1.0}


def test_computed_hillshades_are_near_the_originals() -> None:
    """Within 3 of 255 at the first five records of the original (UCI, covtype.data)."""
    shades = hillshades(np.array([51.0, 56.0, 139.0, 155.0, 45.0]), np.array([3.0, 2.0, 9.0, 18.0, 2.0]))

    originals = [[221, 220, 234, 238, 220], [232, 235, 238, 238, 234], [148, 151, 135, 122, 150]]
    assert np.abs(np.stack(list(shades.values())) - originals).max() < 3.1
