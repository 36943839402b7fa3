"""Lists the tensors of networks for images: blocks of convolutions, then linear layers.

Source: Elhussein and Gürsoy 2025, "PLayer-FL", table A.2: three convolutions and two linear layers for FashionMNIST and
EMNIST. Each block is a convolution of 3 by 3 pixels with a border of zeros, a normalisation if the plan has it, the
activation, and the largest of each 2 by 2 pixels while both sides are 2 pixels or longer.

The size of the images is in the plan. So no tensor depends on a site's columns, and sites share every layer without a
list of columns. A row of the network is one image: its channels, in each its pixels row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, StrictBool, StrictInt, model_validator

from protos.plan.documents import Document
from protos.plan.networks.dense_networks import ActivationName, Widths
from protos.plan.networks.network_tensors import Rate, Sizes, TensorSpec, Uniform, linear, normalisation, spec

KERNEL = 3
LARGEST_IMAGE_NUMBERS: Final = 2**18
Side: TypeAlias = Annotated[StrictInt, Field(ge=1, le=1024)]

Channels: TypeAlias = Annotated[StrictInt, Field(ge=1, le=4096)]
Blocks: TypeAlias = Annotated[tuple[Channels, ...], Field(min_length=1, max_length=16)]


class ImageSize(Document):
    """The size of the images that a network reads. `channels` is 1 for grey and 3 for red, green and blue."""

    height: Side
    width: Side
    channels: Literal[1, 3] = 1

    @model_validator(mode="after")
    def _bounded(self) -> ImageSize:
        if self.numbers > LARGEST_IMAGE_NUMBERS:
            raise ValueError(
                f"an image has {self.numbers} values, but at most {LARGEST_IMAGE_NUMBERS} values are possible"
            )
        return self

    @property
    def numbers(self) -> int:
        """Return the number of values in one image."""
        return self.pixels * self.channels

    @property
    def pixels(self) -> int:
        """Return the number of pixels in one image, for any number of channels."""
        return self.height * self.width

    def __str__(self) -> str:
        """Return the image size as text, such as `64 by 64 pixels, grey`."""
        return f"{self.height} by {self.width} pixels, {'grey' if self.channels == 1 else 'colour'}"


class ConvolutionalNetwork(Document):
    """Channels of each block, then hidden widths of the linear layers between the blocks and the outputs.

    `normalisation` gives each block mean 0 and variance 1 over one image (Wu and He 2018, with one group), then scale
    and shift. `dropout` skips a share of the last layer's inputs in training.
    """

    name: Literal["convolutional"]
    image: ImageSize
    blocks: Blocks = (32, 64, 64)
    hidden: Widths = (64,)
    normalisation: StrictBool = False
    activation: ActivationName = "relu"
    dropout: Rate = 0.0

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        for number, (inner, outer) in enumerate(pairwise((self.image.channels, *self.blocks)), start=1):
            part = "input" if number == 1 else "body"
            yield from block_tensors(f"{part}.block{number}", inner, outer, self.normalisation)
        widths = (flat_width(self.image, self.blocks), *self.hidden)
        for number, (inner, outer) in enumerate(pairwise(widths), start=len(self.blocks) + 1):
            yield from linear(f"body.layer{number}", inner, outer, bias=True)
        yield from linear("head.output", widths[-1], sizes.outputs, bias=True)


def sides_after(image: ImageSize, blocks: int) -> tuple[int, int]:
    """Return the height and the width of an image after this number of blocks."""
    height, width = image.height, image.width
    for _ in range(blocks):
        if is_halved(height, width):
            height, width = height // 2, width // 2
    return height, width


def is_halved(height: int, width: int) -> bool:
    """Return whether a block halves an image of this size, by max pooling over 2 by 2 pixels."""
    return min(height, width) > 1


def flat_width(image: ImageSize, blocks: Sequence[int]) -> int:
    """Return how many numbers the last of these convolution blocks computes from one image."""
    height, width = sides_after(image, len(blocks))
    return blocks[-1] * height * width


def block_tensors(name: str, inner: int, outer: int, has_normalisation: bool) -> Iterator[TensorSpec]:
    """Yield the tensors of a 3 by 3 convolution from `inner` to `outer` channels and, if needed, its normalisation."""
    initial = Uniform(1.0 / (KERNEL * inner**0.5))  # 1/√inputs, as in torch's convolution
    yield spec(f"{name}.convolution.weight", (outer, inner, KERNEL, KERNEL), initial)
    yield spec(f"{name}.convolution.bias", (outer,), initial)
    if has_normalisation:
        yield from normalisation(name, outer)
