"""Defines procedures: how a site trains in one round.

A procedure owns the networks of its method and trains them batch by batch. The site sends the update of the flat
network that the procedure receives. The site itself may use another network (`evaluated`). The rules:

* a procedure draws no batches. It receives them, so all procedures train on the same rows;
* `state` has everything on which the next round depends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.state import State

# A function that trains on a batch, at the plan's learning rate times the factor.
Step: TypeAlias = Callable[[Rows, float], None]


@dataclass(frozen=True)
class Phase:
    """Several training steps of the same kind."""

    step: Step
    steps: int


class Procedure(Protocol):
    """Trains at one site by one method."""

    def begin_round(self, received: Tensor, controls: Tensor | None, /) -> None:
        """Start a round. The shared network has already loaded the received parameters.

        Args:
            received: float32 of the shape of the federated numbers.
            controls: the mean control variate, of the same shape; None if the method has none.
        """

    def phases(self, steps: int, batches_per_epoch: int, /) -> list[Phase]:
        """Return the phases of a round with this many steps, in order."""

    def end_round(self, steps: int, /) -> None:
        """Finish a round after its last step."""

    def evaluated(self) -> FlatNetwork:
        """Return the network that the site itself would use now."""

    def state(self) -> State:
        """Return a copy of everything that the next step depends on, except for batches and dropout."""

    def restore(self, state: State, /) -> None:
        """Continue from a saved state of this procedure."""
