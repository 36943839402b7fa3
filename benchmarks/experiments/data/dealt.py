"""Makes a federation without a download: the breast cancer table of scikit-learn, divided among three sites.

569 patients of the University of Wisconsin, 30 measured numbers in three families of ten. All sites record the family
"mean", so they share columns. The first two sites record one more family each, so their columns differ. No two sites
have a patient in common.
"""

from __future__ import annotations

from functools import cache
from types import MappingProxyType
from typing import Final

import numpy as np
from sklearn.datasets import load_breast_cancer

from benchmarks.experiments.data.sources import Sites, paper_split
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import NumericFeature
from site_agent.trainer.data.contract import BinaryTarget, Contract, TableFormat
from site_agent.trainer.data.dataset import prepare_rows
from site_agent.trainer.data.preprocessing import Rows
from site_agent.trainer.data.tables import Table

FAMILIES: Final = {"ahus": ("mean", "error"), "berlin": ("mean", "worst"), "cluj": ("mean",)}


def breast_cancer(seed: int) -> Sites:
    """Return three sites with 190, 190 and 189 patients. The outcome 1 means malignant.

    Args:
        seed: decides which site has which patient, and each site's split.
    """
    table = _whole_table()
    patients = np.random.default_rng(seed).permutation(table.rows)
    sites = {}
    for (site, families), rows in zip(FAMILIES.items(), np.array_split(patients, len(FAMILIES)), strict=True):
        own = _part(table, rows, families)
        sites[site], _ = prepare_rows(own, paper_split(own.rows, seed))
    return sites


@cache
def _whole_table() -> Table:
    bunch = load_breast_cancer()
    columns = {str(name): bunch.data[:, place].astype(np.float64) for place, name in enumerate(bunch.feature_names)}
    target = (bunch.target == 0).astype(np.float64)  # 0 is malignant
    return _table(columns, target)


def _part(table: Table, rows: Rows, families: tuple[str, ...]) -> Table:
    columns = {
        name: values[rows] for name, values in table.features.items() if any(family in name for family in families)
    }
    assert table.target is not None
    return _table(columns, table.target[rows])


def _table(columns: dict[str, Numbers], target: Numbers) -> Table:
    contract = Contract(
        format=TableFormat(header=True),
        columns=(
            *(NumericFeature(name=name, role="feature", type="numeric") for name in columns),
            BinaryTarget(name="malignant", role="target", task="binary", positive=("1",), negative=("0",)),
        ),
    )
    return Table(contract=contract, rows=len(target), features=MappingProxyType(columns), target=target, patients=None)
