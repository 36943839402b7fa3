"""First values for a network under test."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from protos.plan.architecture import TensorSpec
from protos.plan.initial_values import initial_values


def start(network: nn.Module, tensors: Iterable[TensorSpec], seed: int) -> None:
    """Fill these parameters of the network with what the plan's seed gives, in place."""
    with torch.no_grad():
        for spec in tensors:
            network.get_parameter(spec.name).copy_(torch.from_numpy(initial_values(spec, seed)))
