"""Defines the Global Layers network for heart as a hospital's own module, with batch normalisation.

In training every normalisation uses mean and variance of the batch, and later the running ones. These are buffers, so
they are private. In the shared layers the scale is 1 + gain, because shared parameters start at 0 or with uniform
values.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

from benchmarks.reference.global_layers import ReferenceNetwork
from protos.plan.networks.global_layers_networks import GlobalLayersNetwork

NETWORK: Final = GlobalLayersNetwork(name="global-layers-network", latent=128, gate=False, input_normalisation=False)


class MeasuredNormalisation(nn.Module):
    """Computes (x - mean) / sqrt(variance + 1e-5) * (1 + gain) + shift over the second axis."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.measured = nn.BatchNorm1d(channels, affine=False)
        self.gain = nn.Parameter(torch.zeros(channels))
        self.shift = nn.Parameter(torch.zeros(channels))

    def forward(self, values: Tensor) -> Tensor:
        """Map (B, channels) to the same shape."""
        return torch.addcmul(self.shift, self.measured(values), 1.0 + self.gain)


def build(columns: int, outputs: int) -> nn.Module:
    """Build the network. A plan can share layers 2 to 4."""
    network = ReferenceNetwork(NETWORK, columns, outputs, attention_weights=False)
    for layer, channels in ((network.layer2, 4), (network.layer3, 4), (network.layer4, 2)):
        layer.normalisation = MeasuredNormalisation(channels * NETWORK.latent)  # type: ignore[assignment]  # as torch
    return network
