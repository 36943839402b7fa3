"""Repeats PLayer-FL's heart results: four UCI centres, five classes, ten methods, and the layers that sites choose.

Source: Elhussein and Gürsoy 2025. MLP 10-50-20-20-5, focal loss (gamma 3), 50 epochs and 50 runs (table A.4), AdamW at
each method's own rate (table A.3), pFedMe by plain steps. Table A.3 lists no rate for pFedLA, which has FedAvg's
rate here. It also lists none for the random prefix, which has PLayer-FL's rate here. The strengths of the
methods are not published; they are the plan's defaults. The split is that of the authors' published code, seed 42 in
every run.

Three things differ from their code. Classes have weights by a site's own training rows ("balanced"). The code has one
list of constants. Every site divides its epoch into the same six batches, so only Cleveland's batches have 32 rows. The
measured sensitivities choose the layers. The code names FC1 and FC2.

The rows of FedLP and FedLAMA on record were computed at commit 9f8b3bc8, the last that offered these methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.data.uci_centres import player_heart
from benchmarks.experiments.federations import federate
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.single_vectors import LayerMixtures, federate_vectors
from benchmarks.experiments.variants import Predicted, Row, Variant, predicted_by, row_of
from protos.plan.optimisers import Loss
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.training.torch_losses import build_loss

LAYERS: Final = ("FC1", "FC2", "FC3", "FC4")
NETWORK: Final = {"name": "dense", "hidden": [50, 20, 20]}
SEEDS: Final = range(50)
ROUNDS: Final = 50
CHOSEN_BY: Final = "player-fl"
MIXTURES: Final = "pfedla"
# The text in the column `site` for results of the whole federation.
FEDERATION: Final = "federation"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the paper's tables.

    Attributes:
        method: as a plan names it.
        rate: table A.3's learning rate for heart.
        f1, accuracy: tables 1 and A.7, percent, with the half width of the 95% interval.
    """

    method: dict[str, Any]
    rate: float
    f1: tuple[float, float] | None = None
    accuracy: tuple[float, float] | None = None


METHODS: Final = {
    "local": Entry(method={"name": "local"}, rate=0.05, f1=(42.0, 0.8), accuracy=(53.7, 1.0)),
    "fedavg": Entry(method={"name": "fedavg"}, rate=0.1, f1=(40.4, 1.0), accuracy=(54.1, 0.7)),
    "fedprox": Entry(
        method={"name": "fedprox"}, rate=0.05, f1=(37.2, 1.6), accuracy=(52.9, 1.6),
    ),
    "pfedme": Entry(
        method={"name": "pfedme"}, rate=0.1, f1=(42.5, 0.8), accuracy=(55.0, 1.0),
    ),
    "ditto": Entry(
        method={"name": "ditto"}, rate=0.05, f1=(40.7, 1.0), accuracy=(55.5, 1.0),
    ),
    "local-adaptation": Entry(
        method={"name": "local-adaptation"}, rate=0.01, f1=(39.8, 0.9), accuracy=(53.8, 0.8),
    ),
    "fedbabu": Entry(
        method={"name": "fedbabu"}, rate=0.1, f1=(40.3, 0.8), accuracy=(54.2, 0.7),
    ),
    MIXTURES: Entry(
        method={"name": "fedavg"}, rate=0.1, f1=(40.1, 0.8), accuracy=(52.6, 1.4),
    ),
    CHOSEN_BY: Entry(
        method={"name": "player-fl", "threshold": 2.0}, rate=0.01, f1=(41.9, 1.0), accuracy=(55.4, 1.2),
    ),
    "player-fl-random": Entry(
        method={"name": "player-fl-random"}, rate=0.01, f1=(41.3, 0.9), accuracy=(54.4, 1.2),
    ),
    # The paper's PLayer-FL-1 and PLayer-FL+1: one layer fewer and one more than FC2.
    "player-fl up to FC1": Entry(method={"name": "player-fl", "layers": 1}, rate=0.05),
    "player-fl up to FC3": Entry(method={"name": "player-fl", "layers": 3}, rate=0.05),
    # The values that the paper does not publish: the step of pFedMe's shared model and FedBABU's epochs of fine-tuning.
    "pfedme, shared step 0.1": Entry(method={"name": "pfedme", "rate": 0.1}, rate=0.1),
    "fedbabu, tuned 10 epochs": Entry(method={"name": "fedbabu", "fine_tuning_epochs": 10}, rate=0.1),
    "fedbabu, tuned 10 epochs, rate 0.01": Entry(method={"name": "fedbabu", "fine_tuning_epochs": 10}, rate=0.01),
}  # fmt: skip


def variants() -> list[Variant]:
    """Return all methods as variants."""
    return [Variant(name=name, run=_Player(name).run) for name in METHODS]


@dataclass(frozen=True)
class _Player:
    """One variant, stored by its name, so that it can be sent to another process."""

    name: str

    def run(self, folder: Path, seed: int) -> Iterator[Row]:
        """Compute this variant's rows for a seed. PLayer-FL's include each layer's sensitivity, summed over sites."""
        sites = player_heart(folder)
        plan = player_plan(sites, seed, self.name)
        if self.name == MIXTURES:
            outcomes = federate_vectors(plan, sites, _mixtures)
        else:
            collection, outcomes = federate(plan, sites)
            if self.name == CHOSEN_BY:
                course = collection.run.course
                metrics = dict(zip((f"F {layer}" for layer in LAYERS), course.sensitivities, strict=True))
                metrics |= {"layers": float(sum(course.chosen))}
                yield Row(variant=CHOSEN_BY, seed=seed, site=FEDERATION, chosen_round=-1, metrics=metrics)
        for name, outcome in outcomes.items():
            yield _row(self.name, predicted_by(seed, name, outcome), sites[name], plan.loss)


def player_plan(sites: Sites, seed: int, name: str, rate: float | None = None) -> Any:  # a Plan
    """Return the plan of a method for these sites, with the method's learning rate or another rate."""
    entry, keys = METHODS[name], dict[str, Any]()
    method = entry.method["name"]
    if method != "local":
        keys = {"columns": next(iter(sites.values())).columns}
    # Because the head is private, the plan does not contain the number of classes.
    if method not in ("local", "fedbabu"):
        keys |= {"outputs": 5}
    rate = entry.rate if rate is None else rate
    optimiser: dict[str, Any] = {"name": "adamw", "learning_rate": rate, "weight_decay": 0.01}
    return experiment_plan(
        sites,
        seed,
        method=entry.method,
        architecture=NETWORK,
        schedule={"aggregate": "every-epoch", "epochs": ROUNDS, "batches_per_epoch": 6},
        optimiser={"name": "sgd", "learning_rate": rate} if method == "pfedme" else optimiser,
        loss={"name": "focal", "gamma": 3.0, "class_weights": "balanced"},
        weighting={"name": "rows", "largest_rows": 256},
        checkpoint="local",
        **keys,
    )


def _row(variant: str, predicted: Predicted, dataset: Dataset, loss: Loss) -> Row:
    """Return the metrics with the number of test rows and the loss of training, computed on the test rows."""
    targets = dataset.test.targets
    function = build_loss(loss, dataset.task, dataset.outputs, torch.from_numpy(dataset.training.targets))
    found = float(function(torch.from_numpy(predicted.outputs).double(), torch.from_numpy(targets)))
    return row_of(variant, predicted, dataset, rows=float(len(targets)), test_loss=found)


def _mixtures(plan: Any, manifest: Any, sites: int) -> LayerMixtures:  # a Plan and its Manifest
    return LayerMixtures(manifest, sites, seed=plan.seed)
