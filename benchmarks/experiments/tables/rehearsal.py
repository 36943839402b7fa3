"""Makes a table of results in seconds, without a download: the breast cancer table of scikit-learn at three sites.

It reproduces nothing. It shows the runner's work without a download. The runner's tests use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.data.dealt import breast_cancer
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.variants import Row, Variant, row_of, run_plan

METHODS: Final = ("local", "global-layers")
_NETWORK: Final = {
    "name": "global-layers-network",
    "latent": 16,
    "gate": False,
    "input_normalisation": False,
    "transformer_blocks": 0,
    "entities": False,
}


def variants() -> list[Variant]:
    """Return the variants: Global Layers, and the same network trained alone."""
    return [Variant(name=name, run=_Rehearsal(name).run) for name in METHODS]


@dataclass(frozen=True)
class _Rehearsal:
    """One variant, stored by its name, so that it can be sent to another process."""

    name: str

    def run(self, _folder: Path, seed: int) -> Iterator[Row]:
        """Compute this variant's rows for a seed. See Variant."""
        sites = breast_cancer(seed)
        for predicted in run_plan(rehearsal_plan(sites, seed, self.name), sites):
            yield row_of(self.name, predicted, sites[predicted.site])


def rehearsal_plan(sites: Sites, seed: int, method: str) -> Any:  # a Plan
    """Return a plan with four epochs of three batches."""
    return experiment_plan(
        sites,
        seed,
        method={"name": method},
        architecture=_NETWORK,
        schedule={"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 3},
        optimiser={"name": "adamw", "learning_rate": 1e-3},
        weighting={"name": "equal"},
    )
