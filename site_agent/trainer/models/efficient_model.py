"""Builds EfficientNet-B0 from the library torchvision, with the tensors of `protos.plan.networks.efficient_networks`.

torchvision computes all layers except the normalisation. The rules:

* no block is left out at random, and `ImageNormalisation` replaces batch normalisation, so there are no buffers;
* the first values are NaN, as in every network here, and torchvision's own first values are dropped;
* torchvision is loaded when a network is built, because it is in an extra.

Rows are flat images. torchvision has no stacks. For a stack, torch maps each copy with its own parameters (`vmap`).
"""

from __future__ import annotations

import math
from functools import partial
from importlib.machinery import PathFinder
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from protos.errors import to_install
from protos.plan.networks.efficient_networks import FIRST_KERNEL, EfficientNetwork
from site_agent.trainer.failures import unfit
from site_agent.trainer.models.convolutional_models import ImageNormalisation
from site_agent.trainer.models.layers import Network


class Efficient(Network):
    """The complete network: a first convolution, stages, the mean of each channel, and a linear map of the means."""

    def __init__(self, architecture: EfficientNetwork, outputs: int) -> None:
        super().__init__()
        self._image = architecture.image
        self.numbers_per_row = _numbers_per_row(architecture)
        features, classifier = _layers_of_torchvision(architecture, outputs)
        self.input = nn.ModuleDict({"features": features[:1]})
        self.body = nn.ModuleDict({"features": features[1:]})
        self.head = nn.ModuleDict({"classifier": classifier})

    def represent(self, rows: Tensor) -> tuple[Tensor]:
        """Return the means of the last channels, (B, channels), for images (B, pixels and channels), before dropout."""
        is_stack, size = rows.dim() == 3, (self._image.channels, self._image.height, self._image.width)
        images = _mapped(self.input["features"], rows.reshape(*rows.shape[:-1], *size), is_stack=is_stack)
        return (_mapped(self.body["features"], images, is_stack=is_stack).mean((-2, -1)),)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Apply the last layer after dropout: (B, channels) to (B, C)."""
        (values,) = representations
        return _mapped(self.head["classifier"], values, is_stack=values.dim() == 3)


def load_torchvision() -> ModuleType:
    """Return the library torchvision. Raise ConfigurationError if it is missing or made for another PyTorch."""
    try:
        _declare_operators()
        from torchvision.models import efficientnet
    except (ImportError, RuntimeError) as cause:
        is_missing = isinstance(cause, ImportError)
        state = "is not installed" if is_missing else f"does not fit PyTorch {torch.__version__}"
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


def _mapped(part: nn.Module, values: Tensor, *, is_stack: bool) -> Tensor:
    """Apply a part of the network. In a stack, apply each copy's parameters to the copy's own values."""
    if not is_stack:
        mapped: Tensor = part(values)
        return mapped
    copies = dict(part.named_parameters())
    found: Tensor = vmap(lambda own, one: functional_call(part, own, (one,)), randomness="different")(copies, values)
    return found


def _numbers_per_row(architecture: EfficientNetwork) -> int:
    height, width = (-(-side // 2) for side in (architecture.image.height, architecture.image.width))
    numbers = architecture.first * height * width
    for block in (block for blocks in architecture.stages for block in blocks):
        numbers += block.hidden * height * width
        height, width = (-(-side // block.stride) for side in (height, width))
        numbers += (block.hidden + block.outer) * height * width
    return 2 * (numbers + architecture.last * height * width)
