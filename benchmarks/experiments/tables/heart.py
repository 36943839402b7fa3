"""Runs Global Layers' heart table: three hospitals with different columns, patients and outcomes, 101 seeds.

Source: Obeidi, "Global Layers"; the readings of paper and authors are in docs/researcher.md. The name of each
variant tells which reading it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.data.heart import FILES, heart
from benchmarks.experiments.data.recipes import Authors, Default, Paper, Recipe
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.data.views import aligned, aligned_as_authors, placebo
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.variants import Row, Variant, row_of, run_plan

NETWORK: Final = {"name": "global-layers-network", "latent": 128, "gate": False, "input_normalisation": False}
OPTIMISER: Final = {"name": "adamw", "learning_rate": 1e-3, "weight_decay": 1e-4}
PUBLISHED: Final = {
    "local, authors": {
        "cleveland": (88.57, 80.23, 89.04), "south-africa": (74.49, 62.43, 59.71), "faisalabad": (85.64, 74.57, 74.34)
    },
    "fedavg, authors": {
        "cleveland": (89.67, 78.06, 89.57), "south-africa": (71.13, 56.15, 54.88), "faisalabad": (83.68, 67.66, 71.67)
    },
    "global-layers, authors": {
        "cleveland": (89.59, 81.18, 90.29), "south-africa": (76.02, 63.22, 61.86), "faisalabad": (86.77, 75.15, 76.41)
    },
}  # fmt: skip
METRICS: Final = ("auroc", "balanced_accuracy_at_logit_half", "auprc")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One interpretation of the paper, by which the experiment is run."""

    method: str
    recipe: Recipe
    aggregate: str = "every-epoch"
    batches: int = 5
    view: Callable[[Sites], Sites] | None = None
    keys: dict[str, Any] = field(default_factory=dict)  # Any: keys of a plan


READINGS: Final = {
    "local, authors": Reading(method="local", recipe=Authors()),
    "fedavg, authors": Reading(method="fedavg", recipe=Authors(), view=aligned_as_authors),
    "global-layers, authors": Reading(method="global-layers", recipe=Authors(), keys={"start": "own"}),
    "global-layers, authors, equal start": Reading(method="global-layers", recipe=Authors()),
    "fedavg, aligned": Reading(
        method="fedavg", recipe=Authors(), view=aligned, keys={"weighting": {"name": "rows", "largest_rows": 512}}
    ),
    "local, paper": Reading(method="local", recipe=Paper(), batches=15),
    "global-layers, paper": Reading(method="global-layers", recipe=Paper(), aggregate="every-batch", batches=15),
    "global-layers, authors, every batch": Reading(method="global-layers", recipe=Authors(), aggregate="every-batch"),
    "local, declared": Reading(method="local", recipe=Default(one_hot=False)),
    "global-layers, declared": Reading(method="global-layers", recipe=Default(one_hot=False)),
}
# The federation that each placebo imitates.
PLACEBOS: Final = {
    "placebo, authors": "global-layers, authors",
    "placebo, authors, equal start": "global-layers, authors, equal start",
}


def variants() -> list[Variant]:
    """Return a variant for every interpretation, and the placebos of the authors' network."""
    runs = {name: OneReading(name, reading).run for name, reading in READINGS.items()}
    runs |= {name: _Placebo(name).run for name in PLACEBOS}
    return [Variant(name=name, run=run) for name, run in runs.items()]


@dataclass(frozen=True)
class OneReading:
    """One interpretation, with the name of its variant."""

    name: str
    reading: Reading

    def run(self, folder: Path, seed: int) -> Iterator[Row]:
        """See Variant."""
        sites = heart_sites(folder, seed, self.reading)
        for predicted in run_plan(heart_plan(sites, seed, self.reading), sites):
            yield row_of(self.name, predicted, sites[predicted.site])


def heart_plan(sites: Sites, seed: int, reading: Reading) -> Any:  # a Plan
    """Return the plan of an interpretation for these sites."""
    keys: dict[str, Any] = {"weighting": {"name": "equal"}, "checkpoint": "latest"} | reading.keys
    if reading.method == "fedavg":
        keys |= {"columns": list(next(iter(sites.values())).columns)}
    if reading.method in ("fedavg", "lg-fedavg"):
        keys |= {"outputs": 1}
    return experiment_plan(
        sites,
        seed,
        architecture=NETWORK,
        schedule={"aggregate": reading.aggregate, "epochs": 10, "batches_per_epoch": reading.batches},
        **({"method": {"name": reading.method}, "optimiser": OPTIMISER} | keys),
    )


def heart_sites(folder: Path, seed: int, reading: Reading) -> Sites:
    """Return the three hospitals for a seed, encoded and aligned as an interpretation requires."""
    sites = heart(folder, seed, reading.recipe)
    return sites if reading.view is None else reading.view(sites)


@dataclass(frozen=True)
class _Placebo:
    """Runs each site with two copies of itself. This shows the effect of averaging without new information."""

    name: str

    def run(self, folder: Path, seed: int) -> Iterator[Row]:
        """See Variant."""
        reading = READINGS[PLACEBOS[self.name]]
        data = heart(folder, seed, reading.recipe)
        for site in FILES:
            copies = placebo(data[site], 2, seed)
            for predicted in run_plan(heart_plan(copies, seed, reading), copies):
                if predicted.site == "itself":
                    yield row_of(self.name, replace(predicted, site=site), data[site])
