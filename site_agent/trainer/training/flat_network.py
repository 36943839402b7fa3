"""Converts PyTorch's tensors to shared parameters and back. No other file makes this conversion.

All parameters of a network are in two flat tensors: the federated ones, in the manifest's order, and the private ones.
Each keeps its shape as a view. So loading received values, and computing the update, are one operation each. An
optimiser makes one step for each flat tensor. The rules:

* `update` reads the federated tensor, which has no private number; `tensors` lists its content;
* every returned array is a copy, so later training cannot change it.

The state of a training is named tensors; the names of a part begin with its prefix, so that the states of several parts
can be joined and separated again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from protos.plan.architecture import TensorSpec
from protos.plan.initial_values import initial_values, secret_values

State: TypeAlias = dict[str, Tensor]


def prefixed(prefix: str, state: State) -> State:
    """Return the same tensors under new names: the prefix, a slash and the old name."""
    return {f"{prefix}/{name}": tensor for name, tensor in state.items()}


def part_of(state: State, prefix: str) -> State:
    """Return the tensors whose names have this prefix, under their names without it. Undoes `prefixed`."""
    start = prefix + "/"
    return {name.removeprefix(start): tensor for name, tensor in state.items() if name.startswith(start)}


Vector: TypeAlias = npt.NDArray[np.float32]


class FlatNetwork:
    """A network whose parameters are stored in two flat tensors.

    The parameters of `network` are views into `federated` and `private`: float32 of shape (numbers,). `tensors` has
    name and shape of each tensor in `federated`, read from the network. All tensors are on `device`, where the
    network's rows must be.
    """

    def __init__(self, network: nn.Module, federated: Sequence[str], device: str = "cpu") -> None:
        """Move the parameters into flat tensors on the device. `federated` names the shared parameters, in order."""
        by_name = dict(network.named_parameters())
        shared = set(federated)
        private = [name for name in by_name if name not in shared]
        if len(federated) + len(private) != len(by_name):
            raise ValueError("a federated parameter that the network does not have, or one named twice")
        self.network, self.device = network, torch.device(device)
        self.tensors = tuple((name, tuple(by_name[name].shape)) for name in federated)
        self.federated = _lay([by_name[name] for name in federated], self.device)
        self.private = _lay([by_name[name] for name in private], self.device)
        for module in network.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(self.device))

    @property
    def stretches(self) -> list[nn.Parameter]:
        """The flat tensors that are not empty: `federated`, `private`, or both."""
        return [stretch for stretch in (self.federated, self.private) if stretch.numel()]

    def start(self, tensors: Iterable[TensorSpec], origin: int | bytes) -> None:
        """Set the named parameters to initial values from a public seed or 32 secret bytes."""
        with torch.no_grad():
            for tensor in tensors:
                first = initial_values(tensor, origin) if isinstance(origin, int) else secret_values(tensor, origin)
                self.network.get_parameter(tensor.name).copy_(torch.from_numpy(first))

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of `stretches`, in the same order. They share memory with the network (views, not copies)."""
        return [stretch.grad for stretch in self.stretches if stretch.grad is not None]

    def zero_gradients(self) -> None:
        for gradient in self.gradients:
            gradient.zero_()

    @property
    def federated_values(self) -> Tensor:
        """The shared parameters without their gradient: a view, not a copy."""
        return self.federated.data

    @property
    def federated_gradient(self) -> Tensor:
        """The gradient of the shared parameters, in the parameters' shape: a view, not a copy."""
        assert self.federated.grad is not None
        return self.federated.grad

    def take_in(self, received: Tensor, rate: float) -> None:
        """Set each shared parameter to (1 - rate) * own + rate * received. The rate is above 0; 1 overwrites.

        `received` is float32 of the shape of `federated`.
        """
        own = self.federated_values
        if received.shape != own.shape or received.dtype != torch.float32:
            raise ValueError("one float32 number for each federated one is needed")
        if rate == 1.0:
            own.copy_(received)
        else:
            own.mul_(1.0 - rate).add_(received.to(self.device), alpha=rate)

    def update(self, received: Tensor) -> Tensor:
        """Return the shared minus the received parameters, float32 of the shape of `federated`, on the CPU."""
        return self.federated_values.cpu() - received.cpu()

    def state(self) -> State:
        """Return a copy of all numbers, including private parameters and buffers."""
        buffers = {name: buffer.clone() for name, buffer in self.network.named_buffers()}
        numbers = {"federated": self.federated.data.clone(), "private": self.private.data.clone()}
        return numbers | prefixed("buffer", buffers)

    def restore(self, state: State) -> None:
        """Load the parameters of a saved state, which must have the same layout."""
        self.federated.data.copy_(state["federated"])
        self.private.data.copy_(state["private"])
        kept = part_of(state, "buffer")
        for name, buffer in self.network.named_buffers():
            buffer.copy_(kept[name])

    def adopt(self, other: FlatNetwork) -> None:
        """Set all numbers to the numbers of another network with the same layout."""
        self.federated.data.copy_(other.federated.data)
        self.private.data.copy_(other.private.data)
        for own, theirs in zip(self.network.buffers(), other.network.buffers(), strict=True):
            own.copy_(theirs)

    def values(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return a copy of every parameter and buffer by name, including private ones. The copy stays at the site."""
        inner = {name: value.detach() for name, value in self.network.named_parameters()}
        inner |= dict(self.network.named_buffers())
        return {name: value.cpu().numpy().copy() for name, value in inner.items()}

    def load(self, values: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Set every parameter and buffer to a result of `values`. Raise ValueError if these are of another network."""
        mine = dict(self.network.named_parameters()) | dict(self.network.named_buffers())
        wanted = {name: (tuple(inner.shape), inner.detach().cpu().numpy().dtype.str) for name, inner in mine.items()}
        if {name: (array.shape, array.dtype.str) for name, array in values.items()} != wanted:
            raise ValueError("values of another network")
        with torch.no_grad():
            for name, inner in mine.items():
                inner.copy_(torch.from_numpy(np.array(values[name])))


def _lay(parameters: Sequence[nn.Parameter], device: torch.device) -> nn.Parameter:
    """Move parameters into one new flat tensor. The parameters and their gradients become views of this tensor."""
    flat = nn.Parameter(torch.empty(sum(inner.numel() for inner in parameters), device=device))
    flat.grad = torch.zeros_like(flat)
    start = 0
    for inner in parameters:
        part, shape = slice(start, start + inner.numel()), inner.shape
        inner.data = flat.data[part].view(shape).copy_(inner.data)
        inner.grad = flat.grad[part].view(shape)
        start = part.stop
    return flat
