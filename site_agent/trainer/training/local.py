"""Trains on batches with the local procedure of a method, predicts, and measures losses and sensitivities.

An epoch is a number of equal batches that the plan fixes, whatever a site's size. The optimiser and all other training
state are kept across rounds, and are not reset when shared values are loaded (docs/researcher.md, "Methods").
Dropout draws from torch's default generator, which the whole process shares. So every training has its own state of
that generator. It installs the state before its steps and stores it afterwards, so that trainings do not influence each
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protos.errors import ConfigurationError
from protos.plan.architecture import TensorSpec
from site_agent.trainer.models.image_models import Convolutional
from site_agent.trainer.pulse import PULSE
from site_agent.trainer.training.batches import Batches, Rows
from site_agent.trainer.training.flat_network import FlatNetwork, State, part_of, prefixed
from site_agent.trainer.training.procedures import Procedure
from site_agent.trainer.training.torch_losses import LossFunction
from site_agent.trainer.training.training_model import Model, Recipe

# Most rows in memory at once without training. With many columns, fewer rows are computed at once, because attention
# stores a number for every head and pair of columns. With 8 heads this is about 100 MB.
_MOST_EVALUATION_ROWS: Final = 4096
_EVALUATION_PAIRS: Final = 1 << 20
_EVALUATION_NUMBERS: Final = 1 << 24  # for a network of images, 64 MiB


class LocalTraining:
    """Trains one method's procedure at one site."""

    def __init__(self, procedure: Procedure, *, rows: Rows, batches: Batches, dropout_seed: int) -> None:
        self._procedure, self._rows, self._batches = procedure, rows, batches
        self._device = procedure.evaluated().device
        self._dropout = self._first_draw(dropout_seed)

    def train_round(self, steps: int, received: Tensor, controls: Tensor | None = None) -> None:
        """Train for this many batches, starting where the previous round ended. An epoch can end within a round.

        `received` is float32 of the shape of the federated numbers, already loaded into the shared network. `controls`
        is the mean control variate of the same shape, if the method has one.
        """
        self._procedure.begin_round(received.to(self._device), None if controls is None else controls.to(self._device))
        for phase in self._procedure.phases(steps, self._batches.batches_per_epoch):
            self._procedure.evaluated().network.train()
            with self._own_dropout():
                for _ in range(phase.steps):
                    phase.step(self._batch())
                    PULSE.beat()
        self._procedure.end_round(steps)

    def fine_tune(self, flat: FlatNetwork, epochs: int, recipe: Recipe) -> None:
        """Train all parameters of a network with a new optimiser, for whole epochs, at the plan's learning rate."""
        model = Model(flat, recipe)
        flat.network.train()
        with self._own_dropout():
            for _ in range(epochs * self._batches.batches_per_epoch):
                model.gradient(self._batch())
                model.step()
                PULSE.beat()

    def evaluated(self) -> FlatNetwork:
        return self._procedure.evaluated()

    def state(self) -> State:
        return {
            **prefixed("procedure", self._procedure.state()),
            **prefixed("batches", self._batches.state()),
            "dropout": self._dropout,
        }

    def restore(self, state: State) -> None:
        """Continue from a saved state, exactly. Raise ConfigurationError if it is from another device."""
        if state["dropout"].shape != self._dropout.shape:
            raise ConfigurationError(
                what=f"hospital.yaml sets device: {self._device.type}, but the saved study used another device.",
                consequence="Training did not continue. The audit log lists what this site sent in earlier rounds.",
                remedy="In hospital.yaml, set device under training to its earlier value until this study has ended.",
            )
        procedure = {name: tensor.to(self._device) for name, tensor in part_of(state, "procedure").items()}
        self._procedure.restore(procedure)
        self._batches.restore(part_of(state, "batches"))
        self._dropout = state["dropout"]

    def _batch(self) -> Rows:
        return self._rows.select(self._batches.draw()).to(self._device)

    @contextmanager
    def _own_dropout(self) -> Iterator[None]:
        is_card = self._device.type == "cuda"
        draws = torch.cuda if is_card else torch.random
        with torch.random.fork_rng(devices=[torch.cuda.current_device()] if is_card else []):
            draws.set_rng_state(self._dropout)
            yield
            self._dropout = draws.get_rng_state()

    def _first_draw(self, seed: int) -> Tensor:
        return torch.Generator(self._device).manual_seed(seed).get_state()


def rows_at_once(flat: FlatNetwork, features: Tensor) -> int:
    """Return how many rows a network computes at once, for features (rows, columns)."""
    network = flat.network
    if isinstance(network, Convolutional):
        most = _EVALUATION_NUMBERS // network.numbers_per_row
    else:
        most = _EVALUATION_PAIRS // features.shape[-1] ** 2
    return max(1, min(_MOST_EVALUATION_ROWS, most))


def predict(flat: FlatNetwork, features: Tensor) -> npt.NDArray[np.float32]:
    """Return the network's outputs, float32 (rows, outputs), for at least one row.

    Rows are processed in blocks, whose size depends only on the number of columns.
    """
    block = rows_at_once(flat, features)
    flat.network.eval()
    with torch.no_grad():
        blocks = torch.split(features, block)
        parts = [flat.network(rows.to(flat.device)).contiguous().cpu().numpy() for rows in blocks]
    return np.concatenate(parts)


def sensitivities(flat: FlatNetwork, rows: Rows, loss: LossFunction, tensors: Sequence[TensorSpec]) -> Tensor:
    """Return the sensitivity F of every layer, float64 of shape (layers,), never falling.

    `flat` is the network after its first local epoch. `tensors` are all its tensors, in its order.
    """
    block = rows_at_once(flat, rows.features)
    flat.zero_gradients()
    flat.network.eval()
    blocks = torch.split(rows.features, block), torch.split(rows.targets, block)
    for features, targets in zip(*blocks, strict=True):
        share = len(features) / len(rows)
        batch = Rows(features, targets).to(flat.device)
        torch.autograd.backward(share * loss(flat.network(batch.features), batch.targets))
    flat.network.train()  # training continues with this network
    of_layers: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        inner = flat.network.get_parameter(tensor.name)
        assert inner.grad is not None
        squared = (inner.data.double() * inner.grad.double()).square()
        of_layers.setdefault(tensor.layer, []).append(squared.flatten())
    means = [torch.cat(parts).mean() for parts in of_layers.values()]
    return torch.stack(means).cpu().cumsum(-1)
