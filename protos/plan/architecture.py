"""Lists all tensors of each network that a plan can name, without a tensor library.

Coordinator and sites read the same list of names, shapes and initial ranges. The coordinator stores and initialises the
shared tensors. The site builds the network and finds its private tensors. The rules:

* names, order and shapes follow from the architecture. The parts input, common and unique also need numbers of columns.
  Head and unique (and CHFL's common column) need the number of outputs. The part body needs neither;
* the list has everything that is trained: a network built from an architecture has these parameters and no buffers;
* layers have the order in which the network computes, and a layer belongs to one part;
* sizes are checked before any program reserves memory for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import Field, StrictBool, StrictInt, model_validator

from protos.errors import ConfigurationError
from protos.plan.documents import Document
from protos.plan.networks.network_tensors import (
    LARGEST_DIMENSION,
    TENSOR_NAME,
    Constant,
    FromFile,
    Initial,
    NamedTensor,
    NamedTensors,
    Part,
    Rate,
    Sizes,
    TensorSpec,
    Uniform,
    Width,
    linear,
    normalisation,
    spec,
)


class GlobalLayersNetwork(Document):
    """The Global Layers paper's network: entities, transformer blocks, five layers. Widths are multiples of `latent`.

    `dropout` acts inside the layers and keeps SELU's mean and variance; `input_dropout` sets encoded inputs to 0.

    With d columns, C outputs, latent size s, entities of width e and hidden width h = e/2, every normalisation has a
    weight and a bias; (n) counts its channels:

        part   block          tensors                                                         numbers
        input  normalisation  normalisation (d), only with input_normalisation                     2d
        input  embedding      weight and bias (d, e), normalisation (d)                      2de + 2d
        input  transformer1.. normalisation (d); attention.projections (3e, e), .output (e, e);
                              feedforward: normalisation (d), inner (h, e), [gate (h, e)],
                              outer (e, h)                             4d + 4e² + 2eh [+ eh]
        input  layer1         normalisation (ed), linear ed -> 4s with bias       2ed + 4s·ed + 4s
        body   layer2         normalisation (4s), inner 4s -> s, [gate], outer s -> 4s
        body   layer3         normalisation (4s), linear 4s -> 2s
        body   layer4         normalisation (2s), inner 2s -> s/2, [gate], outer s/2 -> 2s
        head   layer5         normalisation (2s), linear 2s -> s                     4s + 2s² + s
        head   output         normalisation (s), linear s -> C                       2s + sC + C

    The body has 18s² + 29.5s numbers without gate and 23s² + 29.5s with it. The inner and outer maps of the body have
    biases, the gates and the transformer's maps have none. Without entities layer 1 maps the d columns themselves:
    normalisation (d), linear d -> 4s.
    """

    name: Literal["global-layers-network"]
    latent: Annotated[StrictInt, Field(ge=8, le=65_536, multiple_of=8)]
    gate: StrictBool
    input_normalisation: StrictBool
    entity_width: Annotated[StrictInt, Field(ge=2, le=1024, multiple_of=2)] = 16
    heads: Annotated[StrictInt, Field(ge=1, le=1024)] = 8
    transformer_blocks: Annotated[StrictInt, Field(ge=0, le=64)] = 6
    dropout: Rate = 0.0
    input_dropout: Rate = 0.0
    entities: StrictBool = True

    @model_validator(mode="after")
    def _heads_share_the_width_evenly(self) -> GlobalLayersNetwork:
        if self.entity_width % self.heads:
            raise ValueError(f"entity_width {self.entity_width} is not a multiple of heads {self.heads}")
        if self.transformer_blocks and not self.entities:
            raise ValueError(
                "transformer blocks need entities: true. With entities: false, set transformer_blocks to 0"
            )
        return self

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        latent, gate = self.latent, self.gate
        wide, middle = 4 * latent, 2 * latent
        yield from _input(self, sizes.columns)
        yield from _feedforward("body.layer2", wide, wide, latent, gate=gate, bias=True)
        yield from _fully_connected("body.layer3", wide, middle)
        yield from _feedforward("body.layer4", middle, middle, latent // 2, gate=gate, bias=True)
        yield from _fully_connected("head.layer5", middle, latent)
        yield from _fully_connected("head.output", latent, sizes.outputs)


def _input(network: GlobalLayersNetwork, columns: int) -> Iterator[TensorSpec]:
    width = network.entity_width if network.entities else 1
    if network.input_normalisation:
        yield from normalisation("input", columns)
    if network.entities:
        for kind in ("weight", "bias"):
            # Each entity is a linear map of one number, so its fan-in is 1.
            yield spec(f"input.embedding.{kind}", (columns, width), Uniform(1.0))
        yield from normalisation("input.embedding", columns)
    for block in range(1, network.transformer_blocks + 1):
        yield from _transformer(network, f"input.transformer{block}", columns)
    yield from _fully_connected("input.layer1", columns * width, 4 * network.latent)


def _transformer(network: GlobalLayersNetwork, name: str, columns: int) -> Iterator[TensorSpec]:
    width = network.entity_width
    yield from normalisation(name, columns)
    # Queries, keys and values are one packed matrix, and Xavier's rule counts its 3·width rows.
    packed = (3 * width, width)
    yield spec(f"{name}.attention.projections.weight", packed, Uniform(math.sqrt(6.0 / sum(packed))))
    yield from linear(f"{name}.attention.output", width, width, bias=False)
    yield from _feedforward(f"{name}.feedforward", columns, width, width // 2, gate=network.gate, bias=False)


def _fully_connected(name: str, inputs: int, outputs: int) -> Iterator[TensorSpec]:
    yield from normalisation(name, inputs)
    yield from linear(f"{name}.linear", inputs, outputs, bias=True)


def _feedforward(name: str, channels: int, width: int, hidden: int, *, gate: bool, bias: bool) -> Iterator[TensorSpec]:
    yield from normalisation(name, channels)
    yield from linear(f"{name}.inner", width, hidden, bias=bias)
    if gate:
        yield from linear(f"{name}.gate", width, hidden, bias=False)
    yield from linear(f"{name}.outer", hidden, width, bias=bias)


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

    Source: Elhussein and Gürsoy 2025, "PLayer-FL", table A.2. Each block is a convolution of 3 by 3 pixels with a
    border of zeros, a normalisation if the plan has it, the activation, and the largest of each 2 by 2 pixels while
    both sides are 2 pixels or longer. No tensor depends on a site's columns, because the plan has the size of the
    images. A row of the network is one image: its channels, in each its pixels row by row.
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


Widths: TypeAlias = Annotated[tuple[Width, ...], Field(max_length=64)]
ActivationName: TypeAlias = Literal["relu", "selu", "gelu", "tanh"]


class DenseNetwork(Document):
    """Linear layers with these hidden widths. Without hidden widths the network is a logistic or linear regression.

    Layers are layer1 to layerN, each a linear map with bias. All but the last have an activation, and dropout is before
    the last: it skips a share of its inputs in training. The first layer is the part input, the last is head, and the
    layers between are body. A single layer is head, because the layer that gives the output is most often private.
    """

    name: Literal["dense"]
    hidden: Widths
    activation: ActivationName = "relu"
    dropout: Rate = 0.0

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        """Yield every tensor in the order of the network's parameters."""
        last = len(self.hidden)
        for index, (inner, outer) in enumerate(pairwise((sizes.columns, *self.hidden, sizes.outputs))):
            part = Part.HEAD if index == last else Part.INPUT if index == 0 else Part.BODY
            yield from linear(f"{part}.layer{index + 1}", inner, outer, bias=True)


