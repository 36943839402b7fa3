"""Torch and federated parameters: the only crossing.

All parameters of a network are laid into one flat tensor, the federated ones first and in the
manifest's order; each keeps its shape as a view. Taking in what was received, and the change that
goes out, are then one operation each, and the optimiser steps once for the whole network. The rules:

* `change` reads the federated stretch and nothing behind it; `federated` says what lies there;
* every array that is handed out is a copy, so that later training cannot reach into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from protos.architecture import TensorSpec
from protos.initial_values import initial_values

Vector: TypeAlias = npt.NDArray[np.float32]


class FlatNetwork:
    """A network whose parameters share one tensor.

    Attributes:
        network: its parameters are views into `parameter`.
        parameter: float32 of shape (numbers,), federated ones first.
        gradient: of the same shape; the gradients of the network's parameters are views into it.
        federated: name and shape of what `change` hands out, read from the layout itself.
    """

    def __init__(self, network: nn.Module, federated: Sequence[str]) -> None:
        """`federated` names the parameters that travel, in the manifest's order."""
        by_name = dict(network.named_parameters())
        names = [*federated, *(name for name in by_name if name not in set(federated))]
        if len(names) != len(by_name):
            raise ValueError("a federated parameter that the network does not have, or one named twice")
        sizes = [by_name[name].numel() for name in names]
        self.network = network
        self.parameter = nn.Parameter(torch.empty(sum(sizes)))
        self.gradient = torch.zeros_like(self.parameter)
        self.parameter.grad = self.gradient
        self.federated = tuple((name, tuple(by_name[name].shape)) for name in federated)
        self._federated_numbers = sum(sizes[: len(federated)])
        start = 0
        for name, size in zip(names, sizes, strict=True):
            inner, part = by_name[name], slice(start, start + size)
            view = self.parameter.data[part].view(inner.shape)
            inner.data = view.copy_(inner.data)
            inner.grad = self.gradient[part].view(inner.shape)
            start += size

    def start(self, tensors: Iterable[TensorSpec], seed: int) -> None:
        """Fill these parameters with their first values, by name and seed."""
        with torch.no_grad():
            for tensor in tensors:
                self.network.get_parameter(tensor.name).copy_(torch.from_numpy(initial_values(tensor, seed)))

    @property
    def federated_values(self) -> Tensor:
        """The federated parameters in place: float32 of shape (federated numbers,), in the manifest's order."""
        return self.parameter.data[: self._federated_numbers]

    @property
    def federated_gradient(self) -> Tensor:
        """Their gradient in place, of the same shape."""
        return self.gradient[: self._federated_numbers]

    def take_in(self, received: Vector, rate: float) -> None:
        """Set each federated parameter to (1 - rate) * own + rate * received.

        Args:
            received: float32 of shape (federated numbers,), in the manifest's order.
            rate: above 0 and at most 1; 1 overwrites.
        """
        own = self.federated_values
        if received.shape != own.shape or received.dtype != np.float32:
            raise ValueError("one float32 number for each federated one is needed")
        shared = torch.from_numpy(received)
        if rate == 1.0:
            own.copy_(shared)
        else:
            own.mul_(1.0 - rate).add_(shared, alpha=rate)

    def change(self, received: Vector) -> Vector:
        """The federated parameters minus what was received, both float32 of shape (federated numbers,)."""
        change: Vector = self.federated_values.numpy() - received
        return change

    def snapshot(self, into: Tensor | None = None) -> Tensor:
        """All numbers, private ones included: shape (numbers,), written over an earlier snapshot if given."""
        return self.parameter.data.clone() if into is None else into.copy_(self.parameter.data)

    def restore(self, snapshot: Tensor) -> None:
        """Set all numbers to those of a snapshot of this network."""
        self.parameter.data.copy_(snapshot)

    def values(self) -> dict[str, Vector]:
        """A copy of every parameter by name, private ones included; it stays at the site."""
        return {name: inner.detach().numpy().copy() for name, inner in self.network.named_parameters()}

    def load(self, values: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Set every parameter to what `values` returned, perhaps in another process.

        Raises:
            ValueError: names, shapes or types are not this network's.
        """
        wanted = {name: (tuple(inner.shape), "<f4") for name, inner in self.network.named_parameters()}
        if {name: (array.shape, array.dtype.str) for name, array in values.items()} != wanted:
            raise ValueError("values of another network")
        with torch.no_grad():
            for name, inner in self.network.named_parameters():
                inner.copy_(torch.from_numpy(np.array(values[name])))
