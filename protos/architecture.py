"""The networks a plan may name, and every tensor they consist of, without any tensor library.

Coordinator and sites read the same list of names, shapes and initial ranges here: the coordinator
to hold and start the shared tensors, the site to build the network and to know what is private.
The rules:

* names, order and shapes follow from the architecture alone; the parts input and head also need
  the number of columns and of outputs, the part body never does;
* everything that trains is in the list: a network built from an architecture has these parameters
  and no buffers;
* sizes are checked before anybody reserves memory for them.

The network of "Global Layers" (Obeidi), with d columns, C outputs, latent size s, entities of width
e and hidden width h = e/2. Every normalisation has a weight and a bias; (n) counts its channels:

    part   block          tensors                                                         numbers
    input  normalisation  normalisation (d), only with input_normalisation                     2d
    input  embedding      weight and bias (d, e), normalisation (d)                      2de + 2d
    input  transformer1.. normalisation (d); attention.projections (3e, e), .output (e, e);
                          feedforward: normalisation (d), inner (h, e), [gate (h, e)],
                          outer (e, h)                             4d + 4e² + 2eh [+ eh]
    input  layer1         normalisation (ed), linear ed -> 4s with bias       2ed + 4s·ed + 4s
    body   layer2         normalisation (4s), inner 4s -> s, [gate], outer s -> 4s
    body   layer3         normalisation (4s), linear 4s -> 2s
    body   layer4         normalisation (2s), inner 2s -> s/2, [gate], outer s/2 -> 2s
    head   layer5         normalisation (2s), linear 2s -> s                     4s + 2s² + s
    head   output         normalisation (s), linear s -> C                       2s + sC + C

The body has 18s² + 29.5s numbers without gate and 23s² + 29.5s with it. The inner and outer maps of
the body have biases, the gates and the transformer's maps have none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal, assert_never

from pydantic import Field, StrictBool, StrictInt, model_validator

from protos.documents import Document
from protos.errors import ConfigurationError

LARGEST_NUMBER_COUNT = 2**31
LARGEST_DIMENSION = 2**24
TENSOR_NAME = r"^[a-z0-9._-]{1,200}$"

Dimension = Annotated[StrictInt, Field(ge=1, le=LARGEST_DIMENSION)]


class Part(StrEnum):
    """Where in the network a tensor stands; methods say which parts they federate."""

    INPUT = "input"
    BODY = "body"
    HEAD = "head"


class GlobalLayersNetwork(Document):
    """The network of the paper: entities, transformer blocks, five layers; widths are multiples of `latent`."""

    name: Literal["global-layers-network"]
    latent: Annotated[StrictInt, Field(ge=8, le=65_536, multiple_of=8)]
    gate: StrictBool
    input_normalisation: StrictBool
    entity_width: Annotated[StrictInt, Field(ge=2, le=1024, multiple_of=2)] = 16
    heads: Annotated[StrictInt, Field(ge=1, le=1024)] = 8
    transformer_blocks: Annotated[StrictInt, Field(ge=0, le=64)] = 6
    normalisation: Literal["affine"] = "affine"
    dropout: Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)] = 0.0

    @model_validator(mode="after")
    def _heads_share_the_width_evenly(self) -> GlobalLayersNetwork:
        if self.entity_width % self.heads:
            raise ValueError(f"entity_width {self.entity_width} is not a multiple of heads {self.heads}")
        return self


class NamedTensor(Document):
    """One tensor of a module this package does not know; starts uniformly in [-bound, bound), or at 0."""

    name: Annotated[str, Field(pattern=TENSOR_NAME)]
    shape: Annotated[tuple[Dimension, ...], Field(max_length=8)]
    bound: Annotated[float, Field(ge=0.0, le=1e6, allow_inf_nan=False)]


class NamedTensors(Document):
    """Tensors listed one by one, all of part body: what a hospital's own module exchanges."""

    name: Literal["named-tensors"]
    tensors: Annotated[tuple[NamedTensor, ...], Field(min_length=1, max_length=65_536)]

    @model_validator(mode="after")
    def _names_differ(self) -> NamedTensors:
        if len({tensor.name for tensor in self.tensors}) != len(self.tensors):
            raise ValueError("two tensors have the same name")
        return self


Architecture = Annotated[GlobalLayersNetwork | NamedTensors, Field(discriminator="name")]


@dataclass(frozen=True)
class Constant:
    """Every number of the tensor starts at `value`."""

    value: float


@dataclass(frozen=True)
class Uniform:
    """Every number of the tensor starts uniformly in [-bound, bound)."""

    bound: float


Initial = Constant | Uniform


@dataclass(frozen=True)
class TensorSpec:
    """One named tensor of float32 numbers, where it stands and how it starts."""

    name: str
    shape: tuple[int, ...]
    part: Part
    initial: Initial
    is_normalisation: bool = False

    @property
    def number_count(self) -> int:
        """How many numbers the tensor has."""
        return math.prod(self.shape)


