"""Defines the network of images: blocks of convolutions, then linear layers.

Parameters are those of `protos.plan.networks`, in names, order and shapes, and there are no buffers. First values are
NaN. Rows are flat images: (B, channels * height * width).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn
from torch.nn import functional

from protos.plan.architecture import KERNEL, ConvolutionalNetwork, flat_width, is_halved, sides_after
from site_agent.trainer.models.layers import (
    NORMALISATION_EPSILON,
    Activation,
    Linear,
    Network,
    Normalisation,
    activation_of,
    parameter,
)


class Convolution(nn.Module):
    """A convolution with square filters and a border of zeros."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = parameter(outer, inner, KERNEL, KERNEL)
        self.bias = parameter(outer)

    def forward(self, images: Tensor) -> Tensor:
        """Apply the convolution: (B, inner, height, width) to (B, outer, height, width)."""
        return functional.conv2d(images, self.weight, self.bias, padding=KERNEL // 2)


class ImageNormalisation(Normalisation):
    """Scales each image to mean 0 and variance 1, then computes γ·x + β."""

    def forward(self, images: Tensor) -> Tensor:
        """Normalise images (B, channels, height, width)."""
        return functional.group_norm(images, 1, self.weight, self.bias, NORMALISATION_EPSILON)


class Block(nn.Module):
    """Applies a convolution, a normalisation of each image, an activation, and the maximum of each 2 by 2 pixels."""

    def __init__(self, inner: int, outer: int, activation: Activation, *, has_normalisation: bool) -> None:
        super().__init__()
        self._activation = activation
        self.convolution = Convolution(inner, outer)
        self.normalisation = ImageNormalisation(outer) if has_normalisation else None

    def forward(self, images: Tensor) -> Tensor:
        """Apply the block: (B, inner, height, width) to (B, outer, ...). Height and width are halved if possible."""
        images = self.convolution(images)
        images = self._activation(images if self.normalisation is None else self.normalisation(images))
        return functional.max_pool2d(images, 2) if is_halved(*images.shape[-2:]) else images


class Convolutional(Network):
    """A network of convolutional blocks, then linear layers. `represent` returns the inputs of the last layer.

    The network computes `numbers_per_row` numbers for an image, which limits the rows at once.
    """

    def __init__(self, architecture: ConvolutionalNetwork, outputs: int) -> None:
        super().__init__()
        self._image, self._dropout = architecture.image, architecture.dropout
        self._activation, blocks = activation_of(architecture.activation), architecture.blocks
        self.numbers_per_row = sum(
            channels * prod(sides_after(self._image, number)) for number, channels in enumerate(blocks)
        )
        self.input = _blocks((self._image.channels, blocks[0]), architecture)
        later = dict(_blocks(blocks, architecture, first=2).named_children())
        widths = (flat_width(self._image, blocks), *architecture.hidden)
        pairs = enumerate(pairwise(widths), start=len(blocks) + 1)
        self.body = nn.ModuleDict(later | {f"layer{number}": Linear(*pair, bias=True) for number, pair in pairs})
        self.head = nn.ModuleDict({"output": Linear(widths[-1], outputs, bias=True)})

    def represent(self, rows: Tensor) -> tuple[Tensor]:
        """Return the last hidden layer, (B, last hidden width), of images (B, pixels), before dropout."""
        images = self.input(rows.view(-1, self._image.channels, self._image.height, self._image.width))
        for block in (part for part in self.body.values() if isinstance(part, Block)):
            images = block(images)
        values = images.flatten(1)
        for layer in (part for part in self.body.values() if isinstance(part, Linear)):
            values = self._activation(layer(values))
        return (values,)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        (values,) = representations
        logits: Tensor = self.head["output"](functional.dropout(values, self._dropout, self.training))
        return logits


def _blocks(channels: Sequence[int], architecture: ConvolutionalNetwork, first: int = 1) -> nn.Sequential:
    activation, has_normalisation = activation_of(architecture.activation), architecture.normalisation
    pairs = enumerate(pairwise(channels), start=first)
    blocks = {f"block{number}": Block(*pair, activation, has_normalisation=has_normalisation) for number, pair in pairs}
    return nn.Sequential(OrderedDict(blocks))
