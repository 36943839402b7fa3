"""Defines networks of linear layers: dense, parallel and the chains that both use.

Parameters are those of `protos.plan.architecture.network_tensors`, in names, order and shapes, and there are no
buffers. Rows are (B, d), or (S, B, d) if parameters have a stack axis. A new network contains NaN, because the plan's
seed gives the first values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from protos.plan.architecture import DenseNetwork, ParallelNetwork
from site_agent.trainer.models.layers import Activation, Linear, Network, activation_of


class Chain(nn.Module):
    """Linear layers in sequence, each followed by the activation. Without layers, values stay unchanged."""

    def __init__(self, widths: Sequence[int], activation: Activation, first: int = 1) -> None:
        """Build a layer between each two neighbouring `widths`. The layers are numbered from `first`."""
        super().__init__()
        self._activation = activation
        for number, (inner, outer) in enumerate(pairwise(widths), start=first):
            self.add_module(f"layer{number}", Linear(inner, outer, bias=True))

    def forward(self, values: Tensor) -> Tensor:
        """Map (B, first width) to (B, last width)."""
        for layer in self.children():
            values = self._activation(layer(values))
        return values


class Dense(Network):
    """A logistic or linear regression, or an MLP. `represent` returns the inputs of the last layer."""

    def __init__(self, architecture: DenseNetwork, columns: int, outputs: int) -> None:
        super().__init__()
        self._dropout = architecture.dropout
        activation, hidden = activation_of(architecture.activation), architecture.hidden
        self.input = Chain((columns, *hidden[:1]), activation)
        self.body = Chain(hidden, activation, first=2)
        last = Linear(hidden[-1] if hidden else columns, outputs, bias=True)
        self.head = nn.ModuleDict({f"layer{len(hidden) + 1}": last})

    def represent(self, rows: Tensor) -> tuple[Tensor]:
        """Map (B, d) to (B, last hidden width), before dropout."""
        return (self.body(self.input(rows)),)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Apply the last layer after dropout: (B, last hidden width) to (B, C)."""
        (values,) = representations
        values = functional.dropout(values, self._dropout, self.training)
        for last in self.head.values():
            values = last(values)
        return values


class Parallel(Network):
    """A network with two extractors and one head. Tavakoli et al. 2024, "FENDA-FL", section 3."""

    def __init__(self, architecture: ParallelNetwork, columns: int, outputs: int, common: int) -> None:
        super().__init__()
        self._dropout, self._common_columns = architecture.dropout, common
        self._activation: Activation = activation_of(architecture.activation)
        activation = self._activation
        self.common = Chain((common, *architecture.common), activation)
        self.unique = Chain((columns, *architecture.unique), activation)
        widths = (architecture.common[-1] + architecture.unique[-1], *architecture.head)
        hidden = {f"layer{number}": Linear(*pair, bias=True) for number, pair in enumerate(pairwise(widths), start=1)}
        self.head = nn.ModuleDict(hidden | {"output": Linear(widths[-1], outputs, bias=True)})

    def represent(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, d) to the results of the common and the unique extractor, (B, width of each)."""
        return self.common(rows[..., : self._common_columns]), self.unique(rows)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Join both extractors' results, and apply dropout and the head: to (B, C)."""
        values = functional.dropout(torch.cat(representations, dim=-1), self._dropout, self.training)
        *hidden, last = self.head.values()
        for layer in hidden:
            values = self._activation(layer(values))
        logits: Tensor = last(values)
        return logits
