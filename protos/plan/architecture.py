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

from collections.abc import Iterable
from typing import Annotated, assert_never

from pydantic import Field

from protos.errors import ConfigurationError
from protos.plan.networks.column_networks import ColumnsNetwork, ParallelNetwork, columns_tensors, parallel_tensors
from protos.plan.networks.convolutional_networks import (
    ConvolutionalNetwork,
    ParallelConvolutionalNetwork,
    convolutional_body,
    convolutional_tensors,
    parallel_convolutional_tensors,
)
from protos.plan.networks.dense_networks import DenseNetwork, dense_body, dense_tensors
from protos.plan.networks.efficient_networks import EfficientNetwork, efficient_body, efficient_tensors
from protos.plan.networks.global_layers_networks import GlobalLayersNetwork, global_layers_body, global_layers_tensors
from protos.plan.networks.network_tensors import (
    LARGEST_DIMENSION,
    TENSOR_NAME,
    Constant,
    FromFile,
    Initial,
    NamedTensor,
    NamedTensors,
    Part,
    TensorSpec,
    Uniform,
    listed_tensors,
)
from protos.plan.networks.transformer_networks import (
    FeatureTokensNetwork,
    NoteSize,
    feature_tokens_body,
    feature_tokens_tensors,
)
from protos.plan.networks.u_networks import UNetNetwork, u_net_body, u_net_tensors

__all__ = [
    "LARGEST_DIMENSION", "LARGEST_NUMBER_COUNT", "TENSOR_NAME", "Architecture", "ColumnsNetwork", "Constant",
    "ConvolutionalNetwork", "DenseNetwork", "EfficientNetwork", "FeatureTokensNetwork", "FromFile",
    "GlobalLayersNetwork", "ImageNetwork", "Initial", "NamedTensor", "NamedTensors", "NoteSize",
    "ParallelConvolutionalNetwork", "ParallelNetwork", "Part", "TensorSpec", "UNetNetwork", "Uniform",
    "body_tensors", "network_tensors", "note_columns",
]  # fmt: skip

LARGEST_NUMBER_COUNT = 2**31

# They read one image, and return logits of its classes.
ImageNetwork = ConvolutionalNetwork | ParallelConvolutionalNetwork | EfficientNetwork

Architecture = Annotated[
    GlobalLayersNetwork
    | DenseNetwork
    | ParallelNetwork
    | ColumnsNetwork
    | FeatureTokensNetwork
    | ImageNetwork
    | UNetNetwork
    | NamedTensors,
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
    shared = columns if common is None else common
    if not isinstance(architecture, NamedTensors):
        _check_counts(columns, outputs, shared)
    match architecture:
        case GlobalLayersNetwork():
            return _checked(global_layers_tensors(architecture, columns, outputs))
        case DenseNetwork():
            return _checked(dense_tensors(architecture, columns, outputs))
        case ParallelNetwork():
            return _checked(parallel_tensors(architecture, columns, outputs, shared))
        case ColumnsNetwork():
            _check_something_is_unique(columns, shared)
            return _checked(columns_tensors(architecture, columns, outputs, shared))
        case FeatureTokensNetwork():
            return _checked(feature_tokens_tensors(architecture, columns, outputs))
        case ConvolutionalNetwork():
            return _checked(convolutional_tensors(architecture, outputs))
        case ParallelConvolutionalNetwork():
            return _checked(parallel_convolutional_tensors(architecture, outputs))
        case EfficientNetwork():
            return _checked(efficient_tensors(architecture, outputs))
        case UNetNetwork():
            return _checked(u_net_tensors(architecture))
        case NamedTensors():
            return _checked(listed_tensors(architecture))
        case _:
            assert_never(architecture)


def note_columns(architecture: Architecture) -> int:
    """Return how many of a network's last input columns contain a note in word order."""
    note = architecture.note if isinstance(architecture, FeatureTokensNetwork) else None
    return 0 if note is None else note.columns


def body_tensors(architecture: Architecture) -> tuple[TensorSpec, ...]:
    """Return the tensors of the body, as `network_tensors` sorts them. Every site has the same body, or none.

    Raises:
        ConfigurationError: the body is too large.
    """
    match architecture:
        case GlobalLayersNetwork():
            return _checked(global_layers_body(architecture))
        case DenseNetwork():
            return _checked(dense_body(architecture))
        case ParallelNetwork() | ColumnsNetwork() | ParallelConvolutionalNetwork():
            return ()
        case FeatureTokensNetwork():
            return _checked(feature_tokens_body(architecture))
        case ConvolutionalNetwork():
            return _checked(convolutional_body(architecture))
        case EfficientNetwork():
            return _checked(efficient_body(architecture))
        case UNetNetwork():
            return _checked(u_net_body(architecture))
        case NamedTensors():
            return _checked(tensor for tensor in listed_tensors(architecture) if tensor.part == Part.BODY)
        case _:
            assert_never(architecture)


def _check_counts(columns: int, outputs: int, common: int) -> None:
    for noun, count, largest in (
        ("columns", columns, LARGEST_DIMENSION),
        ("outputs", outputs, LARGEST_DIMENSION),
        ("columns in common", common, columns),
    ):
        if not 1 <= count <= largest:
            raise ConfigurationError(
                what=f"The plan requires a network with {count} {noun}.",
                consequence="No network was built and nothing was sent.",
                remedy=f"Give between 1 and {largest} {noun}.",
            )


def _check_something_is_unique(columns: int, common: int) -> None:
    if common == columns:
        raise ConfigurationError(
            what=f"All {columns} columns of this site are columns that all sites share.",
            consequence="The network `columns` needs a column that only this site has, so no network was built.",
            remedy="Declare at least one such column, or choose the network `dense` in the plan.",
        )


def _checked(specs: Iterable[TensorSpec]) -> tuple[TensorSpec, ...]:
    found = tuple(specs)
    total = sum(spec.number_count for spec in found)
    if total > LARGEST_NUMBER_COUNT:
        raise ConfigurationError(
            what=f"The architecture has {total} numbers, more than {LARGEST_NUMBER_COUNT}.",
            consequence="No memory was reserved and nothing was sent.",
            remedy="Choose smaller widths or fewer tensors in the plan.",
        )
    return found
