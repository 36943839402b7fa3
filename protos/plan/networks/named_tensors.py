"""The tensors that a hospital's own module exchanges, listed one by one. The module itself is never sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, model_validator

from protos.plan.documents import Document
from protos.plan.networks.network_tensors import Constant, Dimension, Part, TensorSpec, Uniform

TENSOR_NAME = r"^[a-z0-9._-]{1,200}$"


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


def listed_tensors(architecture: NamedTensors) -> Iterator[TensorSpec]:
    """Yield the tensors in the order of the list. A tensor's layer is its name up to the last dot."""
    for tensor in architecture.tensors:
        initial = Uniform(tensor.bound) if tensor.bound else Constant(0.0)
        yield TensorSpec(tensor.name, tensor.shape, Part.BODY, initial)