ExtractorWidths: TypeAlias = Annotated[tuple[Width, ...], Field(min_length=1, max_length=64)]


class ParallelNetwork(Document):
    """Hidden widths of the common extractor, the unique extractor and the head (FENDA-FL, PerFCL).

    Source: Tavakoli et al. 2024, "FENDA-FL", section 3: the extractors may differ in depth and width. The common one
    reads the columns that the plan lists for all sites, and the unique one reads all columns of its site. The head is a
    linear map of both results, or of hidden layers over them. Dropout is before the head.
    """

    name: Literal["parallel"]
    common: ExtractorWidths
    unique: ExtractorWidths
    activation: ActivationName = "relu"
    dropout: Rate = 0.0
    head: Widths = ()

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        yield from _extractor("common", (sizes.common, *self.common))
        yield from _extractor("unique", (sizes.columns, *self.unique))
        widths = (self.common[-1] + self.unique[-1], *self.head)
        yield from _extractor("head", widths)
        yield from linear("head.output", widths[-1], sizes.outputs, bias=True)


def _extractor(part: str, widths: tuple[int, ...]) -> Iterator[TensorSpec]:
    for number, (inner, outer) in enumerate(pairwise(widths), start=1):
        yield from linear(f"{part}.layer{number}", inner, outer, bias=True)


