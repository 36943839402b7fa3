"""Chooses the rows of each training step at random.

In an epoch, all rows are shuffled and cut into equal batches. Every site makes the same number of steps, whatever its
size. Rows that are not used in one epoch are used in another.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from site_agent.trainer.training.flat_network import State


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Encoded rows: features float32 (rows, columns), and targets as the loss requires."""

    features: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return self.features.shape[-2]

    def to(self, device: torch.device) -> Rows:
        return Rows(self.features.to(device), self.targets.to(device))

    def select(self, rows: Tensor) -> Rows:
        """Return the rows with these numbers, int64 of shape (batch,)."""
        return Rows(self.features[rows], self.targets[rows])


class Batches:
    """Draws one batch of `rows_in_each` rows after another."""

    def __init__(
        self, rows: int, batches_per_epoch: int, order: np.random.Generator, *, batch_rows: int | None = None
    ) -> None:
        """Prepare to draw batches, starting with the first epoch.

        After `batches_per_epoch` batches a new random order of the `rows` rows is drawn by `order`, which nothing else
        may use. Without `batch_rows` a batch has as many rows as fit `batches_per_epoch` times.
        """
        self.batches_per_epoch = batches_per_epoch
        self._rows, self._order = rows, order
        self.rows_in_each = batch_rows or rows // batches_per_epoch
        self._permutation = torch.empty(0, dtype=torch.int64)
        self._drawn = 0

    def draw(self) -> Tensor:
        """Draw the rows of the next batch: int64 of shape (batch,)."""
        place = self._drawn % self.batches_per_epoch
        if place == 0:
            self._permutation = torch.from_numpy(self._order.permutation(self._rows))
        self._drawn += 1
        return self._permutation[place * self.rows_in_each : (place + 1) * self.rows_in_each]

    def state(self) -> State:
        order = json.dumps(self._order.bit_generator.state, sort_keys=True).encode()
        return {
            "order": torch.tensor(list(order), dtype=torch.uint8),
            "permutation": self._permutation,
            "drawn": torch.tensor(self._drawn),
        }

    def restore(self, state: State) -> None:
        self._order.bit_generator.state = json.loads(bytes(state["order"].tolist()))
        self._permutation, self._drawn = state["permutation"], int(state["drawn"])
