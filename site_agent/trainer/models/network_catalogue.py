"""Builds a network from the architecture that a plan names.

This is the only list of all networks. The rules:

* a network's parameters are exactly `network_tensors`, in that order, and it has no buffers;
* a new network contains NaN until the caller has filled every tensor.
"""

from __future__ import annotations

from typing import assert_never

from torch import nn

from protos.plan.architecture import (
    Architecture,
    ColumnsNetwork,
    ConvolutionalNetwork,
    DenseNetwork,
    GlobalLayersNetwork,
    NamedTensors,
    ParallelNetwork,
    network_tensors,
)
from site_agent.trainer.models.dense_models import Columns, Dense, Parallel
from site_agent.trainer.models.global_layers_model import GlobalLayers
from site_agent.trainer.models.image_models import Convolutional


def build_network(architecture: Architecture, columns: int, outputs: int, common: int | None = None) -> nn.Module:
    """Build the network of a plan, float32 on the CPU, from rows (B, columns) to logits (B, outputs).

    Every network has `represent` and `decide`, see `layers.Represents`. `common` is the number of first
    columns that the plan lists for all sites; None means all.

    Raises:
        ConfigurationError: its sizes are out of range.
    """
    shared = columns if common is None else common
    # Sizes are checked before memory is reserved.
    network_tensors(architecture, columns=columns, outputs=outputs, common=shared)
    match architecture:
        case GlobalLayersNetwork():
            return GlobalLayers(architecture, columns, outputs)
        case DenseNetwork():
            return Dense(architecture, columns, outputs)
        case ParallelNetwork():
            return Parallel(architecture, columns, outputs, shared)
        case ColumnsNetwork():
            return Columns(architecture, columns, outputs, shared)
        case ConvolutionalNetwork():
            return Convolutional(architecture, outputs)
        case NamedTensors():
            raise TypeError("a hospital builds this network itself")
        case _:
            assert_never(architecture)
