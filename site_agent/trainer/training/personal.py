"""Trains a personal model in addition to the shared model: Ditto's second model or APFL's mixture.

The personal model is never sent: it is in a network of its own, whose values no function returns.
"""

from __future__ import annotations

import torch
from torch import Tensor

from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.procedure import Phase
from site_agent.trainer.training.shared_model import TogetherTraining
from site_agent.trainer.training.state import State, part_of, prefixed
from site_agent.trainer.training.training_model import Model, Recipe


class CopyTraining:
    """Trains Ditto's personal model v on the task's loss + strength / 2 * ||v - received||^2.

    Source: Li et al. 2021 (Ditto), algorithm 1; the shared model takes its own step on the same batch.
    """

    def __init__(self, shared: TogetherTraining, recipe: Recipe, strength: float) -> None:
        self._shared, self._strength = shared, strength
        self._personal = Model(_twin(shared, recipe), recipe)
        self._received = torch.empty(0)

    def begin_round(self, received: Tensor, controls: Tensor | None) -> None:
        """Start a round from the received parameters."""
        self._shared.begin_round(received, controls)
        self._received = received

    def phases(self, steps: int, _batches_per_epoch: int) -> list[Phase]:
        """Return the phases of a round in order."""
        return [Phase(self._step, steps)]

    def end_round(self, steps: int) -> None:
        """Finish a round after its last step."""
        self._shared.end_round(steps)

    def evaluated(self) -> FlatNetwork:
        """Return the network that the site itself uses."""
        return self._personal.flat

    def state(self) -> State:
        """Return a copy of the training state."""
        return self._shared.state() | prefixed("personal", self._personal.state())

    def restore(self, state: State) -> None:
        """Continue from a saved training state."""
        self._shared.restore(state)
        self._personal.restore(part_of(state, "personal"))

    def _step(self, batch: Rows, factor: float) -> None:
        self._shared.step(batch, factor)
        own = self._personal.flat
        self._personal.gradient(batch)
        own.federated_gradient.add_(own.federated_values - self._received, alpha=self._strength)
        self._personal.step(factor)


class MixtureTraining:
    """Trains APFL's mixture: share * v + (1 - share) * w, where w is the shared model and v is the site's own model.

    Source: Deng et al. 2020, algorithm 1 and eq. 9, with the share's step as in docs/design/methods.md: once a
    round, share <- clip(share - rate * (sum <v - w, share * g_v + (1 - share) * g_w> + 0.02 * share)), with the
    last step's gradients g_v of v and g_w of w.
    """

    def __init__(self, shared: TogetherTraining, recipe: Recipe, start: float, rate: float) -> None:
        self._shared, self._rate = shared, rate
        self._own = Model(_twin(shared, recipe), recipe)
        self._mixed = Model(recipe.build(), recipe, [])
        flat = shared.evaluated()
        self._share = torch.full(() if flat.copies is None else (flat.copies, 1), start, device=flat.device)
        self._mix()

    def begin_round(self, received: Tensor, controls: Tensor | None) -> None:
        """Start a round from the received parameters."""
        self._shared.begin_round(received, controls)

    def phases(self, steps: int, _batches_per_epoch: int) -> list[Phase]:
        """Return the phases of a round in order."""
        return [Phase(self._step, steps)]

    def end_round(self, steps: int) -> None:
        """Finish a round after its last step."""
        self._shared.end_round(steps)
        slope = 0.02 * self._share
        for own, shared in self._pairs():
            assert own.grad is not None
            assert shared.grad is not None
            gradient = self._share * own.grad + (1.0 - self._share) * shared.grad
            products = (own.data - shared.data) * gradient
            slope = slope + products.sum(-1, keepdim=bool(self._share.dim()))
        self._share = (self._share - self._rate * slope).clamp(0.0, 1.0)

    def evaluated(self) -> FlatNetwork:
        """Return the network that the site itself uses."""
        self._mix()
        return self._mixed.flat

    def state(self) -> State:
        """Return a copy of the training state."""
        # The mixture's parameters follow from the two models, but the buffers of a hospital's own module do not.
        mixed = prefixed("mixed", self._mixed.flat.state())
        return self._shared.state() | prefixed("own", self._own.state()) | mixed | {"share": self._share}

    def restore(self, state: State) -> None:
        """Continue from a saved training state."""
        self._shared.restore(state)
        self._own.restore(part_of(state, "own"))
        self._mixed.restore(part_of(state, "mixed"))
        self._share = state["share"]

    def _step(self, batch: Rows, factor: float) -> None:
        self._shared.step(batch, factor)
        self._mix()
        self._mixed.gradient(batch)
        for own, mixed in zip(self._own.flat.stretches, self._mixed.flat.stretches, strict=True):
            assert own.grad is not None
            assert mixed.grad is not None
            torch.mul(mixed.grad, self._share, out=own.grad)  # the mixture's derivative by v is the share
        self._own.step(factor)

    def _mix(self) -> None:
        for (own, shared), mixed in zip(self._pairs(), self._mixed.flat.stretches, strict=True):
            mixed.data.copy_(self._share * own.data + (1.0 - self._share) * shared.data)

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self._own.flat.stretches, self._shared.evaluated().stretches, strict=True))


def _twin(shared: TogetherTraining, recipe: Recipe) -> FlatNetwork:
    twin = recipe.build()
    twin.adopt(shared.evaluated())
    return twin
