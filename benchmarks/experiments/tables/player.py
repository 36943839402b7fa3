"""PLayer-FL's heart row: four UCI centres, five classes, and the layers that the sites choose together.

Source: Elhussein and Gürsoy 2025. MLP 10-50-20-20-5, focal loss with
gamma 3, macro-F1 weighted by rows. What is not told follows the authors' published code: 20 rounds of one epoch,
Adam (AMSGrad, weight decay 1e-4) at the lowest of the rates that they try, and the split of seed 42 in every
run. Differs from it in three things: classes are weighed by a site's own training rows ("balanced"), where the
code has one list of constants; every site cuts its epoch into the same six batches, so that only Cleveland's
have 32 rows; and the layers are chosen by the measured sensitivities, where the code names FC1 and FC2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.data.uci_centres import player_heart
from benchmarks.experiments.federations import federate
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.variants import Row, Variant, predicted_by, row_of, run_plans

LAYERS: Final = ("FC1", "FC2", "FC3", "FC4")
NETWORK: Final = {"name": "dense", "hidden": [50, 20, 20]}
ROUNDS: Final = 20
CHOSEN_BY: Final = "player-fl"
# The site's name of a row that holds what the whole federation measured.
FEDERATION: Final = "federation"
METHODS: Final = {
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg"},
    "player-fl": {"name": "player-fl", "threshold": 2.0},
    "player-fl-random": {"name": "player-fl-random"},
}
# Macro-F1 weighted by rows, percent; there is no published figure for the random prefix.
PUBLISHED: Final = {"local": 42.0, "fedavg": 40.4, "player-fl": 41.9}
# Medians of F_(l+1) / F_l over 20 seeds, measured independently.
MEASURED_RATIOS: Final = (1.68, 2.19, 2.97)


def variants() -> list[Variant]:
    """All four methods; those that choose layers run seed by seed."""
    return [Variant(name=name, run=_Player(name).run, seeds_at_once=20) for name in METHODS]


@dataclass(frozen=True)
class _Player:
    """A variant by its name, so that it can be sent to another process."""

    name: str

    def run(self, folder: Path, seeds: Sequence[int]) -> Iterator[Row]:
        """See Variant."""
        sites = player_heart(folder)
        plans = [player_plan(sites, seed, self.name) for seed in seeds]
        if self.name != CHOSEN_BY:
            for predicted in run_plans(plans, [sites] * len(plans)):
                dataset = sites[predicted.site]
                yield row_of(self.name, predicted, dataset, rows=float(len(dataset.test)))
            return
        for plan in plans:
            collection, outcomes = federate(plan, sites)
            for name, outcome in outcomes.items():
                predicted = predicted_by(plan.seed, name, outcome)
                yield row_of(self.name, predicted, sites[name], rows=float(len(sites[name].test)))
            yield _measured(plan.seed, collection.run.course.sensitivities, sum(collection.run.course.chosen))


def player_plan(sites: Sites, seed: int, name: str) -> Any:  # a Plan
    """The plan of a method for these sites."""
    keys: dict[str, Any] = {}
    if name != "local":
        keys = {"columns": next(iter(sites.values())).columns, "outputs": 5}
    return experiment_plan(
        sites,
        seed,
        method=METHODS[name],
        architecture=NETWORK,
        schedule={"aggregate": "every-epoch", "epochs": ROUNDS, "batches_per_epoch": 6},
        optimiser={"name": "adam", "learning_rate": 0.01, "weight_decay": 1e-4, "amsgrad": True},
        loss={"name": "focal", "gamma": 3.0, "class_weights": "balanced"},
        weighting={"name": "rows", "largest_rows": 256},
        checkpoint="local",
        **keys,
    )


def _measured(seed: int, sensitivities: Sequence[float], layers: int) -> Row:
    """F of every layer, summed over the sites, and how many layers are federated."""
    metrics = dict(zip((f"F {layer}" for layer in LAYERS), sensitivities, strict=True)) | {"layers": float(layers)}
    return Row(variant=CHOSEN_BY, seed=seed, site=FEDERATION, chosen_round=-1, metrics=metrics)
