"""Measures an epoch of a convolutional network on handwritten digits, with one or several processes.

    python -m benchmarks.parted_epoch
    python -m site_agent.trainer.by_torchrun --nproc-per-node 2 --master-port 29500 -m benchmarks.parted_epoch

Prints the seconds of each epoch. The images are the 1,797 digits of scikit-learn, enlarged to 32 by 32 pixels.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from sklearn.datasets import load_digits

from protos.plan.architecture import network_tensors
from protos.plan.ingredients import Method
from protos.plan.learning_rates import ConstantRate
from protos.plan.losses import TaskDefault
from protos.plan.networks.convolutional_networks import ConvolutionalNetwork, ImageSize
from protos.plan.optimisers import AdamW
from site_agent.trainer import by_torchrun
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.models.network_catalogue import build_network
from site_agent.trainer.training.batches import Batches, Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.local import LocalTraining, Pace
from site_agent.trainer.training.procedures import build_procedure
from site_agent.trainer.training.torch_losses import build_loss
from site_agent.trainer.training.training_model import Recipe

_SIZE: Final = ImageSize(height=32, width=32, channels=1)
_NETWORK: Final = ConvolutionalNetwork(
    name="convolutional", image=_SIZE, blocks=(16, 32), hidden=(64,), normalisation=True, activation="relu"
)
_CLASSES, _BATCHES, _EPOCHS = 10, 14, 6


def _digits() -> Rows:
    images, labels = load_digits(return_X_y=True)
    large = np.kron(images.reshape(-1, 8, 8) / 16.0 - 0.3, np.ones((4, 4)))
    return Rows(torch.from_numpy(large.reshape(len(large), -1)).float(), torch.from_numpy(labels).long())


def _measure() -> None:
    from site_agent.trainer.training.parted_gradients import describe_network

    rows, columns = _digits(), _SIZE.numbers
    tensors = network_tensors(_NETWORK, columns=columns, outputs=_CLASSES)
    names = [tensor.name for tensor in tensors]
    loss = build_loss(TaskDefault(name="task-default"), "multi-class", _CLASSES, rows.targets)
    recipe = Recipe(
        build=lambda: FlatNetwork(build_network(_NETWORK, columns, _CLASSES), names),
        loss=loss,
        optimiser=AdamW(name="adamw", learning_rate=0.001),
        described=describe_network(_NETWORK, (columns, _CLASSES, None), names, loss, "cpu"),
    )
    flat = recipe.build()
    flat.start(tensors, 0)
    training = LocalTraining(
        build_procedure(Method(), flat, recipe),
        rows=rows,
        batches=Batches(len(rows.features), _BATCHES, [np.random.default_rng(0)], stacked=False),
        pace=Pace(schedule=ConstantRate(name="constant"), steps=_EPOCHS * _BATCHES),
        dropout_seed=0,
    )
    for epoch in range(_EPOCHS):
        began = time.monotonic()
        training.train_round(_BATCHES, flat.federated_values.clone())
        print(f"epoch {epoch}: {time.monotonic() - began:.2f} s", flush=True)


def train_among_processes(work: Callable[[], None]) -> None:
    """Call `work` in the process with rank 0. All other processes of torchrun compute parts for it until it returns."""
    by_torchrun.prefer_loopback()
    if by_torchrun.rank() > 0:
        by_torchrun.help_trainer()
        return
    prepare_arithmetic(1)
    with by_torchrun.gradient_parts():
        work()


def main() -> None:
    """Measure in this process, or in all processes that torchrun started."""
    if by_torchrun.is_launched():
        train_among_processes(_measure)
    else:
        prepare_arithmetic(1)
        _measure()


if __name__ == "__main__":
    main()
