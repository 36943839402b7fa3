"""Changes the images of a batch as the plan's augmentation requires.

The change of an image depends only on the site's seed, the epoch and the row's number. It does not depend on the order
of batches. So a run that continues after a crash changes the same images in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protos.plan.augmentation import Augmentation, Flip, Shift
from protos.plan.networks.convolutional_networks import ImageSize
from site_agent.trainer.training.batches import Rows

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
