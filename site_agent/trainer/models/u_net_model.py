"""Defines the U-Net network, with the tensors and order of `protos.plan.networks.u_networks` and without buffers.

Rows are flat images, as in `convolutional_models`. The outputs are logits of the pixels, row by row: shape
(B, height * width), or (S, B, ...) if parameters have a stack axis.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from protos.plan.networks.u_networks import UNetNetwork
from site_agent.trainer.models.convolutional_models import Block, as_images, as_rows
from site_agent.trainer.models.layers import Linear, Network, activation_of


class Pair(nn.Module):
    """Two convolutions in sequence, which keep height and width."""

    def __init__(self, inner: int, outer: int, architecture: UNetNetwork) -> None:
        super().__init__()
        activation, has_normalisation = activation_of(architecture.activation), architecture.normalisation
        self.first = Block(inner, outer, activation, has_normalisation=has_normalisation)
        self.second = Block(outer, outer, activation, has_normalisation=has_normalisation)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, inner, height, width) to (B, outer, height, width)."""
        return self.second.convolved(self.first.convolved(images))


class UNet(Network):
    """The complete U-Net: levels of falling size, levels of rising size, and a linear map of each pixel's channels."""

    def __init__(self, architecture: UNetNetwork) -> None:
        super().__init__()
        self._image, self._width, self._levels = architecture.image, architecture.width, architecture.levels
        down, up = architecture.ways
        # The largest count of numbers in memory for an image: both results of each block, and the joined inputs of the
        # rising levels.
        pixels = architecture.image.pixels
        of_levels = [2 * outer * pixels >> 2 * level for level, (_, outer) in enumerate(down)]
        joined = [(inner + 2 * outer) * pixels >> 2 * level for level, (inner, outer) in enumerate(up[::-1])]
        self.numbers_per_row = sum(of_levels) + sum(joined)
        self.input = nn.ModuleDict({"block1": Pair(*down[0], architecture)})
        pairs = {f"block{number}": Pair(*both, architecture) for number, both in enumerate((*down[1:], *up), start=2)}
        self.body = nn.ModuleDict(pairs)
        self.head = nn.ModuleDict({"output": Linear(architecture.width, 1, bias=True)})

    def represent(self, rows: Tensor) -> tuple[Tensor]:
        """Map (B, pixels and channels) to the channels of each pixel at the top level, (B, width * pixels)."""
        images, copies = as_images(rows, self._image)
        blocks, kept = list(self.body.values()), [self.input["block1"](images)]
        for block in blocks[: self._levels]:
            kept.append(block(functional.max_pool2d(kept[-1], 2)))
        value = kept.pop()
        for block in blocks[self._levels :]:
            value = block(_beside(_doubled(value), kept.pop(), copies or 1))
        return (as_rows(value, copies),)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Map (B, width * pixels) to logits (B, pixels)."""
        values = representations[0]
        pixels = values.reshape(*values.shape[:-1], self._width, -1).transpose(-1, -2)
        logits: Tensor = self.head["output"](pixels)
        return logits.squeeze(-1)


def _doubled(images: Tensor) -> Tensor:
    """Repeat each pixel four times. On a graphics card, the gradient of torch's interpolate is not reproducible."""
    count, channels, height, width = images.shape
    wide = images[:, :, :, None, :, None].expand(count, channels, height, 2, width, 2)
    return wide.reshape(count, channels, 2 * height, 2 * width)


def _beside(images: Tensor, others: Tensor, copies: int) -> Tensor:
    """Join two batches of images along their channels, separately for each copy of a stack."""
    count, _, height, width = images.shape
    both = [one.reshape(count, copies, -1, height, width) for one in (images, others)]
    return torch.cat(both, dim=2).reshape(count, -1, height, width)
