"""The ordinary loop over batches, which runs a method's procedure.

An epoch is a number of equal batches that the plan fixes, whatever a site's size. What trains keeps its state
across rounds and is not reset when shared values are taken in (docs/design/methods.md, "Global Layers").

Dropout draws from torch's default generator, which a whole process shares. Every training therefore
keeps a state of its own, puts it in place for its steps and takes it out afterwards: what else trains
in this process changes no bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protos.plan.learning_rates import RateSchedule, rate_factor
from site_agent.trainer.models.convolutional_models import Convolutional, ParallelConvolutional
from site_agent.trainer.models.u_net_model import UNet
from site_agent.trainer.pulse import PULSE
from site_agent.trainer.training.augmented import Augmenting
from site_agent.trainer.training.batches import Batches, Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.procedure import Phase, Procedure
from site_agent.trainer.training.state import State, part_of, prefixed
from site_agent.trainer.training.torch_losses import LossFunction
from site_agent.trainer.training.training_model import Model, Recipe

# Where nothing is trained, so many rows are in memory at once, fewer where columns are many: attention
# holds a number for every head and pair of columns. With 8 heads this is about 100 MB.
_MOST_EVALUATION_ROWS: Final = 4096
_EVALUATION_PAIRS: Final = 1 << 20
_EVALUATION_NUMBERS: Final = 1 << 24  # of a network of images, 64 MiB


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How the learning rate moves, and over how many steps in all."""

    schedule: RateSchedule
    steps: int


class LocalTraining:
    """One method's procedure in training at one site."""

    def __init__(
        self,
        procedure: Procedure,
        *,
        rows: Rows,
        batches: Batches,
        pace: Pace,
        dropout_seed: int,
        augmenting: Augmenting | None = None,
    ) -> None:
        self._procedure, self._rows, self._batches, self._pace = procedure, rows, batches, pace
        self._augmenting = augmenting
        self._dropout = torch.Generator().manual_seed(dropout_seed).get_state()
        self.steps_made = 0

    def train_round(self, steps: int, received: Tensor, controls: Tensor | None = None) -> None:
        """Train for this many steps, starting where the previous round ended. A round may cross epochs.

        Args:
            steps: batches.
            received: float32 of the shape of the federated numbers, which the shared network has taken in.
            controls: the mean control variate of the same shape, where the method has one.
        """
        self._procedure.begin_round(received, controls)
        for phase in self._procedure.phases(steps, self._batches.batches_per_epoch):
            self._make(phase, steps)
        self.steps_made += steps
        self._procedure.end_round(steps)

    def fine_tune(self, flat: FlatNetwork, epochs: int, recipe: Recipe) -> None:
        """Train all parameters of a network with a new optimiser, for whole epochs, at the plan's first rate."""
        model = Model(flat, recipe)
        flat.network.train()
        with self._own_dropout():
            for _ in range(epochs * self._batches.batches_per_epoch):
                model.gradient(self._batch())
                model.step(1.0)
                PULSE.beat()

    def evaluated(self) -> FlatNetwork:
        """Return the network that the site itself would use now."""
        return self._procedure.evaluated()

    def resample(self, seed: int) -> None:
        """Draw batches and dropout with another seed from now on, including the rest of this epoch."""
        self._batches.resample(seed)
        self._dropout = torch.Generator().manual_seed(seed).get_state()

    def state(self) -> State:
        """Return a copy of everything that the next step depends on. It stays at the site."""
        return {
            **prefixed("procedure", self._procedure.state()),
            **prefixed("batches", self._batches.state()),
            "dropout": self._dropout,
            "steps made": torch.tensor(self.steps_made),
        }

    def restore(self, state: State) -> None:
        """Restore a state of this training. The next steps are then the same as before."""
        self._procedure.restore(part_of(state, "procedure"))
        self._batches.restore(part_of(state, "batches"))
        self._dropout = state["dropout"]
        self.steps_made = int(state["steps made"])

    def _make(self, phase: Phase, steps: int) -> None:
        """A phase of a round of so many steps: however long it is, the rate moves as far as the round does."""
        pace = self._pace
        self._procedure.evaluated().network.train()
        with self._own_dropout():
            for number in range(phase.steps):
                at = min(self.steps_made + number * steps // phase.steps, pace.steps)
                factor = rate_factor(pace.schedule, at, pace.steps, self._batches.batches_per_epoch)
                phase.step(self._batch(), factor)
                PULSE.beat()

    def _batch(self) -> Rows:
        rows = self._batches.draw()
        batch = self._rows.select(rows)
        if self._augmenting is None:
            return batch
        return Rows(self._augmenting.applied(batch.features, rows, self._batches.epoch), batch.targets)

    @contextmanager
    def _own_dropout(self) -> Iterator[None]:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._dropout)
            yield
            self._dropout = torch.get_rng_state()


def rows_at_once(flat: FlatNetwork, features: Tensor) -> int:
    """Return how many rows of (rows, columns), or (copies, rows, columns), a network computes at once."""
    network = flat.network
    if isinstance(network, Convolutional | ParallelConvolutional | UNet):
        most = _EVALUATION_NUMBERS // network.numbers_per_row
    else:
        most = _EVALUATION_PAIRS // features.shape[-1] ** 2
    return max(1, min(_MOST_EVALUATION_ROWS, most) // (flat.copies or 1))


def predict(flat: FlatNetwork, features: Tensor) -> npt.NDArray[np.float32]:
    """Return the network's outputs, float32 (rows, outputs), for at least one row.

    A stack returns (copies, rows, outputs). Rows go through in blocks. Their size depends only on the number of columns
    and copies.
    """
    block = rows_at_once(flat, features)
    flat.network.eval()
    with torch.no_grad():
        parts = [flat.network(rows).contiguous().numpy() for rows in torch.split(features, block, dim=-2)]
    return np.concatenate(parts, axis=-2)


def validation_loss(flat: FlatNetwork, rows: Rows, loss: LossFunction) -> Tensor:
    """Return the mean task loss over the rows, without penalty terms; of a stack one for each copy."""
    return loss.per_copy(torch.from_numpy(predict(flat, rows.features)), rows.targets)