class ColumnsNetwork(Document):
    """Hidden widths of two columns of layers (CHFL). `lateral` is mu, the common column's effect on the unique column.

    Source: Mori et al. 2022, "Continual Horizontal Federated Learning for Heterogeneous Data". The common column is an
    MLP over the columns that the plan lists for all sites. The unique column is an MLP over the remaining columns of
    its site, and also reads the common one, by matrices U from the results of its layers, not from its input:

        z_u(i+1) = a(W z_u(i) + b + mu U z_c(i)),    logits = z_c(L) + z_u(L)

    The last layers have no activation. With mu = 0 there are no matrices U.
    """

    name: Literal["columns"]
    hidden: ExtractorWidths = (512, 256, 128)
    activation: ActivationName = "relu"
    lateral: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        """Yield every tensor in the order of the network's parameters. At least one column is not common."""
        yield from self._column("common", sizes.common, sizes.outputs, has_lateral=False)
        yield from self._column("unique", sizes.columns - sizes.common, sizes.outputs, has_lateral=self.lateral > 0.0)

    def _column(self, part: str, inputs: int, outputs: int, *, has_lateral: bool) -> Iterator[TensorSpec]:
        widths = (inputs, *self.hidden, outputs)
        for number, (inner, outer) in enumerate(pairwise(widths), start=1):
            name = f"{part}.output" if number == len(widths) - 1 else f"{part}.layer{number}"
            yield from linear(name, inner, outer, bias=True)
            if has_lateral and number > 1:
                # The columns have equal widths, so a lateral input is as wide as the layer's own input.
                yield from linear(f"{name}.lateral", inner, outer, bias=False)


__all__ = [
    "LARGEST_DIMENSION", "LARGEST_NUMBER_COUNT", "TENSOR_NAME", "Architecture", "ColumnsNetwork", "Constant",
    "ConvolutionalNetwork", "DenseNetwork", "FromFile", "GlobalLayersNetwork", "ImageSize",
    "Initial", "NamedTensor", "NamedTensors", "ParallelNetwork", "Part", "TensorSpec", "Uniform", "network_tensors",
]  # fmt: skip

LARGEST_NUMBER_COUNT = 2**31

Architecture = Annotated[
    GlobalLayersNetwork | DenseNetwork | ParallelNetwork | ColumnsNetwork | ConvolutionalNetwork | NamedTensors,
    Field(discriminator="name"),
]


def network_tensors(
    architecture: Architecture, *, columns: int, outputs: int, common: int | None = None
) -> tuple[TensorSpec, ...]:
    """Return every tensor of the complete network, in the order of the network's parameters.

    Args:
        architecture: the plan's network. `NamedTensors` needs no numbers of columns and outputs.
        columns: d, the number of encoded input columns of one site, at least 1.
        outputs: C, 1 for two classes (one logit), else the number of classes, at least 1.
        common: the number of first columns that the plan lists for all sites; None means all. Only networks with a part
            common use it.

    Raises:
        ConfigurationError: a number is out of range, a column of layers has no input column, or the network is too
            large.
    """
    sizes = Sizes(columns, outputs, columns if common is None else common)
    if not isinstance(architecture, NamedTensors):
        _check_sizes(sizes)
    if isinstance(architecture, ColumnsNetwork) and sizes.common == sizes.columns:
        raise ConfigurationError(
            what=f"The sites share all {sizes.columns} columns of this site.",
            consequence="The network `columns` needs a column that only this site has, so no network was built.",
            remedy="Declare at least one such column, or choose the network `dense` in the plan.",
        )
    found = tuple(architecture.specs(sizes))
    total = sum(spec.number_count for spec in found)
    if total > LARGEST_NUMBER_COUNT:
        raise ConfigurationError(
            what=(
                f"The network in the plan has {total} parameters, but at most {LARGEST_NUMBER_COUNT} parameters are "
                "possible."
            ),
            consequence="No memory was reserved and nothing was sent.",
            remedy="Choose smaller widths or fewer tensors in the plan.",
        )
    return found


def _check_sizes(sizes: Sizes) -> None:
    for noun, count, largest in (
        ("columns", sizes.columns, LARGEST_DIMENSION),
        ("outputs", sizes.outputs, LARGEST_DIMENSION),
        ("columns in common", sizes.common, sizes.columns),
    ):
        if not 1 <= count <= largest:
            raise ConfigurationError(
                what=f"The plan requires a network with {count} {noun}.",
                consequence="No network was built and nothing was sent.",
                remedy=f"Give between 1 and {largest} {noun}.",
            )
