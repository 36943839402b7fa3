"""Lists all tensors of each network that a plan can name, without a tensor library.

Coordinator and sites read the same list of names, shapes and initial ranges. The coordinator stores and initialises the
shared tensors. The site builds the network and finds its private tensors. The records and their lists are in
`protos.plan.networks`; other packages import them only from here. The rules:

* names, order and shapes follow from the architecture. The parts input, common and unique also need numbers of columns.
  Head and unique (and CHFL's common column) need the number of outputs. The part body needs neither;
* the list has everything that is trained: a network built from an architecture has these parameters and no buffers;
* layers have the order in which the network computes, and a layer belongs to one part;
* sizes are checked before any program reserves memory for them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protos.errors import ConfigurationError
from protos.plan.networks.convolutional_networks import ConvolutionalNetwork, ImageSize
from protos.plan.networks.dense_networks import ColumnsNetwork, DenseNetwork, ParallelNetwork
from protos.plan.networks.global_layers_networks import GlobalLayersNetwork
from protos.plan.networks.network_tensors import (
    LARGEST_DIMENSION,
    TENSOR_NAME,
    Constant,
    FromFile,
    Initial,
    NamedTensor,
    NamedTensors,
    Part,
    Sizes,
    TensorSpec,
    Uniform,
)

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
