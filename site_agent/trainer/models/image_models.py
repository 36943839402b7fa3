"""Defines networks of images: convolutional networks, and EfficientNet-B0.

Parameters are those of `protos.plan.networks`, in names, order and shapes, and there are no buffers. First values are
NaN. Rows are flat images: (B, channels * height * width). The library torchvision computes EfficientNet, except for its
normalisation, and without leaving out blocks at random. It is loaded when the network is built, because it is in an
extra.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from itertools import pairwise
from types import ModuleType
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from protos.errors import to_install
from protos.plan.image_size import ImageSize
from protos.plan.networks.convolutional_networks import (
    KERNEL,
    ConvolutionalNetwork,
    flat_width,
    is_halved,
    sides_after,
)
from protos.plan.networks.efficient_networks import FIRST_KERNEL, EfficientNetwork, ImageNormalisationName
from site_agent.trainer.failures import unfit
from site_agent.trainer.models.layers import (
    NORMALISATION_EPSILON,
    Activation,
    Linear,
    Network,
    activation_of,
    parameter,
)


@runtime_checkable
class ReadsImages(Protocol):
    """A network of images. It computes `numbers_per_row` numbers for an image, which limits the rows at once."""

    numbers_per_row: int


class Convolution(nn.Module):
    """A convolution with square filters and a border of zeros."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = parameter(outer, inner, KERNEL, KERNEL)
        self.bias = parameter(outer)

    def forward(self, images: Tensor) -> Tensor:
        """Apply the convolution: (B, inner, height, width) to (B, outer, height, width)."""
        return functional.conv2d(images, self.weight, self.bias, padding=KERNEL // 2)


class ImageNormalisation(nn.Module):
    """Scales each image to mean 0 and variance 1 (not for the kind `fixed`), then computes γ·x + β."""

    def __init__(self, channels: int, kind: ImageNormalisationName = "image") -> None:
        super().__init__()
        self._kind = kind
        self.weight = parameter(channels)
        self.bias = parameter(channels)

    def forward(self, images: Tensor) -> Tensor:
        """Normalise images (B, channels, height, width)."""
        if self._kind == "fixed":
            return torch.addcmul(self.bias.view(-1, 1, 1), images, self.weight.view(-1, 1, 1))
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
    """A network of convolutional blocks, then linear layers. `represent` returns the inputs of the last layer."""

    def __init__(self, architecture: ConvolutionalNetwork, outputs: int) -> None:
        super().__init__()
        self._image, self._dropout = architecture.image, architecture.dropout
        self._activation, blocks = activation_of(architecture.activation), architecture.blocks
        self.numbers_per_row = _numbers_per_row(self._image, blocks)
        self.input = _blocks((self._image.channels, blocks[0]), architecture)
        later = dict(_blocks(blocks, architecture, first=2).named_children())
        widths = (flat_width(self._image, blocks), *architecture.hidden)
        pairs = enumerate(pairwise(widths), start=len(blocks) + 1)
        self.body = nn.ModuleDict(later | {f"layer{number}": Linear(*pair, bias=True) for number, pair in pairs})
        self.head = nn.ModuleDict({"output": Linear(widths[-1], outputs, bias=True)})

    def represent(self, rows: Tensor) -> tuple[Tensor]:
        """Return the last hidden layer, (B, last hidden width), of images (B, pixels), before dropout."""
        images = self.input(as_images(rows, self._image))
        for block in (part for part in self.body.values() if isinstance(part, Block)):
            images = block(images)
        values = images.flatten(1)
        for layer in (part for part in self.body.values() if isinstance(part, Linear)):
            values = self._activation(layer(values))
        return (values,)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Apply the last layer after dropout: (B, last hidden width) to (B, C)."""
        (values,) = representations
        logits: Tensor = self.head["output"](functional.dropout(values, self._dropout, self.training))
        return logits


def _blocks(channels: Sequence[int], architecture: ConvolutionalNetwork, first: int = 1) -> nn.Sequential:
    """Return a block between each two neighbouring numbers of channels. The blocks are numbered from `first`."""
    activation, has_normalisation = activation_of(architecture.activation), architecture.normalisation
    pairs = enumerate(pairwise(channels), start=first)
    blocks = {f"block{number}": Block(*pair, activation, has_normalisation=has_normalisation) for number, pair in pairs}
    return nn.Sequential(OrderedDict(blocks))


def as_images(rows: Tensor, image: ImageSize) -> Tensor:
    """Convert flat rows (B, pixels) to images (B, channels, height, width)."""
    return rows.view(-1, image.channels, image.height, image.width)


def _numbers_per_row(image: ImageSize, blocks: Sequence[int]) -> int:
    return sum(
        channels * height * width
        for number, channels in enumerate(blocks)
        for height, width in [sides_after(image, number)]
    )


class Efficient(Network):
    """The complete network: a first convolution, stages, the mean of each channel, and a linear map of the means."""

    def __init__(self, architecture: EfficientNetwork, outputs: int) -> None:
        super().__init__()
        self._image = architecture.image
        self.numbers_per_row = _efficient_numbers(architecture)
        features, classifier = _layers_of_torchvision(architecture, outputs)
        self.input = nn.ModuleDict({"features": features[:1]})
        self.body = nn.ModuleDict({"features": features[1:]})
        self.head = nn.ModuleDict({"classifier": classifier})

    def represent(self, rows: Tensor) -> tuple[Tensor]:
        """Return the means of the last channels, (B, channels), for images (B, pixels and channels), before dropout."""
        images = self.input["features"](as_images(rows, self._image))
        return (self.body["features"](images).mean((-2, -1)),)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Apply the last layer after dropout: (B, channels) to (B, C)."""
        (values,) = representations
        logits: Tensor = self.head["classifier"](values)
        return logits


def load_torchvision() -> ModuleType:
    """Return the library torchvision. Raise ConfigurationError if it is missing or made for another PyTorch."""
    try:
        _declare_operators()
        from torchvision.models import efficientnet
    except (ImportError, RuntimeError) as cause:
        state = "is not installed" if isinstance(cause, ImportError) else f"does not fit PyTorch {torch.__version__}"
        raise unfit(
            what=f"The package torchvision {state}. The neural network efficientnet-b0 needs this package.",
            remedy=to_install("site,torchvision"),
        ) from cause
    found: ModuleType = efficientnet
    return found


def _declare_operators() -> None:
    """Declare two operators of torchvision's compiled library if this computer cannot load the library.

    The library needs a PyTorch for graphics cards. Without the library `import torchvision` stops, because it registers
    rules for these two names. No network computes with them.
    """
    if hasattr(torch.ops.torchvision, "nms"):
        return  # loaded or declared before
    package = find_spec("torchvision")
    library = package and PathFinder.find_spec("_C", package.submodule_search_locations)
    if library is None or library.origin is None:
        return  # not installed, or built without its library
    try:
        torch.ops.load_library(library.origin)  # type: ignore[no-untyped-call]  # torch has no types for it
    except OSError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")


def _layers_of_torchvision(architecture: EfficientNetwork, outputs: int) -> tuple[nn.Sequential, nn.Sequential]:
    """Return torchvision's `features` and `classifier` for a network of this size, filled with NaN."""
    library, stages = load_torchvision(), []
    for blocks in architecture.stages:
        first = blocks[0]
        sizes = (first.hidden // first.inner, first.kernel, first.stride, first.inner, first.outer)
        stages.append(library.MBConvConfig(*sizes, len(blocks)))
    with torch.random.fork_rng(devices=[]):  # torchvision draws first values
        whole = library.EfficientNet(
            stages,
            dropout=architecture.dropout,
            stochastic_depth_prob=0.0,
            num_classes=outputs,
            norm_layer=partial(ImageNormalisation, kind=architecture.normalisation),
        )
        # torchvision's first convolution reads three channels. Grey images have one.
        channels, border = architecture.image.channels, FIRST_KERNEL // 2
        whole.features[0][0] = nn.Conv2d(channels, architecture.first, FIRST_KERNEL, 2, border, bias=False)
    # Dropout in place would change the representation, which penalties read later.
    whole.classifier[0].inplace = False
    for values in whole.parameters():
        nn.init.constant_(values, math.nan)
    return whole.features, whole.classifier


def _efficient_numbers(architecture: EfficientNetwork) -> int:
    height, width = (-(-side // 2) for side in (architecture.image.height, architecture.image.width))
    numbers = architecture.first * height * width
    for block in (block for blocks in architecture.stages for block in blocks):
        numbers += block.hidden * height * width
        height, width = (-(-side // block.stride) for side in (height, width))
        numbers += (block.hidden + block.outer) * height * width
    return 2 * (numbers + architecture.last * height * width)
