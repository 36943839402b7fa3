"""Lists the tensors of a U-Net, which decides for each pixel of an image whether the pixel belongs to a structure.

Source: Ronneberger et al. 2015, "U-Net". Three things differ. Convolutions have a border of zeros, so the mask is as
large as the image. The way up doubles pixels instead of a learned convolution. The default size is small.

The way down halves the sides and doubles the channels at each level. The way up reads the level below, and the result
of the way down at the same level. Layers are numbered in the order in which they compute. So the first layers are a
prefix, and the last layer gives the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, model_validator

from protos.plan.augmentation import ImageNetworkSettings
from protos.plan.networks.convolutional_networks import block_tensors
from protos.plan.networks.dense_networks import ActivationName
from protos.plan.networks.network_tensors import Sizes, TensorSpec, linear


class UNetNetwork(ImageNetworkSettings):
    """A U-Net. `width` is the number of channels at the top level; `levels` is how often the sides are halved.

    Each block is two convolutions of 3 by 3 pixels, each with the activation. Before the activation is the
    normalisation of `ConvolutionalNetwork` if the plan has it. Each pixel has one output.
    """

    name: Literal["u-net"]
    width: Annotated[StrictInt, Field(ge=1, le=256)] = 16
    levels: Annotated[StrictInt, Field(ge=1, le=4)] = 2
    normalisation: StrictBool = False
    activation: ActivationName = "relu"

    @model_validator(mode="after")
    def _halves(self) -> UNetNetwork:
        factor = 1 << self.levels
        if self.image.height % factor or self.image.width % factor:
            raise ValueError(
                f"with {self.levels} levels, height and width of the image must be multiples of {factor} pixels, but "
                f"the image has {self.image.height} by {self.image.width} pixels"
            )
        return self

    @property
    def ways(self) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]:
        """Return the numbers of input and output channels of each block, on the way down and on the way up."""
        widths = [self.width << level for level in range(self.levels + 1)]
        up = tuple((below + own, own) for own, below in pairwise(widths))
        return tuple(pairwise((self.image.channels, *widths))), up[::-1]

    def specs(self, _: Sizes) -> Iterator[TensorSpec]:
        """Yield every tensor in the order of the network's parameters."""
        down, up = self.ways
        for number, (inner, outer) in enumerate((*down, *up), start=1):
            name = f"{'input' if number == 1 else 'body'}.block{number}"
            yield from block_tensors(f"{name}.first", inner, outer, self.normalisation)
            yield from block_tensors(f"{name}.second", outer, outer, self.normalisation)
        yield from linear("head.output", self.width, 1, bias=True)