def network_tensors(architecture: Architecture, *, columns: int, outputs: int) -> tuple[TensorSpec, ...]:
    """Every tensor of the complete network, in the order of the network's own parameters.

    Args:
        architecture: the plan's choice; listed tensors need neither columns nor outputs.
        columns: d, the number of encoded input columns of one site, at least 1.
        outputs: C, 1 for two classes (one logit), else the number of classes, at least 1.

    Raises:
        ConfigurationError: a number is out of range, or the network is too large.
    """
    match architecture:
        case GlobalLayersNetwork():
            _check_count("columns", columns)
            _check_count("outputs", outputs)
            specs = (*_input(architecture, columns), *_body(architecture), *_head(architecture, outputs))
        case NamedTensors():
            specs = _listed(architecture)
        case _:
            assert_never(architecture)
    return _checked(specs)


def body_tensors(architecture: Architecture) -> tuple[TensorSpec, ...]:
    """The tensors of part body, the same at every site, in the order of `network_tensors`.

    Raises:
        ConfigurationError: the body is too large.
    """
    match architecture:
        case GlobalLayersNetwork():
            return _checked(tuple(_body(architecture)))
        case NamedTensors():
            return _checked(_listed(architecture))
        case _:
            assert_never(architecture)


def _input(network: GlobalLayersNetwork, columns: int) -> Iterator[TensorSpec]:
    part, width = Part.INPUT, network.entity_width
    if network.input_normalisation:
        yield from _normalisation(part, "input", columns)
    for kind in ("weight", "bias"):
        # Each entity is a linear map of one number, so its fan-in is 1.
        yield TensorSpec(f"input.embedding.{kind}", (columns, width), part, Uniform(1.0))
    yield from _normalisation(part, "input.embedding", columns)
    for block in range(1, network.transformer_blocks + 1):
        yield from _transformer(network, f"input.transformer{block}", columns)
    yield from _fully_connected(part, "input.layer1", columns * width, 4 * network.latent)


def _transformer(network: GlobalLayersNetwork, name: str, columns: int) -> Iterator[TensorSpec]:
    part, width = Part.INPUT, network.entity_width
    yield from _normalisation(part, name, columns)
    # Queries, keys and values are one packed matrix, and Xavier's rule counts its 3·width rows.
    packed = (3 * width, width)
    yield TensorSpec(f"{name}.attention.projections.weight", packed, part, Uniform(math.sqrt(6.0 / sum(packed))))
    yield from _linear(part, f"{name}.attention.output", width, width, bias=False)
    yield from _feedforward(part, f"{name}.feedforward", columns, width, width // 2, gate=network.gate, bias=False)


def _body(network: GlobalLayersNetwork) -> Iterator[TensorSpec]:
    part, latent = Part.BODY, network.latent
    wide, middle = 4 * latent, 2 * latent
    yield from _feedforward(part, "body.layer2", wide, wide, latent, gate=network.gate, bias=True)
    yield from _fully_connected(part, "body.layer3", wide, middle)
    yield from _feedforward(part, "body.layer4", middle, middle, latent // 2, gate=network.gate, bias=True)


def _head(network: GlobalLayersNetwork, outputs: int) -> Iterator[TensorSpec]:
    yield from _fully_connected(Part.HEAD, "head.layer5", 2 * network.latent, network.latent)
    yield from _fully_connected(Part.HEAD, "head.output", network.latent, outputs)


def _normalisation(part: Part, owner: str, channels: int) -> Iterator[TensorSpec]:
    for kind, first in (("weight", 1.0), ("bias", 0.0)):
        name = f"{owner}.normalisation.{kind}"
        yield TensorSpec(name, (channels,), part, Constant(first), is_normalisation=True)


def _linear(part: Part, name: str, inputs: int, outputs: int, *, bias: bool) -> Iterator[TensorSpec]:
    initial = Uniform(1.0 / math.sqrt(inputs))
    yield TensorSpec(f"{name}.weight", (outputs, inputs), part, initial)
    if bias:
        yield TensorSpec(f"{name}.bias", (outputs,), part, initial)


def _fully_connected(part: Part, name: str, inputs: int, outputs: int) -> Iterator[TensorSpec]:
    yield from _normalisation(part, name, inputs)
    yield from _linear(part, f"{name}.linear", inputs, outputs, bias=True)


def _feedforward(
    part: Part, name: str, channels: int, width: int, hidden: int, *, gate: bool, bias: bool
) -> Iterator[TensorSpec]:
    yield from _normalisation(part, name, channels)
    yield from _linear(part, f"{name}.inner", width, hidden, bias=bias)
    if gate:
        yield from _linear(part, f"{name}.gate", width, hidden, bias=False)
    yield from _linear(part, f"{name}.outer", hidden, width, bias=bias)


def _listed(architecture: NamedTensors) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(tensor.name, tensor.shape, Part.BODY, Uniform(tensor.bound) if tensor.bound else Constant(0.0))
        for tensor in architecture.tensors
    )


def _check_count(noun: str, count: int) -> None:
    if not 1 <= count <= LARGEST_DIMENSION:
        raise ConfigurationError(
            what=f"A network with {count} {noun} was asked for.",
            consequence="No network was built and nothing was sent.",
            remedy=f"Give between 1 and {LARGEST_DIMENSION} {noun}.",
        )


def _checked(specs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
    total = sum(spec.number_count for spec in specs)
    if total > LARGEST_NUMBER_COUNT:
        raise ConfigurationError(
            what=f"The architecture has {total} numbers, more than {LARGEST_NUMBER_COUNT}.",
            consequence="No memory was reserved and nothing was sent.",
            remedy="Choose a smaller latent size or fewer tensors in the plan.",
        )
    return specs
