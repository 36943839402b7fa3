"""Parameters with which a sum of updates contains rows of a table, and how an observer reads them.

In an imprinted layer all neurons measure the same value and differ only in their thresholds. Two neighbours' updates
then differ by the rows between their thresholds. If that is one row, the quotient of the differences of weights and
bias is the row. Source: Fowl et al. 2022, "Robbing the Fed", section 3.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan

Numbers: TypeAlias = npt.NDArray[np.float64]
COLUMNS: Final = 6
NEURONS: Final = 400
CLOSE: Final = 0.02  # standard deviations of a column
PLAN: Final[dict[str, Any]] = {
    "architecture": {"name": "dense", "hidden": [NEURONS], "activation": "relu"},
    "columns": ["mean_radius", "mean_texture", "mean_perimeter", "mean_area", "mean_smoothness", "mean_compactness"],
    "outputs": 1,
    "schedule": {"aggregate": "every-epoch", "epochs": 2, "batches_per_epoch": 1},
    "optimiser": {"name": "sgd", "learning_rate": 1.0},
}


def imprint(plan: Plan, layer: str, lowest: float, highest: float, head: str) -> npt.NDArray[np.float32]:
    """Parameters of which one layer bins its inputs along one direction, between two thresholds."""
    manifest = manifest_of(plan)
    vector = np.zeros(manifest.parameters, np.float32)
    values = manifest.views(vector)
    values[f"{layer}.weight"][...] = np.linspace(0.4, 1.0, values[f"{layer}.weight"].shape[1])
    values[f"{layer}.bias"][...] = -np.linspace(lowest, highest, NEURONS)
    values[f"{head}.weight"][...] = 0.002  # small, so that each row's loss has a gradient
    return vector


def inputs_read(plan: Plan, update: Numbers, layer: str) -> Numbers:
    """Return what an observer reads from a sum of updates: inputs of the imprinted layer, and many wrong ones."""
    views = manifest_of(plan).views(update)
    weights, biases = np.diff(views[f"{layer}.weight"], axis=0), np.diff(views[f"{layer}.bias"])
    is_used = np.abs(biases) > 1e-7
    found: Numbers = weights[is_used] / biases[is_used][:, None]
    return found


def rows_read(found: Numbers, rows: Numbers) -> int:
    """Return how many of these rows were found."""
    if not len(found):
        return 0
    distances = np.abs(found[:, None, :] - rows[None, :, :]).max(axis=2)
    return int((distances.min(axis=0) < CLOSE).sum())
