"""Lists the tensors of EfficientNet-B0, an image network, with the shapes of its published values.

Source: Tan and Le 2019, "EfficientNet", table 1; the blocks are those of Sandler et al. 2018, "MobileNetV2", with the
weighted channels of Hu et al. 2018, "Squeeze-and-Excitation". Two things differ: training skips no block at random, and
no normalisation measures a batch, because its running means would be statistics of patients.

A tensor has the name of torchvision's `efficientnet_b0` after the name of its part. So published values fit once the
running means are folded into the weights (docs/researcher.md, "EfficientNet"). The rules:

* with 1,000 classes, colour images and full width and depth there are 5,288,548 numbers, as in torchvision;
* the first convolution is the part input, the last layer is the head, and each stage between them is one layer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

from pydantic import Field

from protos.plan.documents import Document
from protos.plan.image_size import ImageSize
from protos.plan.networks.network_tensors import Constant, Initial, Part, Rate, Sizes, TensorSpec, Uniform

ImageNormalisationName: TypeAlias = Literal["fixed", "image"]
Multiplier = Annotated[float, Field(gt=0.0, le=1.0, allow_inf_nan=False)]

# For each stage: expansion, side of the kernel, stride of the first block, channels out, blocks.
_STAGES: Final = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
_FIRST_CHANNELS: Final = 32
_LAST_EXPANSION: Final = 4
FIRST_KERNEL: Final = 3


class InvertedBlock(NamedTuple):
    """A block that adds channels, filters and weights each channel, and then reduces the number of channels."""

    kernel: int
    stride: int
    inner: int
    hidden: int
    outer: int


class EfficientNetwork(Document):
    """`width` and `depth` scale B0's numbers of channels and blocks. `dropout` is before the last layer.

    Attributes:
        normalisation: `fixed` scales and shifts each channel, for values from a file into which running means were
            folded. `image` first gives each image mean 0 and variance 1, for a network that starts at random.
    """

    name: Literal["efficientnet-b0"]
    image: ImageSize
    normalisation: ImageNormalisationName
    width: Multiplier = 1.0
    depth: Multiplier = 1.0
    dropout: Rate = 0.2

    @property
    def first(self) -> int:
        """Return the number of channels of the first convolution."""
        return _multiple_of_8(_FIRST_CHANNELS * self.width)

    @property
    def stages(self) -> tuple[tuple[InvertedBlock, ...], ...]:
        """Return the blocks of each stage. Only the first block of a stage may change the image's size and channels."""
        channels = [self.first, *(_multiple_of_8(outer * self.width) for *_, outer, _ in _STAGES)]
        return tuple(
            tuple(
                InvertedBlock(kernel, 1 if number else stride, read, read * expansion, outer)
                for number in range(math.ceil(blocks * self.depth))
                for read in (outer if number else inner,)
            )
            for (expansion, kernel, stride, _, blocks), (inner, outer) in zip(_STAGES, pairwise(channels), strict=True)
        )

    @property
    def last(self) -> int:
        """Return the number of channels that the last part of the network (head) reads."""
        return _LAST_EXPANSION * self.stages[-1][-1].outer

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        """Yield every tensor in the order of the network's parameters."""
        stages, last = self.stages, self.last
        yield from _filter("input.features.0", self.image.channels, self.first, FIRST_KERNEL)
        for stage, blocks in enumerate(stages, start=1):
            for number, block in enumerate(blocks):
                yield from _block(f"body.features.{stage}.{number}.block", block)
        yield from _filter(f"body.features.{len(stages) + 1}", stages[-1][-1].outer, last, 1)
        for kind, shape in (("weight", (sizes.outputs, last)), ("bias", (sizes.outputs,))):
            yield _tensor(f"head.classifier.1.{kind}", shape, Uniform(1.0 / math.sqrt(last)))


def _block(name: str, block: InvertedBlock) -> Iterator[TensorSpec]:
    first = 0
    if block.hidden != block.inner:
        yield from _filter(f"{name}.0", block.inner, block.hidden, 1)
        first = 1
    yield from _filter(f"{name}.{first}", 1, block.hidden, block.kernel)
    squeezed = max(1, block.inner // 4)  # channels between the two linear maps that weight the channels
    for layer, inner, outer in (("fc1", block.hidden, squeezed), ("fc2", squeezed, block.hidden)):
        initial = Uniform(1.0 / math.sqrt(inner))
        yield _tensor(f"{name}.{first + 1}.{layer}.weight", (outer, inner, 1, 1), initial)
        yield _tensor(f"{name}.{first + 1}.{layer}.bias", (outer,), initial)
    yield from _filter(f"{name}.{first + 2}", block.hidden, block.outer, 1)


def _filter(name: str, inner: int, outer: int, kernel: int) -> Iterator[TensorSpec]:
    """Yield the tensors of a convolution without bias and its normalisation. Each output reads `inner` channels."""
    # He et al. 2015, equation 10: the variance of a layer's result equals that of its input.
    yield _tensor(f"{name}.0.weight", (outer, inner, kernel, kernel), Uniform(math.sqrt(6.0 / inner) / kernel))
    for kind, first in (("weight", 1.0), ("bias", 0.0)):
        yield _tensor(f"{name}.1.{kind}", (outer,), Constant(first), is_normalisation=True)


def _tensor(name: str, shape: tuple[int, ...], initial: Initial, *, is_normalisation: bool = False) -> TensorSpec:
    part, group, number = name.split(".")[:3]
    return TensorSpec(name, shape, Part(part), initial, is_normalisation, f"{part}.{group}.{number}")


def _multiple_of_8(channels: float) -> int:
    """Return the nearest multiple of 8 that is at least nine tenths of `channels`."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8
