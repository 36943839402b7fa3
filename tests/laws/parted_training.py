"""Trains small models whose batches are computed in parts, and saves their parameters.

    torchrun --nproc-per-node 2 -m tests.laws.parted_training OUTPUT CASE...

Rank 0 trains, and the other ranks help. The functions of this file also train in the process that calls them. A case is
the name of a method, or `KIND network`, with ` and dropout` at its end where the network has dropout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file

from benchmarks.parted_epoch import train_among_processes
from protos.plan.architecture import network_tensors
from protos.plan.losses import TaskDefault
from protos.plan.optimisers import StochasticGradientDescent
from site_agent.trainer.data.contract import Task
from site_agent.trainer.models.network_catalogue import build_network
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.site_training import begin_training, rows_of
from site_agent.trainer.study import Study
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.parted_gradients import describe_network
from site_agent.trainer.training.torch_losses import build_loss
from site_agent.trainer.training.training_model import Model, Recipe
from tests.laws.catalogue import catalogue_plan, rows_at
from tests.protos.architectures import drawn

DROPOUT: Final = " and dropout"
NETWORK: Final = " network"
_SGD: Final = {"name": "sgd", "learning_rate": 0.1}
_ROWS: Final = 5  # in each batch of a network, so that two parts differ in size

Values = dict[str, npt.NDArray[np.generic]]


def trained(case: str) -> Values:
    """The parameters after a case's training, by the case and the parameter's name."""
    plain = case.removesuffix(DROPOUT)
    dropout = 0.0 if plain == case else 0.3
    found = _network(plain.removesuffix(NETWORK)) if plain.endswith(NETWORK) else _method(plain, dropout)
    return {f"{case}: {name}": values for name, values in found.items()}


def _method(name: str, dropout: float) -> Values:
    """Two rounds of four batches by a method of the catalogue, with received values in between."""
    plan = catalogue_plan(name, dropout=dropout, optimiser=_SGD)
    study = Study(plan, rows_at("ahus"), seeds=Seeds.published(plan.seed, "ahus"))
    training = begin_training(
        study.networks, plan.ingredients, study.manifest.tensors, rows_of(study.dataset), study.seeds
    )
    received = torch.full_like(training.flat.federated_values, 0.01)
    for rate in (1.0, 0.5):
        training.flat.take_in(received, rate)
        training.local.train_round(4, received, torch.zeros_like(received))
    return training.flat.values() | {f"used {n}": v for n, v in training.local.evaluated().values().items()}


def _network(kind: str) -> Values:
    """Three steps of a drawn network, with a weight for each class where the targets are classes."""
    own, generator = drawn(kind, 1), np.random.default_rng(0)
    features = torch.from_numpy(generator.integers(0, 2, (_ROWS, own.columns)).astype(np.float32))
    task: Task = "segmentation" if kind == "u-net" else "multi-class" if own.outputs > 1 else "binary"
    shape = (_ROWS, own.outputs) if task == "segmentation" else (_ROWS,)
    targets = torch.from_numpy(generator.integers(0, 2, shape))
    batch = Rows(features, targets if task == "multi-class" else targets.float())
    weights = TaskDefault(name="task-default", class_weights="none" if task == "segmentation" else "balanced")
    loss = build_loss(weights, task, own.outputs, batch.targets)
    tensors = network_tensors(own.architecture, **own.sizes)
    names = [tensor.name for tensor in tensors[::2]]
    recipe = Recipe(
        build=lambda: FlatNetwork(build_network(own.architecture, own.columns, own.outputs, own.common), names),
        loss=loss,
        optimiser=StochasticGradientDescent(name="sgd", learning_rate=0.05),
        described=describe_network(own.architecture, (own.columns, own.outputs, own.common), names, loss, "cpu"),
    )
    flat = recipe.build()
    flat.start(tensors, 0)
    model = Model(flat, recipe)
    torch.manual_seed(0)
    for _ in range(3):
        model.gradient(batch)
        model.step(1.0)
    return flat.values()


def main() -> None:
    """Train the cases with all processes of torchrun, and write the parameters to a file."""
    output, *cases = sys.argv[1:]

    def train_all() -> None:
        values = [trained(case) for case in cases]
        save_file({name: array for each in values for name, array in each.items()}, Path(output))

    train_among_processes(train_all)


if __name__ == "__main__":
    main()
