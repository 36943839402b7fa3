"""Reads the covertype table, divided by wilderness area into four sites with different soils and classes.

The two tables hold the first 15,120 records of the original, balanced by class. These tables lack the other 565,892
records, on which the published figures were computed. They also lack the three hillshade columns, which follow from
aspect, slope and the sun's position. So **no figure made here can be compared with a published one**. Methods can be
compared with each other on the same rows.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
from sklearn.model_selection import train_test_split

from benchmarks.experiments.data.piecewise import piecewise_linear
from benchmarks.experiments.data.recipes import Authors, Default, Recipe, Statistician, adapted, piecewise_columns
from benchmarks.experiments.data.sources import Sites, experiment_contract, public_table
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.contract import Contract, MultiClassTarget
from site_agent.trainer.data.dataset import Dataset, SplitRows, prepare_rows
from site_agent.trainer.data.preprocessing import Rows
from site_agent.trainer.data.tables import Table

# In the order of the contract.
AREAS: Final = ("rawah", "neota", "comanche", "poudre")

_TRAINING_FILE: Final = "covertype11_train.csv"
_VALIDATION_FILE: Final = "covertype11_validation.csv"
_AREA: Final = "wilderness_area"


def covertype(folder: Path, seed: int, recipe: Recipe) -> Sites:
    """Return four sites with 2,675, 386, 4,771 and 3,508 training rows.

    Results cannot be compared with published figures.

    The published training rows train. The published validation rows replace the missing test rows. The seed divides
    each site's validation rows into a validation half and a test half, stratified by class, so the reported rows
    never choose a model.

    `Paper` and `Authors` keep the area, which is constant within a site, because the published counts of
    parameters need its column; the others drop it. Classes are those of the site (4, 3, 6, 4), under
    `Authors` all seven.

    Args:
        folder: holds `covertype/`.
        seed: of the two halves.
        recipe: how columns are encoded: 11 columns in the paper's readings, 10 for `Default(one_hot=False)`,
            66 for one-hot.

    Raises: ConfigurationError, DataError: a table is missing or differs from the expected one.
    """
    return {area: _site(folder, area, seed, recipe) for area in AREAS}


def centralized(folder: Path, seed: int, recipe: Recipe) -> Sites:
    """Return all rows at one site, encoded together: 11,340 training rows, other rows divided as in `covertype`."""
    return {"central": _site(folder, None, seed, recipe)}


def both_files(folder: Path, contract: Contract) -> tuple[Table, Table]:
    """The training and validation rows, under one contract."""
    tables = folder / "covertype"
    return public_table(tables / _TRAINING_FILE, contract), public_table(tables / _VALIDATION_FILE, contract)


def targets_of(table: Table) -> Numbers:
    """The classes' indices of a table that was read for training: float64 of shape (rows,)."""
    if table.target is None:
        raise ValueError("a table read for training has a target")
    return table.target


def _site(folder: Path, area: str | None, seed: int, recipe: Recipe) -> Dataset:
    table, training_rows = area_table(folder, area, recipe)
    others = np.arange(training_rows, table.rows, dtype=np.int64)
    choosing, reporting = train_test_split(others, test_size=0.5, random_state=seed, stratify=targets_of(table)[others])
    rows = SplitRows(training=np.arange(training_rows, dtype=np.int64), validation=choosing, test=reporting)
    dataset, _ = prepare_rows(table, rows)
    chosen = piecewise_columns(table.contract, recipe, area or "central")
    return piecewise_linear(dataset, chosen) if chosen else dataset


@cache
def area_table(folder: Path, area: str | None, recipe: Recipe) -> tuple[Table, int]:
    """Return the rows of one area (None: all areas), training rows first, and the number of training rows."""
    declared = experiment_contract("covertype")
    without = (_AREA,) if isinstance(recipe, Statistician | Default) else ()
    contract = adapted(declared, recipe, without=without)
    own = [_rows_of(table, area) for table in both_files(folder, declared)]
    parts = both_files(folder, contract)
    target = np.concatenate([targets_of(table)[rows] for table, rows in zip(parts, own, strict=True)])
    present = np.arange(7) if isinstance(recipe, Authors) else np.unique(target).astype(np.int64)
    features = {
        feature.name: np.concatenate(
            [table.features[feature.name][rows] for table, rows in zip(parts, own, strict=True)]
        )
        for feature in contract.features
    }
    table = Table(
        contract=_with_classes(contract, [contract.target.classes[place] for place in present]),
        rows=len(target),
        features=MappingProxyType(features),
        target=np.searchsorted(present, target).astype(np.float64),
        patients=None,
    )
    return table, len(own[0])


def _rows_of(table: Table, area: str | None) -> Rows:
    if area is None:
        return np.arange(table.rows, dtype=np.int64)
    return np.flatnonzero(table.features[_AREA] == AREAS.index(area)).astype(np.int64)


def _with_classes(contract: Contract, classes: list[str]) -> Contract:
    target = MultiClassTarget(name=contract.target.name, role="target", task="multi-class", codes=tuple(classes))
    columns = tuple(target if column.role == "target" else column for column in contract.columns)
    return Contract(format=contract.format, missing_markers=contract.missing_markers, columns=columns)
