"""Makes the sites of the paper's heart experiment: three hospitals with different columns, patients and outcomes.

Source: Obeidi, "Global Layers", and the authors' experiment. For each seed a third of a site's rows is the test set,
and a tenth of the remaining rows is the validation set. The seed decides both. Outcomes: narrowed
arteries (Cleveland), coronary disease (South Africa), death (Faisalabad).

`time` at Faisalabad is the length of follow-up, which ends at death. So this column reveals the outcome. The published
figures include `time`. It is removed only on request, and both results must be reported.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks.experiments.data.piecewise import piecewise_linear
from benchmarks.experiments.data.recipes import Authors, Recipe, adapted, piecewise_columns
from benchmarks.experiments.data.sources import Sites, hospital_contract, paper_split, public_table
from site_agent.trainer.data.columns import CategoricalFeature
from site_agent.trainer.data.contract import BinaryTarget, Contract
from site_agent.trainer.data.dataset import Dataset, Examples, prepare_rows

FILES: Final = {"cleveland": "cleveland.data", "south-africa": "sa.data", "faisalabad": "faisalabad.csv"}
SEEDS: Final = range(101)
LEAKING: Final = "time"


def heart(folder: Path, seed: int, recipe: Recipe, *, without_time: bool = False) -> Sites:
    """The three sites, each with its own columns.

    Args:
        folder: holds `heart/`.
        seed: of the split; the paper's are 0 to 100.
        recipe: how columns are encoded; `Authors` also reads Cleveland's label the other way round.
        without_time: whether to remove Faisalabad's leaking column.

    Raises: ConfigurationError, DataError: a table is missing or differs from the expected one.
    """
    return {site: heart_site(folder, site, seed, recipe, without_time=without_time) for site in FILES}


def heart_site(folder: Path, site: str, seed: int, recipe: Recipe, *, without_time: bool = False) -> Dataset:
    """One of the three sites; see `heart`."""
    contract = _contract(site, recipe, without_time)
    table = public_table(folder / "heart" / FILES[site], contract)
    dataset, _ = prepare_rows(table, paper_split(table.rows, seed))
    if isinstance(recipe, Authors):
        dataset = _with_plain_positions(dataset, contract)
    chosen = piecewise_columns(contract, recipe, site)
    return piecewise_linear(dataset, chosen) if chosen else dataset


@cache
def _contract(site: str, recipe: Recipe, without_time: bool) -> Contract:
    contract = adapted(hospital_contract(site), recipe, without=(LEAKING,) if without_time else ())
    if not (isinstance(recipe, Authors) and site == "cleveland"):
        return contract
    target = BinaryTarget(name="num", role="target", task="binary", positive=("0",), negative=("1", "2", "3", "4"))
    columns = tuple(target if column.role == "target" else column for column in contract.columns)
    return Contract(format=contract.format, missing_markers=contract.missing_markers, columns=columns)


def _with_plain_positions(dataset: Dataset, contract: Contract) -> Dataset:
    """Convert columns in words back to 0 and 1, because the authors scale only numbers.

    Trained alone, 101 seeds, South Africa then has an AUROC of 74.34 where the paper has 74.49; with
    its one such column z-scored, 74.20.
    """
    words = {
        feature.encoded_columns[0]
        for feature in contract.features
        if isinstance(feature, CategoricalFeature) and not any(code[:1].isdigit() for code in feature.codes)
    }
    places = [place for place, name in enumerate(dataset.columns) if name in words]

    def plain(part: Examples) -> Examples:
        features = part.features.copy()
        # If there are two positions, the first position is below the mean.
        features[:, places] = features[:, places] > 0
        return replace(part, features=features)

    return replace(
        dataset, training=plain(dataset.training), validation=plain(dataset.validation), test=plain(dataset.test)
    )
