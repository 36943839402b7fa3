"""Defines the network EfficientNet-B0, with the tensors and order of `protos.plan.networks.efficient_networks`.

There are no buffers. Rows are flat images, and a stack's copies are joined in the channels, as in
`convolutional_models`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from protos.plan.networks.efficient_networks import (
    FIRST_KERNEL,
    EfficientNetwork,
    ImageNormalisationName,
    InvertedBlock,
)
from site_agent.trainer.models.convolutional_models import Convolution, ImageNormalisation, as_images, as_rows
from site_agent.trainer.models.layers import Linear, Network


class Squeeze(nn.Module):
    """Multiplies each channel by a weight between 0 and 1, computed from the means of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = Convolution(channels, squeezed, 1)
        self.fc2 = Convolution(squeezed, channels, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, channels, height, width) to the same shape."""
        means = images.mean((2, 3), keepdim=True)
        return images * torch.sigmoid(self.fc2(functional.silu(self.fc1(means))))


class Inverted(nn.Module):
    """One block of EfficientNet: expands the channels, filters and weights each channel, and maps them to fewer."""

    def __init__(self, block: InvertedBlock, kind: ImageNormalisationName) -> None:
        super().__init__()
        self._is_residual, hidden = block.is_residual, block.hidden
        expansion = [] if hidden == block.inner else [_filter(block.inner, hidden, 1, 1, kind)]
        self.block = nn.Sequential(
            *expansion,
            _filter(hidden, hidden, block.kernel, block.stride, kind, is_depthwise=True),
            Squeeze(hidden, block.squeezed),
            _filter(hidden, block.outer, 1, 1, kind)[:2],
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, inner, height, width) to (B, outer, ...). Height and width are halved with a stride of 2."""
        found: Tensor = self.block(images)
        return found + images if self._is_residual else found


class Efficient(Network):
    """The complete network: a first convolution, stages, the mean of each channel, and a linear map of the means."""

    def __init__(self, architecture: EfficientNetwork, outputs: int) -> None:
        super().__init__()
        self._image, self._dropout = architecture.image, architecture.dropout
        kind, stages = architecture.normalisation, architecture.stages
        first = _filter(self._image.channels, architecture.first, FIRST_KERNEL, 2, kind)
        body = [nn.Sequential(*(Inverted(block, kind) for block in blocks)) for blocks in stages]
        body.append(_filter(stages[-1][-1].outer, architecture.last, 1, 1, kind))
        self.input = nn.ModuleDict({"features": nn.ModuleDict({"0": first})})
        self.body = nn.ModuleDict({"features": nn.ModuleDict({str(n): one for n, one in enumerate(body, start=1)})})
        self.head = nn.ModuleDict({"classifier": nn.ModuleDict({"1": Linear(architecture.last, outputs, bias=True)})})
        self.numbers_per_row = _numbers_per_row(architecture)

    def represent(self, rows: Tensor) -> tuple[Tensor]:
        """Map (B, pixels and channels) to the means of the last channels, (B, channels), before dropout."""
        images, copies = as_images(rows, self._image)
        for part in (self.input, self.body):
            for stage in part.get_submodule("features").children():
                images = stage(images)
        return (as_rows(images.mean((2, 3)), copies),)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Apply the last layer after dropout: (B, channels) to (B, C)."""
        values = functional.dropout(representations[0], self._dropout, self.training)
        logits: Tensor = self.head.get_submodule("classifier.1")(values)
        return logits


def _filter(
    inner: int, outer: int, kernel: int, stride: int, kind: ImageNormalisationName, *, is_depthwise: bool = False
) -> nn.Sequential:
    convolution = Convolution(inner, outer, kernel, stride, has_bias=False, is_depthwise=is_depthwise)
    return nn.Sequential(convolution, ImageNormalisation(outer, kind), nn.SiLU())


def _numbers_per_row(architecture: EfficientNetwork) -> int:
    height, width = (-(-side // 2) for side in (architecture.image.height, architecture.image.width))
    numbers = architecture.first * height * width
    for block in (block for blocks in architecture.stages for block in blocks):
        numbers += block.hidden * height * width
        height, width = (-(-side // block.stride) for side in (height, width))
        numbers += (block.hidden + block.outer) * height * width
    return 2 * (numbers + architecture.last * height * width)
