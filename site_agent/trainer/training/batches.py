"""Chooses the rows of each training step at random, and changes images as the plan's augmentation requires.

In an epoch, all rows are shuffled and cut into equal batches. Every site makes the same number of steps, whatever its
size. Rows that are not used in one epoch are used in another. Each copy of a network in a stack has its own generator,
so its training is the same as if it were alone. The change of an image depends only on the site's seed, the epoch and
the row's number. So a run that continues after a crash changes the same images in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protos.errors import DataError
from protos.plan.augmentation import Augmentation, Flip, ImageSize, Shift
from protos.plan.schedules import Schedule, StepSchedule, too_few_rows
from site_agent.trainer.training.flat_network import State, generator_state, restore_generator


@dataclass(frozen=True, eq=False, repr=False)
class Rows:
    """Encoded rows: features float32 (rows, columns), and targets as the loss requires. A stack has a first axis."""

    features: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return self.features.shape[-2]

    def to(self, device: torch.device) -> Rows:
        """Return the rows on a device."""
        return Rows(self.features.to(device), self.targets.to(device))

    def select(self, rows: Tensor) -> Rows:
        """Return the rows with these numbers, int64 of shape (batch,), or (copies, batch)."""
        if rows.dim() == 1:
            return Rows(self.features[rows], self.targets[rows])
        copies = torch.arange(len(rows)).unsqueeze(1)
        return Rows(self.features[copies, rows], self.targets[copies, rows])


def check_batches(schedule: Schedule, rows: int) -> None:
    """Raise DataError with both numbers if this site has too few training rows to fill a plan's batches."""
    asked = too_few_rows(schedule, rows)
    if asked is None:
        return
    key = "batch_rows" if isinstance(schedule, StepSchedule) else "batches_per_epoch"
    raise DataError(
        what=f"The plan requires {asked}, but this site has {rows} training rows.",
        consequence="Nothing was trained and nothing was sent.",
        remedy=f"Agree with the other sites on a plan with a {key} of at most {rows}, or add rows to the table.",
    )


class Batches:
    """Draws one batch of `rows_in_each` rows after another."""

    def __init__(
        self,
        rows: int,
        batches_per_epoch: int,
        orders: Sequence[np.random.Generator],
        *,
        stacked: bool,
        batch_rows: int | None = None,
    ) -> None:
        """Prepare to draw batches, starting with the first epoch.

        After `batches_per_epoch` batches a new random order of the `rows` rows is drawn, by one generator for each copy
        in `orders`, which nothing else may use. `stacked` batches have a first axis for the copies. Without
        `batch_rows` a batch has as many rows as fit `batches_per_epoch` times.
        """
        self.batches_per_epoch = batches_per_epoch
        self._rows, self._orders, self._stacked = rows, list(orders), stacked
        self.rows_in_each = batch_rows or rows // batches_per_epoch
        self._permutation = torch.empty(0, dtype=torch.int64)
        self._drawn = 0

    @property
    def epoch(self) -> int:
        """The number of the epoch of the newest batch, from 0."""
        return (self._drawn - 1) // self.batches_per_epoch

    def draw(self) -> Tensor:
        """Draw the rows of the next batch: int64 of shape (batch,), or (copies, batch)."""
        place = self._drawn % self.batches_per_epoch
        if place == 0:
            self._permutation = self._permute()
        self._drawn += 1
        return self._permutation[..., place * self.rows_in_each : (place + 1) * self.rows_in_each]

    def state(self) -> State:
        """Return the state that determines the next batch, to save it."""
        orders = {f"order{number}": generator_state(order) for number, order in enumerate(self._orders)}
        return orders | {"permutation": self._permutation, "drawn": torch.tensor(self._drawn)}

    def restore(self, state: State) -> None:
        """Continue from a saved state of the batches."""
        for number, order in enumerate(self._orders):
            restore_generator(order, state[f"order{number}"])
        self._permutation, self._drawn = state["permutation"], int(state["drawn"])

    def _permute(self) -> Tensor:
        drawn = [torch.from_numpy(order.permutation(self._rows)) for order in self._orders]
        return torch.stack(drawn) if self._stacked else drawn[0]


# Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators": the increment and mixer of SplitMix64.
_INCREMENT: Final = 0x9E3779B97F4A7C15
_MIXERS: Final = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))


@dataclass(frozen=True, kw_only=True)
class Augmenting:
    """Applies the plan's augmentation steps to the images of one site, in their order.

    `seeds` has the site's seed for each copy of a stack. With `has_masks` the targets are masks, which follow their
    images. A free pixel is outside of a mask.
    """

    image: ImageSize
    steps: Sequence[Augmentation]
    seeds: Sequence[int] = field(repr=False)
    has_masks: bool = False

    def changed(self, batch: Rows, rows: Tensor, epoch: int) -> Rows:
        """Return a batch with changed images. If the targets are masks, change these too. Arguments as in `applied`."""
        targets = self.applied(batch.targets, rows, epoch) if self.has_masks else batch.targets
        return Rows(self.applied(batch.features, rows, epoch), targets)

    def applied(self, features: Tensor, rows: Tensor, epoch: int) -> Tensor:
        """Return changed images: standardised pixels or masks, float32 (batch, numbers), or (copies, batch, numbers).

        `rows` are the images' numbers among the training rows, int64 (batch,) or (copies, batch). `epoch` is from 0.
        """
        if features.dim() == 2:
            return self._images(features, rows, epoch, self.seeds[0])
        each = zip(features, rows, self.seeds, strict=True)
        return torch.stack([self._images(images, numbers, epoch, seed) for images, numbers, seed in each])

    def _images(self, features: Tensor, rows: Tensor, epoch: int, seed: int) -> Tensor:
        images = features.reshape(len(rows), -1, self.image.height, self.image.width)
        for place, step in enumerate(self.steps):
            match step:
                case Flip(direction=direction):
                    is_turned = torch.from_numpy(_drawn(seed, epoch, rows, 2 * place) % 2 == 1)
                    turned = images.flip(3 if direction == "across" else 2)
                    images = torch.where(is_turned[:, None, None, None], turned, images)
                case Shift(pixels=most):
                    down, right = (
                        torch.from_numpy((_drawn(seed, epoch, rows, 2 * place + way) % (2 * most + 1)).astype(np.int64))
                        for way in (0, 1)
                    )
                    images = _moved(images, down - most, right - most)
                case _:
                    assert_never(step)
        return images.reshape(features.shape)


def _moved(images: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """Move each image (B, channels, height, width) by its own numbers of pixels, (B,). Free pixels become 0."""
    height, width = images.shape[2:]
    rows, columns = torch.arange(height) - down[:, None], torch.arange(width) - right[:, None]
    number = torch.arange(len(images))[:, None, None]
    moved = images[number, :, rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]]
    is_there = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    return (moved * is_there[..., None]).permute(0, 3, 1, 2)


def _drawn(seed: int, epoch: int, rows: Tensor, purpose: int) -> npt.NDArray[np.uint64]:
    """Return a pseudorandom number for each row, uniform over 64 bits."""
    with np.errstate(over="ignore"):  # modulo 2 ** 64 on purpose
        drawn = np.full(len(rows), seed, np.uint64)
        for part in (np.full(len(rows), epoch, np.uint64), rows.numpy().astype(np.uint64), np.uint64(purpose)):
            drawn = (drawn ^ part) + np.uint64(_INCREMENT)
            for bits, factor in _MIXERS:
                drawn = (drawn ^ (drawn >> np.uint64(bits))) * np.uint64(factor)
            drawn ^= drawn >> np.uint64(31)
    return drawn
