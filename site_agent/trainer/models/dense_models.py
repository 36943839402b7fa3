"""Defines networks of linear layers: dense and parallel networks, and CHFL's two columns.

Parameters are those of `protos.plan.architecture.network_tensors`, in names, order and shapes, and there are no
buffers. Rows are (B, d). A new network contains NaN, because the plan's seed gives the first values.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from protos.plan.architecture import ColumnsNetwork, DenseNetwork, ParallelNetwork
from site_agent.trainer.models.layers import Activation, Linear, Network, activation_of, parameter


class Chain(nn.Module):
    """Linear layers in sequence, each followed by the activation. Without layers, values stay unchanged."""

    def __init__(self, widths: Sequence[int], activation: Activation, first: int = 1) -> None:
        """Build a layer between each two neighbouring `widths`. The layers are numbered from `first`."""
        super().__init__()
        self._activation = activation
        for number, (inner, outer) in enumerate(pairwise(widths), start=first):
            self.add_module(f"layer{number}", Linear(inner, outer, bias=True))

    def forward(self, values: Tensor) -> Tensor:
        """Apply all layers: (B, first width) to (B, last width)."""
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
        """Return the last hidden layer, (B, last hidden width), of rows (B, d), before dropout."""
        return (self.body(self.input(rows)),)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
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
        """Return the results of the common and the unique extractor, (B, width of each), for rows (B, d)."""
        return self.common(rows[..., : self._common_columns]), self.unique(rows)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        values = functional.dropout(torch.cat(representations, dim=-1), self._dropout, self.training)
        *hidden, last = self.head.values()
        for layer in hidden:
            values = self._activation(layer(values))
        logits: Tensor = last(values)
        return logits


class Columns(Network):
    """CHFL's network: a common and a unique column of layers, whose last results are added. Each has a loss of its own.

    Source: Mori et al. 2022; `protos.plan.architecture` has the formula. The loss of the last of
    `common_outputs` trains the common column. The loss of `joint` then trains the unique column.
    """

    def __init__(self, architecture: ColumnsNetwork, columns: int, outputs: int, common: int) -> None:
        super().__init__()
        self._common_columns = common
        self.common = Column(architecture, common, outputs, strength=0.0)
        self.unique = Column(architecture, columns - common, outputs, strength=architecture.lateral)

    def common_outputs(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the results of all layers of the common column, (B, width of each). The last result is its logits."""
        hidden = self.common.hidden(rows[..., : self._common_columns], None)
        return *hidden, self.common.output(hidden[-1], None)

    def joint(self, rows: Tensor, common_outputs: tuple[Tensor, ...]) -> Tensor:
        """Return the logits (B, C) of both columns, for rows (B, d) and the result of `common_outputs`."""
        hidden = self.unique.hidden(rows[..., self._common_columns :], common_outputs)
        logits: Tensor = common_outputs[-1] + self.unique.output(hidden[-1], common_outputs[-2])
        return logits

    def represent(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the results of the last hidden layer of the common and of the unique column, for rows (B, d)."""
        common = self.common.hidden(rows[..., : self._common_columns], None)
        return common[-1], self.unique.hidden(rows[..., self._common_columns :], common)[-1]

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Return the logits, (B, C): the sum of the last layers of both columns."""
        common, unique = representations
        logits: Tensor = self.common.output(common, None) + self.unique.output(unique, common)
        return logits


class Column(nn.Module):
    """An MLP whose layers, from the second on, can also read the layers of another MLP."""

    def __init__(self, architecture: ColumnsNetwork, inputs: int, outputs: int, *, strength: float) -> None:
        super().__init__()
        self._activation: Activation = activation_of(architecture.activation)
        widths = (inputs, *architecture.hidden)
        for number, (inner, outer) in enumerate(pairwise(widths), start=1):
            self.add_module(f"layer{number}", LateralLinear(inner, outer, strength if number > 1 else 0.0))
        self.output = LateralLinear(widths[-1], outputs, strength)

    def hidden(self, rows: Tensor, other: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
        """Return the results of all hidden layers, from this column's inputs and the other column's layers."""
        results: list[Tensor] = []
        for index, layer in enumerate(list(self.children())[:-1]):
            values = results[-1] if results else rows
            results.append(self._activation(layer(values, other[index - 1] if other and index else None)))
        return tuple(results)


class LateralLinear(nn.Module):
    """A linear layer that computes W·z + b, plus strength·U·(the other column's values) if the strength is not 0."""

    def __init__(self, inputs: int, outputs: int, strength: float) -> None:
        super().__init__()
        self.weight = parameter(outputs, inputs)
        self.bias = parameter(outputs)
        self._strength = strength
        self.lateral = Linear(inputs, outputs, bias=False) if strength else None

    def forward(self, values: Tensor, other: Tensor | None) -> Tensor:
        """Return the layer's result, (B, outputs), for two inputs (B, inputs) of equal width."""
        mapped = functional.linear(values, self.weight, self.bias)
        if self.lateral is None or other is None:
            return mapped
        return torch.add(mapped, self.lateral(other), alpha=self._strength)
