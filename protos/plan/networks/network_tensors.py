"""Defines the record of one tensor of a network: its name, its position, its shape and its initial values.

The rules:

* a tensor of this package's networks is called part.layer.rest, and its record names the same part and layer;
* the tensors of one layer are next to each other and belong to one part;
* for a hospital's own module the plan lists each tensor and its part. The module itself is never sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictBool, StrictInt, model_validator

from protos.plan.documents import Document

LARGEST_DIMENSION = 2**24

Dimension = Annotated[StrictInt, Field(ge=1, le=LARGEST_DIMENSION)]
Width = Annotated[StrictInt, Field(ge=1, le=65_536)]
Rate = Annotated[float, Field(ge=0.0, lt=1.0, allow_inf_nan=False)]


class Part(StrEnum):
    """The place of a tensor in the network. Methods declare which parts they federate.

    The body's shapes are the same at every site. The input depends on the columns, and the head on the outputs. The
    common part reads only columns that all sites have. The unique part is parallel to the others. It can read all
    columns, and its shape can depend on the outputs of its site.
    """

    INPUT = "input"
    BODY = "body"
    HEAD = "head"
    COMMON = "common"
    UNIQUE = "unique"


@dataclass(frozen=True)
class Constant:
    """Every number of the tensor starts at `value`."""

    value: float


@dataclass(frozen=True)
class Uniform:
    """Every number of the tensor starts uniformly in [-bound, bound)."""

    bound: float


@dataclass(frozen=True)
class FromFile:
    """The tensor starts with the values in the plan's starting file. `values` is None if only the shape is needed."""

    values: NDArray[np.float32] | None = field(default=None, repr=False, compare=False)


Initial = Constant | Uniform | FromFile


@dataclass(frozen=True)
class TensorSpec:
    """A named tensor of float32 numbers, with its position in the network and its initial values.

    The default of `layer` is the tensor's name up to the last dot.
    """

    name: str
    shape: tuple[int, ...]
    part: Part
    initial: Initial
    is_normalisation: bool = False
    layer: str = ""

    def __post_init__(self) -> None:
        if not self.layer:
            object.__setattr__(self, "layer", self.name.rpartition(".")[0] or self.name)

    @property
    def number_count(self) -> int:
        return math.prod(self.shape)


def spec(name: str, shape: tuple[int, ...], initial: Initial, *, is_normalisation: bool = False) -> TensorSpec:
    """Return the record of a tensor in this package's networks. The tensor's name contains the part and the layer."""
    part, layer = name.split(".")[:2]
    return TensorSpec(name, shape, Part(part), initial, is_normalisation, f"{part}.{layer}")


def normalisation(owner: str, channels: int) -> Iterator[TensorSpec]:
    """Yield the tensors of a normalisation: a weight that starts at 1 and a bias that starts at 0."""
    for kind, first in (("weight", 1.0), ("bias", 0.0)):
        yield spec(f"{owner}.normalisation.{kind}", (channels,), Constant(first), is_normalisation=True)


def linear(name: str, inputs: int, outputs: int, *, bias: bool) -> Iterator[TensorSpec]:
    """Yield the matrix (outputs, inputs) of a linear layer and, with `bias`, its bias. Initial values as in PyTorch."""
    initial = Uniform(1.0 / math.sqrt(inputs))
    yield spec(f"{name}.weight", (outputs, inputs), initial)
    if bias:
        yield spec(f"{name}.bias", (outputs,), initial)


TENSOR_NAME = r"^[a-z0-9._-]{1,200}$"


@dataclass(frozen=True)
class Sizes:
    """The sizes of one site's network that its plan does not decide.

    Attributes:
        columns: d, the number of encoded input columns, at least 1.
        outputs: C, 1 for two classes (one logit), else the number of classes, at least 1.
        common: the number of first columns that all sites have, from 1 to d.
    """

    columns: int
    outputs: int
    common: int


class NamedTensor(Document):
    """One tensor of a module outside this package. Its initial values are uniform in [-bound, bound), or 0.

    Methods share or keep a tensor by its `part`. A `normalisation` stays private with FedBN. A `frozen` tensor keeps
    its first values at every site: it is neither trained nor sent.
    """

    name: Annotated[str, Field(pattern=TENSOR_NAME)]
    shape: Annotated[tuple[Dimension, ...], Field(max_length=8)]
    bound: Annotated[float, Field(ge=0.0, le=1e6, allow_inf_nan=False)]
    part: Part = Part.BODY
    normalisation: StrictBool = False
    frozen: StrictBool = False

    @property
    def spec(self) -> TensorSpec:
        """Return the record that describes this tensor, in the form that networks of this package use."""
        initial = Uniform(self.bound) if self.bound else Constant(0.0)
        return TensorSpec(self.name, self.shape, self.part, initial, self.normalisation)


class NamedTensors(Document):
    """A network as a list of tensors: the tensors that a hospital's own module exchanges, and those kept private."""

    name: Literal["named-tensors"]
    tensors: Annotated[tuple[NamedTensor, ...], Field(min_length=1, max_length=65_536)]

    @model_validator(mode="after")
    def _consistent(self) -> NamedTensors:
        if len({tensor.name for tensor in self.tensors}) != len(self.tensors):
            raise ValueError("the network lists two tensors with the same name")
        if all(tensor.frozen for tensor in self.tensors):
            raise ValueError("all tensors of the network are frozen, but at least one tensor must be trained")
        return self

    @property
    def frozen(self) -> tuple[TensorSpec, ...]:
        """Return the tensors that keep their initial values."""
        return tuple(tensor.spec for tensor in self.tensors if tensor.frozen)

    def specs(self, _: Sizes) -> Iterator[TensorSpec]:
        """Yield the tensors in the order of the list, without the frozen tensors."""
        return (tensor.spec for tensor in self.tensors if not tensor.frozen)
