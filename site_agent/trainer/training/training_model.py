"""Trains one network with its optimiser: computes the gradient of a batch, and makes the optimiser's step.

Every network maps rows to representations, and representations to logits. A parameter can have a first axis of
size S for S independent copies of the network, which are trained at once. Rows and results then have this axis too, and
the copies do not mix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from protos.plan.optimisers import Optimiser
from site_agent.trainer.models.layers import Represents
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.state import State, part_of, prefixed
from site_agent.trainer.training.torch_losses import LossFunction
from site_agent.trainer.training.torch_optimisers import (
    build_optimiser,
    load_optimiser_tensors,
    optimiser_tensors,
    set_learning_rate,
)

# A function that computes a further term of the loss from the network's representations of the batch.
Term: TypeAlias = Callable[[tuple[Tensor, ...]], Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """The functions and settings that all models trained at a site have in common.

    `build` builds another network of the plan's architecture in the same layout, without first values.
    """

    build: Callable[[], FlatNetwork]
    loss: LossFunction
    optimiser: Optimiser


def as_representing(network: nn.Module) -> Represents:
    """Return the network if it has `represent` and `decide`, which a contrast needs. Otherwise raise TypeError."""
    if not isinstance(network, Represents):
        raise TypeError("a contrast needs a network that shows what it decides on")
    return network


def whole_gradient(flat: FlatNetwork, loss: LossFunction, batch: Rows) -> None:
    """Set the gradients of all parameters to the gradient of the batch's loss."""
    flat.zero_gradients()
    torch.autograd.backward(loss(flat.network(batch.features), batch.targets))


class Model:
    """A neural network with its optimiser."""

    def __init__(self, flat: FlatNetwork, recipe: Recipe, stretches: Sequence[nn.Parameter] | None = None) -> None:
        """Build an optimiser for the tensors in `stretches`, or for all parameters if `stretches` is None."""
        self.flat, self._recipe = flat, recipe
        moved = flat.stretches if stretches is None else [stretch for stretch in stretches if stretch.numel()]
        self._optimiser = build_optimiser(recipe.optimiser, moved) if moved else None
        self._factor = 1.0

    def gradient(self, batch: Rows, term: Term | None = None) -> None:
        """Set the gradients of all parameters to the gradient of the batch's loss plus the term `term`."""
        if term is None:
            whole_gradient(self.flat, self._recipe.loss, batch)
            return
        self.flat.zero_gradients()
        representing = as_representing(self.flat.network)
        representations = representing.represent(batch.features)
        value = self._recipe.loss(representing.decide(representations), batch.targets) + term(representations)
        torch.autograd.backward(value)

    def step(self, factor: float) -> None:
        """Make one optimiser step, at the plan's learning rate times this factor."""
        if self._optimiser is None:
            return
        if factor != self._factor:
            set_learning_rate(self._optimiser, self._recipe.optimiser.learning_rate * factor)
            self._factor = factor
        self._optimiser.step()

    def state(self) -> State:
        """Return a copy of the parameters, the buffers and the optimiser's memory."""
        return self.flat.state() | self.optimiser_state()

    def optimiser_state(self) -> State:
        """Return a copy of only the optimiser's memory, without the parameters."""
        return {} if self._optimiser is None else prefixed("optimiser", optimiser_tensors(self._optimiser))

    def restore(self, state: State) -> None:
        """Continue from a state that `state` returned earlier."""
        self.flat.restore(state)
        self.restore_optimiser(state)

    def restore_optimiser(self, state: State) -> None:
        """Set the optimiser's memory to the result of `optimiser_state`."""
        if self._optimiser is not None:
            load_optimiser_tensors(self._optimiser, part_of(state, "optimiser"))
