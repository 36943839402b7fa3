"""Torch and federated parameters: the only crossing.

All parameters of a network are laid into one flat tensor, the federated ones first and in the
manifest's order; each keeps its shape as a view. Taking in what was received, and the change that
goes out, are then one operation each, and the optimiser steps once for the whole network.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from protos.architecture import TensorSpec
from protos.initial_values import initial_values


class FlatNetwork:
    """A network whose parameters share one tensor."""

    def __init__(self, network: nn.Module, federated: Sequence[str]) -> None:
        """`federated` names the parameters that travel, in the manifest's order."""
        by_name = dict(network.named_parameters())
        names = [*federated, *(name for name in by_name if name not in set(federated))]
        sizes = [by_name[name].numel() for name in names]
        self.network = network
        self.parameter = nn.Parameter(torch.empty(sum(sizes)))
        self.parameter.grad = torch.zeros_like(self.parameter)
        self._federated = sum(sizes[: len(federated)])
        start = 0
        for name, size in zip(names, sizes, strict=True):
            inner, part = by_name[name], slice(start, start + size)
            inner.data = self.parameter.data[part].view(inner.shape)
            inner.grad = self.parameter.grad[part].view(inner.shape)
            start += size

    def start(self, tensors: Iterable[TensorSpec], seed: int) -> None:
        """Fill these parameters with their first values, by name and seed."""
        with torch.no_grad():
            for tensor in tensors:
                self.network.get_parameter(tensor.name).copy_(torch.from_numpy(initial_values(tensor, seed)))

    def take_in(self, received: npt.NDArray[np.float32], rate: float) -> None:
        """Set each federated parameter to (1 - rate) * own + rate * received.

        Args:
            received: float32 of shape (federated numbers,), in the manifest's order.
            rate: above 0 and at most 1; 1 overwrites.
        """
        own = self.parameter.data[: self._federated]
        shared = torch.from_numpy(received)
        if rate == 1.0:
            own.copy_(shared)
        else:
            own.mul_(1.0 - rate).add_(shared, alpha=rate)

    def change(self, received: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The federated parameters minus what was received: float32, in the manifest's order."""
        change: npt.NDArray[np.float32] = self.parameter.data[: self._federated].numpy() - received
        return change

    def values(self) -> dict[str, npt.NDArray[np.float32]]:
        """A copy of every parameter by name, private ones included; it stays at the site."""
        return {name: inner.detach().numpy().copy() for name, inner in self.network.named_parameters()}

    def restore(self, values: dict[str, npt.NDArray[np.float32]]) -> None:
        """Set every parameter to what `values` returned earlier."""
        with torch.no_grad():
            for name, inner in self.network.named_parameters():
                inner.copy_(torch.from_numpy(values[name]))
