"""From the architecture a plan names to a network, and to its first values.

The one place that knows every network. The rules:

* a network's parameters are exactly `network_tensors`, in that order, and it has no buffers;
* a fresh network holds NaN until `start` or the caller has filled every tensor.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import torch
from torch import nn

from protos.architecture import Architecture, GlobalLayersNetwork, NamedTensors, TensorSpec, network_tensors
from protos.errors import ConfigurationError
from protos.initial_values import initial_values
from site_agent.trainer.models.global_layers import GlobalLayers


def build_network(architecture: Architecture, columns: int, outputs: int) -> nn.Module:
    """The network of a plan, float32 on the CPU, mapping rows (B, columns) to logits (B, outputs).

    Raises:
        ConfigurationError: the architecture has no network, or its sizes are out of range.
    """
    match architecture:
        case GlobalLayersNetwork():
            network_tensors(architecture, columns=columns, outputs=outputs)  # sizes, before memory
            return GlobalLayers(architecture, columns, outputs)
        case NamedTensors():
            raise ConfigurationError(
                what="The architecture named-tensors lists tensors and has no network.",
                consequence="Nothing was trained and nothing left this site.",
                remedy="Name an architecture with a network in the plan, for example global-layers-network.",
            )
        case _:
            assert_never(architecture)


def start(network: nn.Module, tensors: Iterable[TensorSpec], seed: int) -> None:
    """Fill these parameters of the network with their first values, in place.

    Shared tensors take the plan's seed. Private ones may take another, so a caller may call twice.
    """
    with torch.no_grad():
        for spec in tensors:
            network.get_parameter(spec.name).copy_(torch.from_numpy(initial_values(spec, seed)))
