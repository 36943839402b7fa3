"""Trains CHFL: with each batch, first the common column on its own loss, then the unique column on the joint loss.

Source: Mori et al. 2022; docs/design/methods.md. The common column's outputs are computed again after its step and
detached, so no gradient of the joint loss reaches it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from site_agent.trainer.models.two_columns import Columns
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.procedure import Phase
from site_agent.trainer.training.state import State, part_of, prefixed
from site_agent.trainer.training.training_model import Model, Recipe


class ColumnTraining:
    """Trains a federated common column, and a private unique column with its lateral matrices (CHFL)."""

    def __init__(self, flat: FlatNetwork, recipe: Recipe) -> None:
        if not isinstance(flat.network, Columns):
            raise TypeError("training column by column needs a network with two columns")
        self._flat, self._network, self._loss = flat, flat.network, recipe.loss
        self._common = Model(flat, recipe, [flat.federated])
        self._unique = Model(flat, recipe, [flat.private])

    def begin_round(self, _received: Tensor, _controls: Tensor | None) -> None:
        """Start a round from the received parameters."""

    def phases(self, steps: int, _batches_per_epoch: int) -> list[Phase]:
        """Return the phases of a round in order."""
        return [Phase(self._step, steps)]

    def end_round(self, _steps: int) -> None:
        """Finish a round after its last step."""

    def evaluated(self) -> FlatNetwork:
        """Return the network that the site uses for its predictions."""
        return self._flat

    def state(self) -> State:
        """Return a copy of the training state."""
        return self._common.state() | prefixed("unique", self._unique.optimiser_state())

    def restore(self, state: State) -> None:
        """Continue from a saved training state."""
        self._common.restore(state)
        self._unique.restore_optimiser(part_of(state, "unique"))

    def _step(self, batch: Rows, factor: float) -> None:
        self._flat.zero_gradients()
        outputs = self._network.common_outputs(batch.features)
        torch.autograd.backward(self._loss(outputs[-1], batch.targets))
        self._common.step(factor)
        with torch.no_grad():
            outputs = self._network.common_outputs(batch.features)
        torch.autograd.backward(self._loss(self._network.joint(batch.features, outputs), batch.targets))
        self._unique.step(factor)
