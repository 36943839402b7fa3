"""The ordinary loop over batches, and what a site keeps between rounds.

An epoch has the plan's number of equal batches, the last rows left over are dropped, and the order is
drawn anew each epoch from a generator of the site's own. The optimiser's state stays at the site and
is not reset when shared values are taken in (GLOBAL_LAYERS.md, "Training").

Dropout draws from torch's default generator, which a whole process shares. Every training therefore
keeps a state of its own, puts it in place for its steps and takes it out afterwards: what else trains
in this process changes no bit.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from protos.errors import DataError
from protos.ingredients import Penalty
from protos.optimisers import AdamW, Optimiser, StochasticGradientDescent
from protos.plan import Schedule
from site_agent.trainer.data.contract import Task
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.penalties import add_penalties

# Where nothing is trained, so many rows are in memory at once, fewer where columns are many: attention
# holds a number for every head and pair of columns. With 8 heads this is about 100 MB.
MOST_EVALUATION_ROWS: Final = 4096
_EVALUATION_PAIRS: Final = 1 << 20


@dataclass(frozen=True)
class Rows:
    """Encoded rows: features float32 (rows, columns) and targets as the task's loss wants them."""

    features: Tensor
    targets: Tensor

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.features)


@dataclass(frozen=True)
class TrainingState:
    """All that the next step depends on; it stays at the site."""

    parameters: Tensor
    optimiser: dict[str, Any]
    order: Mapping[str, Any]
    permutation: Tensor
    dropout: Tensor
    steps_made: int


class LocalTraining:
    """One network in training at one site."""

    def __init__(
        self,
        flat: FlatNetwork,
        *,
        task: Task,
        training: Rows,
        validation: Rows,
        schedule: Schedule,
        optimiser: Optimiser,
        order: np.random.Generator,
        dropout_seed: int,
    ) -> None:
        """`order` draws the batches; nothing else may use it.

        Raises:
            DataError: there are fewer training rows than batches.
        """
        self._flat, self._task, self._training, self._validation = flat, task, training, validation
        self._batches = schedule.batches_per_epoch
        self._batch_rows = len(training) // self._batches
        if self._batch_rows == 0:
            raise DataError(
                what=f"The plan wants {self._batches} batches an epoch, and there are {len(training)} training rows.",
                consequence="Nothing was trained and nothing left this site.",
                remedy="Agree on fewer batches_per_epoch in the plan, or bring more rows.",
            )
        self._optimiser = _build_optimiser(optimiser, flat)
        self._order = order
        self._permutation = torch.empty(0, dtype=torch.int64)
        self._dropout_state = torch.Generator().manual_seed(dropout_seed).get_state()
        self.steps_made = 0

    @property
    def epoch_ended(self) -> bool:
        """Whether at least one epoch was made and none is half done."""
        return self.steps_made > 0 and self.steps_made % self._batches == 0

    def train(self, steps: int, penalties: tuple[Penalty, ...] = (), received: Tensor | None = None) -> None:
        """Make so many steps from where the last call ended, across the borders of epochs.

        Args:
            steps: batches.
            penalties: terms beside the task's loss, measured from `received`, the federated parameters
                that this round was trained from.
        """
        self._flat.network.train()
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._dropout_state)
            for _ in range(steps):
                self._step(self._next_rows(), penalties, received)
            self._dropout_state = torch.get_rng_state()

    def state(self) -> TrainingState:
        """A copy of the network and of everything that trains it."""
        return TrainingState(
            parameters=self._flat.snapshot(),
            optimiser=copy.deepcopy(self._optimiser.state_dict()),
            order=self._order.bit_generator.state,
            permutation=self._permutation,
            dropout=self._dropout_state,
            steps_made=self.steps_made,
        )

    def restore(self, state: TrainingState) -> None:
        """Go back to a state of this training; the next steps are then those that followed it."""
        self._flat.restore(state.parameters)
        # The optimiser would otherwise go on writing into the kept state.
        self._optimiser.load_state_dict(copy.deepcopy(state.optimiser))
        self._order.bit_generator.state = state.order
        self._permutation, self._dropout_state = state.permutation, state.dropout
        self.steps_made = state.steps_made

    def draw_afresh(self, seed: int) -> None:
        """From here on draw batches and dropout by another seed, what is left of this epoch included."""
        self._order = np.random.default_rng(seed)
        self._permutation = self._draw()
        self._dropout_state = torch.Generator().manual_seed(seed).get_state()

    def validation_loss(self) -> float:
        """The mean task loss over the validation rows, without penalty terms."""
        outputs = torch.from_numpy(predict(self._flat, self._validation.features))
        return float(loss(self._task, outputs, self._validation.targets))

    def _step(self, rows: Tensor, penalties: tuple[Penalty, ...], received: Tensor | None) -> None:
        self._flat.gradient.zero_()
        outputs = self._flat.network(self._training.features[rows])
        torch.autograd.backward(loss(self._task, outputs, self._training.targets[rows]))
        if received is not None:
            add_penalties(penalties, self._flat, received)
        self._optimiser.step()
        self.steps_made += 1

    def _next_rows(self) -> Tensor:
        batch = self.steps_made % self._batches
        if batch == 0:
            self._permutation = self._draw()
        return self._permutation[batch * self._batch_rows : (batch + 1) * self._batch_rows]

    def _draw(self) -> Tensor:
        return torch.from_numpy(self._order.permutation(len(self._training)))


def loss(task: Task, outputs: Tensor, targets: Tensor) -> Tensor:
    """The task's mean loss: logistic, cross-entropy or squared error.

    Args:
        task: what is predicted.
        outputs: (rows, 1) logits or values, (rows, classes) logits for several classes.
        targets: float (rows,) of 0 and 1, int64 (rows,) class numbers, or float (rows,) values.
    """
    match task:
        case "binary":
            return functional.binary_cross_entropy_with_logits(outputs.squeeze(1), targets)
        case "multi-class":
            return functional.cross_entropy(outputs, targets)
        case "regression":
            return functional.mse_loss(outputs.squeeze(1), targets)
        case _:
            assert_never(task)


def predict(flat: FlatNetwork, features: Tensor) -> npt.NDArray[np.float32]:
    """The network's outputs, float32 (rows, outputs), for at least one row.

    Rows go through in blocks, whose size depends on the number of columns alone.
    """
    block = max(1, min(MOST_EVALUATION_ROWS, _EVALUATION_PAIRS // features.shape[1] ** 2))
    flat.network.eval()
    with torch.no_grad():
        parts = [flat.network(rows).contiguous().numpy() for rows in torch.split(features, block)]
    return np.concatenate(parts)


def _build_optimiser(optimiser: Optimiser, flat: FlatNetwork) -> torch.optim.Optimizer:
    match optimiser:
        case AdamW(learning_rate=rate, weight_decay=decay):
            return torch.optim.AdamW([flat.parameter], lr=rate, weight_decay=decay, fused=True)
        case StochasticGradientDescent(learning_rate=rate, momentum=momentum, weight_decay=decay):
            return torch.optim.SGD([flat.parameter], lr=rate, momentum=momentum, weight_decay=decay, fused=True)
        case _:
            assert_never(optimiser)
