"""The manifest: exactly what a site sends in one round, computed from the plan alone.

The coordinator reads from it how long a contribution is, the gate refuses what it does not name,
and a hospital approves its digest. Changes travel in the manifest's order as one vector.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import assert_never

import numpy as np
import numpy.typing as npt

from protos.architecture import Part, TensorSpec, body_tensors, network_tensors
from protos.canonical import digest
from protos.ingredients import AllButNormalisation, Everything, Nothing, Parts
from protos.initial_values import initial_values
from protos.plan import EqualWeights, Plan, RowWeights

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Scalar:
    """One 64-bit integer at the end of the vector; `bound` is its largest magnitude at one site."""

    name: str
    bound: int


@dataclass(frozen=True)
class Manifest:
    """What travels from one site in one round.

    Attributes:
        tensors: the federated parameters whose changes travel, in the vector's order.
        scalars: the sums that the method needs beside them.
    """

    tensors: tuple[TensorSpec, ...]
    scalars: tuple[Scalar, ...]

    @cached_property
    def parameters(self) -> int:
        """Numbers in the vector of changes."""
        return sum(tensor.number_count for tensor in self.tensors)

    @cached_property
    def canonical(self) -> bytes:
        """Names, shapes and bounds as JSON with sorted keys."""
        content = {
            "tensors": [[tensor.name, list(tensor.shape)] for tensor in self.tensors],
            "scalars": [[scalar.name, scalar.bound] for scalar in self.scalars],
        }
        return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the canonical bytes, 32 bytes."""
        return digest("manifest", self.canonical)

    def views(self, vector: Float32) -> dict[str, Float32]:
        """The vector as named arrays that share its memory.

        Args:
            vector: float32 of shape (parameters,).
        """
        views, start = {}, 0
        for tensor in self.tensors:
            size = tensor.number_count
            views[tensor.name] = vector[start : start + size].reshape(tensor.shape)
            start += size
        return views

    def tensor_at(self, index: int) -> str:
        """The name of the tensor that holds the vector's number `index`."""
        start = 0
        for tensor in self.tensors:
            start += tensor.number_count
            if index < start:
                return tensor.name
        raise ValueError(f"{index} lies beyond the vector")

    def initial_parameters(self, seed: int) -> Float32:
        """The federated parameters before round 0, the same at every site and coordinator.

        Args:
            seed: the plan's.

        Returns:
            float32 of shape (parameters,), in the manifest's order.
        """
        vector = np.empty(self.parameters, np.float32)
        for tensor, view in zip(self.tensors, self.views(vector).values(), strict=True):
            view[...] = initial_values(tensor, seed)
        return vector


def manifest_of(plan: Plan) -> Manifest:
    """What the plan makes every site send."""
    return Manifest(tensors=_federated_tensors(plan), scalars=_scalars(plan))


def _federated_tensors(plan: Plan) -> tuple[TensorSpec, ...]:
    match plan.ingredients.federated:
        case Nothing():
            return ()
        case Parts(parts=(Part.BODY,)):
            return tuple(tensor for tensor in body_tensors(plan.architecture) if tensor.part is Part.BODY)
        case Parts(parts=parts):
            return tuple(tensor for tensor in _network(plan) if tensor.part in parts)
        case Everything():
            return _network(plan)
        case AllButNormalisation():
            return tuple(tensor for tensor in _network(plan) if not tensor.is_normalisation)
        case other:
            assert_never(other)


def _network(plan: Plan) -> tuple[TensorSpec, ...]:
    """The whole network; a size that the plan leaves to the sites belongs to a part that is not read."""
    return network_tensors(plan.architecture, columns=len(plan.columns) or 1, outputs=plan.outputs or 1)


def _scalars(plan: Plan) -> tuple[Scalar, ...]:
    match plan.weighting:
        case EqualWeights():
            return ()
        case RowWeights(largest_rows=largest_rows):
            return (Scalar("rows", largest_rows),)
        case other:
            assert_never(other)


def describe_difference(expected: Manifest, found: Mapping[str, tuple[int, ...]]) -> str:
    """Where a network's federated tensors differ from the manifest, in words; empty if nowhere.

    Args:
        expected: what the plan says.
        found: the shape of each tensor by name.
    """
    wanted = {tensor.name: tensor.shape for tensor in expected.tensors}
    lines = [f"{name} is missing" for name in wanted.keys() - found.keys()]
    lines += [f"{name} is not in the plan" for name in found.keys() - wanted.keys()]
    lines += [
        f"{name} has shape {found[name]}, the plan says {wanted[name]}"
        for name in wanted.keys() & found.keys()
        if wanted[name] != found[name]
    ]
    return "; ".join(sorted(lines)[:5])
