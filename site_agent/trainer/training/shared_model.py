"""Trains one model: all parameters together, private parameters first, or shared parameters only."""

from __future__ import annotations

from torch import Tensor

from protos.plan.ingredients import Penalty
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.penalties import Penalties
from site_agent.trainer.training.procedure import Phase
from site_agent.trainer.training.state import State, part_of, prefixed
from site_agent.trainer.training.training_model import Model, Recipe


class TogetherTraining:
    """Trains all parameters in every step, as in FedAvg."""

    def __init__(self, flat: FlatNetwork, recipe: Recipe, penalties: tuple[Penalty, ...] = ()) -> None:
        self._flat, self._model = flat, Model(flat, recipe)
        self._penalties = Penalties(penalties, flat, recipe)

    def begin_round(self, received: Tensor, _controls: Tensor | None) -> None:
        """Start a round from the received parameters."""
        self._penalties.begin_round(received)

    def phases(self, steps: int, _batches_per_epoch: int) -> list[Phase]:
        """Return the phases of a round in order."""
        return [Phase(self.step, steps)]

    def step(self, batch: Rows, factor: float) -> None:
        """Make one step along the loss and the penalties."""
        self._model.gradient(batch, self._penalties.term(batch))
        self._penalties.add_gradients()
        self._model.step(factor)

    def end_round(self, _steps: int) -> None:
        """Finish a round after its last step."""
        self._penalties.end_round()

    def evaluated(self) -> FlatNetwork:
        """Return the network that the site itself uses."""
        return self._flat

    def state(self) -> State:
        """Return a copy of the training state."""
        return self._model.state() | prefixed("penalties", self._penalties.state())

    def restore(self, state: State) -> None:
        """Continue from a saved training state."""
        self._model.restore(state)
        self._penalties.restore(part_of(state, "penalties"))


class ApartTraining:
    """Trains federated and private parameters in separate steps.

    With `private_epochs` a round first trains the private ones (FedRep). Without, they keep their first values
    (FedBABU). Each group has an optimiser of its own.
    """

    def __init__(
        self, flat: FlatNetwork, recipe: Recipe, private_epochs: int, penalties: tuple[Penalty, ...] = ()
    ) -> None:
        self._flat, self._private_epochs = flat, private_epochs
        self._federated = Model(flat, recipe, [flat.federated])
        self._private = Model(flat, recipe, [flat.private])
        self._penalties = Penalties(penalties, flat, recipe)

    def begin_round(self, received: Tensor, _controls: Tensor | None) -> None:
        """Start a round from the received parameters."""
        self._penalties.begin_round(received)

    def phases(self, steps: int, batches_per_epoch: int) -> list[Phase]:
        """Return the phases of a round in order."""
        first = Phase(self._step_private, self._private_epochs * batches_per_epoch)
        return [first, Phase(self._step_federated, steps)]

    def end_round(self, _steps: int) -> None:
        """Finish a round after its last step."""
        self._penalties.end_round()

    def evaluated(self) -> FlatNetwork:
        """Return the network that the site itself uses."""
        return self._flat

    def state(self) -> State:
        """Return a copy of the training state."""
        private = prefixed("private", self._private.optimiser_state())
        return self._federated.state() | private | prefixed("penalties", self._penalties.state())

    def restore(self, state: State) -> None:
        """Continue from a saved training state."""
        self._federated.restore(state)
        self._private.restore_optimiser(part_of(state, "private"))
        self._penalties.restore(part_of(state, "penalties"))

    def _step_private(self, batch: Rows, factor: float) -> None:
        self._private.gradient(batch)
        self._private.step(factor)

    def _step_federated(self, batch: Rows, factor: float) -> None:
        self._federated.gradient(batch, self._penalties.term(batch))
        self._penalties.add_gradients()
        self._federated.step(factor)
