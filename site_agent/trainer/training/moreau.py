"""Trains pFedMe: with each batch, first the personal model t by an inner problem, then the shared model w towards t.

Source: Dinh et al. 2020, algorithm 1 (as remembered). For every batch, `steps` steps of the plan's optimiser move t
towards argmin of the loss + strength / 2 * ||t - w||^2; then w <- w - rate * strength * (w - t). The site uses t and
sends w. Private parameters have no w. They are part of t.
"""

from __future__ import annotations

from torch import Tensor

from protos.plan.ingredients import InnerProblem
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.procedure import Phase
from site_agent.trainer.training.state import State, part_of, prefixed
from site_agent.trainer.training.training_model import Model, Recipe


class MoreauTraining:
    """Trains a personal model t near the shared model w (pFedMe)."""

    def __init__(self, flat: FlatNetwork, recipe: Recipe, problem: InnerProblem) -> None:
        self._shared, self._problem = flat, problem
        self._personal = Model(recipe.build(), recipe)
        self._personal.flat.adopt(flat)

    def begin_round(self, _received: Tensor, _controls: Tensor | None) -> None:
        """Start a round from the received parameters."""
        self._personal.flat.federated_values.copy_(self._shared.federated_values)

    def phases(self, steps: int, _batches_per_epoch: int) -> list[Phase]:
        """Return the phases of a round in order."""
        return [Phase(self._step, steps)]

    def end_round(self, _steps: int) -> None:
        """Finish a round after its last step."""

    def evaluated(self) -> FlatNetwork:
        """Return the network that the site itself uses."""
        return self._personal.flat

    def state(self) -> State:
        """Return a copy of the training state."""
        return prefixed("shared", self._shared.state()) | prefixed("personal", self._personal.state())

    def restore(self, state: State) -> None:
        """Continue from a saved training state."""
        self._shared.restore(part_of(state, "shared"))
        self._personal.restore(part_of(state, "personal"))

    def _step(self, batch: Rows, factor: float) -> None:
        problem, own, shared = self._problem, self._personal.flat, self._shared.federated_values
        for _ in range(problem.steps):
            self._personal.gradient(batch)
            own.federated_gradient.add_(own.federated_values - shared, alpha=problem.strength)
            self._personal.step(factor)
        shared.add_(own.federated_values - shared, alpha=problem.rate * problem.strength)
        self._shared.private.data.copy_(own.private.data)
