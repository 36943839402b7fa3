"""Trains with SCAFFOLD, which replaces every gradient g of the shared parameters by g + c - c_i.

Source: Karimireddy et al. 2020, algorithm 1, option II. c_i starts at 0 and becomes
c_i - c + (received - own) / (steps * learning rate) after each round; it stays at the site. The coordinator computes
its part from the update alone (see protos/plan/server_rules.py), so c_i is never sent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.procedure import Phase
from site_agent.trainer.training.state import State
from site_agent.trainer.training.training_model import Model, Recipe


class ControlledTraining:
    """Trains one model with control variates (SCAFFOLD)."""

    def __init__(self, flat: FlatNetwork, recipe: Recipe) -> None:
        self._flat, self._model = flat, Model(flat, recipe)
        self._rate = recipe.optimiser.learning_rate
        self._own_control = torch.zeros_like(flat.federated_values)
        self._mean_control = torch.zeros_like(flat.federated_values)
        self._received = torch.empty(0)

    def begin_round(self, received: Tensor, controls: Tensor | None) -> None:
        """Start a round from the received parameters."""
        assert controls is not None
        self._received, self._mean_control = received, controls

    def phases(self, steps: int, _batches_per_epoch: int) -> list[Phase]:
        """Return the phases of a round in order."""
        return [Phase(self._step, steps)]

    def end_round(self, steps: int) -> None:
        """Finish a round after its last step."""
        moved = self._received - self._flat.federated_values
        self._own_control = self._own_control - self._mean_control + moved / (steps * self._rate)

    def evaluated(self) -> FlatNetwork:
        """Return the network that the site itself uses."""
        return self._flat

    def state(self) -> State:
        """Return a copy of the training state."""
        return self._model.state() | {"control": self._own_control}

    def restore(self, state: State) -> None:
        """Continue from a saved training state."""
        self._model.restore(state)
        self._own_control = state["control"]

    def _step(self, batch: Rows, factor: float) -> None:
        self._model.gradient(batch)
        self._flat.federated_gradient.add_(self._mean_control).sub_(self._own_control)
        self._model.step(factor)
