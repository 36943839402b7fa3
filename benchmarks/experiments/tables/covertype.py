"""Runs Global Layers on covertype, divided by wilderness area.

Its test rows differ from the published ones, so the figures cannot be compared.

Source: Obeidi, "Global Layers". The covertype network with 717,640 shared numbers, ten batches an epoch, all seven
classes and eleven columns at every site, as in the authors' experiment. The data lack the published test rows
(`data/covertype.py`). So half of the published validation rows are the test set. The other half would be the validation
set, but no choice is made here. The paper ran 105 epochs; EPOCHS has the number that was run here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score, roc_auc_score

from benchmarks.experiments.data.covertype import centralized, covertype
from benchmarks.experiments.data.recipes import Authors
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.variants import Outputs, Row, Variant, row_of, run_plan

NETWORK: Final = {"name": "global-layers-network", "latent": 176, "gate": True, "input_normalisation": True}
OPTIMISER: Final = {"name": "adamw", "learning_rate": 1e-3, "weight_decay": 1e-4}
METHODS: Final = ("local", "fedavg", "global-layers")
CENTRAL: Final = "centralized"
SEEDS: Final = range(8, 13)  # the first five of the paper's 21
EPOCHS: Final = 30
# AUROC, the paper's "accuracy" (which is the mean recall), and AUPRC on the published test rows (tables 15 to 17).
PUBLISHED: Final = {
    "local": {
        "comanche": (88.29, 80.82, 57.82), "neota": (79.44, 76.43, 70.23), "poudre": (86.74, 72.57, 67.85),
        "rawah": (88.86, 84.25, 64.94),
    },
    "fedavg": {
        "comanche": (79.58, 80.46, 45.37), "neota": (60.92, 72.26, 27.88), "poudre": (63.89, 72.72, 26.67),
        "rawah": (69.82, 83.65, 31.98),
    },
    "global-layers": {
        "comanche": (92.09, 83.81, 65.52), "neota": (88.85, 81.13, 83.11), "poudre": (88.88, 74.21, 71.83),
        "rawah": (91.43, 85.13, 69.90),
    },
    CENTRAL: {"central": (88.93, 79.70, 53.09)},
}  # fmt: skip


def variants() -> list[Variant]:
    """Return the variants:

    Global Layers, and its network trained alone, with all parameters shared, and on pooled rows.
    """
    return [Variant(name=name, run=_Covertype(name).run) for name in (*METHODS, CENTRAL)]


@dataclass(frozen=True)
class _Covertype:
    """One variant, stored by its name, so that it can be sent to another process."""

    name: str

    def run(self, folder: Path, seed: int) -> Iterator[Row]:
        """Compute this variant's rows for a seed. See Variant."""
        deal = centralized if self.name == CENTRAL else covertype
        sites = deal(folder, seed, Authors())
        for predicted in run_plan(covertype_plan(sites, seed, self.name, EPOCHS), sites):
            dataset = sites[predicted.site]
            auroc, auprc = as_the_authors(dataset.test.targets, predicted.outputs)
            yield row_of(self.name, predicted, dataset, auroc_of_authors=auroc, auprc_of_authors=auprc)


def covertype_plan(
    sites: Sites, seed: int, method: str, epochs: int, changed: Mapping[str, Any] | None = None
) -> Any:  # a Plan
    """Return the plan of the experiment, with changed values of some keys."""
    shared: dict[str, Any] = {}
    if method == "fedavg":
        shared = {"columns": next(iter(sites.values())).columns, "outputs": 7}
    keys: dict[str, Any] = {
        "method": {"name": "local" if method == CENTRAL else method},
        "architecture": NETWORK,
        "schedule": {"aggregate": "every-epoch", "epochs": epochs, "batches_per_epoch": 10},
        "optimiser": OPTIMISER,
        "weighting": {"name": "equal"},
        "checkpoint": "latest",
    }
    return experiment_plan(sites, seed, **keys | shared | dict(changed or {}))


def as_the_authors(targets: npt.NDArray[np.generic], logits: Outputs) -> tuple[float, float]:
    """AUROC and AUPRC as the authors compute them: on raw logits, means over all classes.

    A class without rows counts as 0.5 and as 0, so sites with few classes look worse than they are.

    Args:
        targets: shape (rows,), indices of classes.
        logits: shape (rows, classes).
    """
    aurocs, auprcs = [], []
    for place in range(logits.shape[1]):
        is_it = targets == place
        is_there = bool(is_it.any()) and not bool(is_it.all())
        aurocs.append(float(roc_auc_score(is_it, logits[:, place])) if is_there else 0.5)
        auprcs.append(float(average_precision_score(is_it, logits[:, place])) if is_there else 0.0)
    return float(np.mean(aurocs)), float(np.mean(auprcs))
