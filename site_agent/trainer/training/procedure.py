"""How a site trains in one round: what every procedure offers.

A procedure owns the networks of its method and moves them batch by batch. The flat network that it is given
is the one whose change is handed out; what the site itself uses may be another (`evaluated`). The rules:

* a procedure draws nothing: batches come in, so that all of them train on the same rows;
* all that the next round depends on is in `state`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from torch import Tensor

from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.state import State

# Trains on a batch, at the plan's learning rate times the factor.
Step: TypeAlias = Callable[[Rows, float], None]


@dataclass(frozen=True)
class Phase:
    """So many steps of one kind."""

    step: Step
    steps: int


class Procedure(Protocol):
    """One site's training under one method."""

    def begin_round(self, received: Tensor, controls: Tensor | None, /) -> None:
        """The shared network has taken in what was received.

        Args:
            received: float32 of the shape of the federated numbers.
            controls: the mean control variate, of the same shape; None where the method has none.
        """

    def phases(self, steps: int, batches_per_epoch: int, /) -> list[Phase]:
        """What a round of so many steps consists of, in order."""

    def end_round(self, steps: int, /) -> None:
        """The round's steps are made."""

    def evaluated(self) -> FlatNetwork:
        """The network that the site itself would use now."""

    def state(self) -> State:
        """A copy of everything that the next step depends on, batches and dropout apart."""

    def restore(self, state: State, /) -> None:
        """Go back to a state of this procedure."""
