"""The three heart sites under each reading of the paper: sizes, columns, labels, and no use of test rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.experiments.data.heart import FILES, heart, heart_site
from benchmarks.experiments.data.recipes import Authors, ColumnsOf, Default, Paper, Recipe, Statistician
from benchmarks.experiments.data.views import aligned, aligned_as_authors, union_of_columns
from protos.errors import ConfigurationError
from site_agent.hospital import Split
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.dataset import align, prepare
from tests.for_each import for_each

from .conftest import DATA, needs_heart

CONTRACTS = Path(__file__).parents[4] / "deploy" / "data"
PIECEWISE = Default(piecewise_linear=(ColumnsOf(site="faisalabad"),))
RECIPES = [Paper(), Authors(), Statistician(), Default(), Default(one_hot=False), PIECEWISE]


@needs_heart
@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize("seed", [0, 8, 100])
def test_every_recipe_deals_the_papers_parts(seed: int, recipe: Recipe) -> None:
    """Sizes are the paper's, and a recipe changes columns, never rows."""
    sites = heart(DATA, seed, recipe)

    assert [(len(site.training), len(site.validation), len(site.test)) for site in sites.values()] == [
        (182, 21, 100),
        (278, 31, 153),
        (180, 20, 99),
    ]
    plain = heart(DATA, seed, Paper())
    same = ("south-africa", "faisalabad") if isinstance(recipe, Authors) else tuple(FILES)
    assert all(np.array_equal(sites[name].test.targets, plain[name].test.targets) for name in same)
    assert all(site.training.features.dtype == np.float32 for site in sites.values())


@needs_heart
@pytest.mark.parametrize(
    ("recipe", "widths"),
    [
        (Paper(), [13, 9, 12]),
        (Authors(), [13, 9, 12]),
        (Statistician(), [30, 11, 12]),
        (Default(), [33, 11, 22]),
        (Default(one_hot=False), [14, 9, 12]),
        (PIECEWISE, [33, 11, 85]),
    ],
    ids=repr,
)
def test_the_number_of_columns_is_the_same_for_all_seeds(recipe: Recipe, widths: list[int]) -> None:
    """Seeds can be trained in one stack, because the rows do not decide the number of columns."""
    found = [[site.training.features.shape[1] for site in heart(DATA, seed, recipe).values()] for seed in range(20)]

    assert found == [widths] * 20
    assert [len(site.columns) for site in heart(DATA, 0, recipe).values()] == widths


@needs_heart
@pytest.mark.parametrize("site", ["south-africa", "faisalabad"])
@for_each("seed", range(3))
def test_the_papers_recipe_is_what_a_hospital_gets(site: str, seed: int) -> None:
    """If the contract leaves nothing open, the deployment's own command reads the same bits."""
    deployed, _ = prepare(DATA / "heart" / FILES[site], read_contract(CONTRACTS / f"{site}.yaml"), Split(seed=seed))

    assert heart_site(DATA, site, seed, Paper()).digest == deployed.digest


@needs_heart
def test_the_authors_turn_clevelands_label_round() -> None:
    """Their 1 means no disease. At the other sites a 1 means the same as in the paper."""
    paper, authors = heart(DATA, 4, Paper()), heart(DATA, 4, Authors())

    np.testing.assert_array_equal(authors["cleveland"].test.targets, 1 - paper["cleveland"].test.targets)
    np.testing.assert_array_equal(authors["faisalabad"].test.targets, paper["faisalabad"].test.targets)


@needs_heart
def test_the_authors_scale_a_missing_value_as_minus_one() -> None:
    """Cleveland's `thal` is -1, 3, 6 and 7 before scaling, so its z-scores keep the ratios of these steps."""
    site = heart_site(DATA, "cleveland", 0, Authors())
    parts = (site.training, site.validation, site.test)
    values = np.unique(np.concatenate([part.features[:, site.columns.index("thal")] for part in parts]))

    steps = np.diff(values)

    np.testing.assert_allclose(steps / steps[-1], [4.0, 3.0, 1.0], rtol=1e-5)


@needs_heart
def test_the_default_flags_what_is_missing() -> None:
    """Cleveland's four missing `ca` are the median and a flag, its two missing `thal` a category."""
    site = heart_site(DATA, "cleveland", 0, Default())
    parts = (site.training, site.validation, site.test)
    features = np.concatenate([part.features for part in parts])

    assert features[:, site.columns.index("ca is missing")].sum() == 4
    assert features[:, site.columns.index("thal=unknown")].sum() == 2
    assert len(np.unique(features[:, site.columns.index("ca")])) == 4


@needs_heart
@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_without_time_the_leaking_column_is_gone(recipe: Recipe) -> None:
    """Only Faisalabad changes, and only by columns of `time`."""
    whole, without = heart(DATA, 7, recipe), heart(DATA, 7, recipe, without_time=True)

    assert [name for name in whole if whole[name].digest != without[name].digest] == ["faisalabad"]
    gone = [name for name in whole["faisalabad"].columns if name not in without["faisalabad"].columns]
    assert gone
    assert all(name.split()[0] == "time" for name in gone)


@needs_heart
def test_aligned_sites_have_31_columns() -> None:
    """Age is common to three sites and sex to two. Every other place of a site is zero."""
    sites = heart(DATA, 0, Paper())

    placed = aligned(sites)

    assert len(union_of_columns(sites)) == 31
    assert {site.columns for site in placed.values()} == {union_of_columns(sites)}
    assert [np.count_nonzero(site.training.features.any(axis=0)) for site in placed.values()] == [13, 9, 12]


@needs_heart
def test_the_authors_alignment_is_off_by_one_at_south_africa_alone() -> None:
    """In alphabetical order its tobacco is in Faisalabad's column time. The other sites are correct."""
    sites = heart(DATA, 0, Authors())
    shifted = aligned_as_authors(sites)
    columns = tuple(sorted(union_of_columns(sites)))
    right = {name: align(site, columns) for name, site in sites.items()}

    moved = [name for name in sites if right[name].digest != shifted[name].digest]

    assert moved == ["south-africa"]
    values, own = shifted["south-africa"].test.features, sites["south-africa"]
    tobacco = own.test.features[:, own.columns.index("tobacco")]
    np.testing.assert_array_equal(values[:, columns.index("time")], tobacco)
    assert np.count_nonzero(values.any(axis=0)) == 9


@needs_heart
@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_a_dataset_is_the_same_every_time(recipe: Recipe) -> None:
    """The same seed and recipe give the same bits, another seed gives others."""
    first, again, other = (heart(DATA, seed, recipe)["cleveland"].digest for seed in (3, 3, 4))

    assert first == again != other


def test_a_folder_without_tables_is_told(tmp_path: Path) -> None:
    """The error at the start of an experiment names the missing file and the option for its folder."""
    with pytest.raises(ConfigurationError, match=r"cleveland\.data is not there.*--data"):
        heart(tmp_path, 0, Paper())
