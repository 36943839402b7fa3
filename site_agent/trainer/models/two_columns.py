"""Defines CHFL's network: two columns of layers. Each column can be trained on its own loss.

Source: Mori et al. 2022; `protos.plan.networks.column_networks` has the formula. Parameters are those of
`protos.plan.architecture.network_tensors`; a new network contains NaN. To step the common column on its own loss and
then the unique one on the joint loss, a site calls

    outputs = network.common_outputs(rows)     # the loss of outputs[-1] trains the common column
    with torch.no_grad(): outputs = network.common_outputs(rows)    # again, after its step
    logits = network.joint(rows, outputs)      # the loss of these trains the unique column
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from protos.plan.architecture import ColumnsNetwork
from site_agent.trainer.models.layers import Activation, Linear, Network, activation_of, linear_map, parameter


class Columns(Network):
    """A network with a common and a unique column. Its logits are the sum of both columns' last results."""

    def __init__(self, architecture: ColumnsNetwork, columns: int, outputs: int, common: int) -> None:
        super().__init__()
        self._common_columns = common
        self.common = Column(architecture, common, outputs, strength=0.0)
        self.unique = Column(architecture, columns - common, outputs, strength=architecture.lateral)

    def common_outputs(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the results of all layers of the common column, (B, width of each). The last are its logits (B, C)."""
        hidden = self.common.hidden(rows[..., : self._common_columns], None)
        return *hidden, self.common.output(hidden[-1], None)

    def joint(self, rows: Tensor, common_outputs: tuple[Tensor, ...]) -> Tensor:
        """Return logits (B, C) of both columns, from rows (B, d) and the result of `common_outputs`."""
        hidden = self.unique.hidden(rows[..., self._common_columns :], common_outputs)
        logits: Tensor = common_outputs[-1] + self.unique.output(hidden[-1], common_outputs[-2])
        return logits

    def represent(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Map (B, d) to the results of the last hidden layers of the common and the unique column."""
        common = self.common.hidden(rows[..., : self._common_columns], None)
        return common[-1], self.unique.hidden(rows[..., self._common_columns :], common)[-1]

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Add the results of both columns' last layers: (B, C)."""
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
            self.add_module(f"layer{number}", Hearing(inner, outer, strength if number > 1 else 0.0))
        self.output = Hearing(widths[-1], outputs, strength)

    def hidden(self, rows: Tensor, heard: Sequence[Tensor] | None) -> tuple[Tensor, ...]:
        """Return the results of all hidden layers, from this column's inputs and the other column's layers."""
        results: list[Tensor] = []
        for index, layer in enumerate(list(self.children())[:-1]):
            values = results[-1] if results else rows
            results.append(self._activation(layer(values, heard[index - 1] if heard and index else None)))
        return tuple(results)


class Hearing(nn.Module):
    """A linear layer that computes W·z + b, plus strength·U·(the other column's values) if the strength is not 0."""

    def __init__(self, inputs: int, outputs: int, strength: float) -> None:
        super().__init__()
        self.weight = parameter(outputs, inputs)
        self.bias = parameter(outputs)
        self._strength = strength
        self.lateral = Linear(inputs, outputs, bias=False) if strength else None

    def forward(self, values: Tensor, heard: Tensor | None) -> Tensor:
        """Map two inputs (B, inputs) of equal width to (B, outputs)."""
        mapped = linear_map(values, self.weight, self.bias)
        if self.lateral is None or heard is None:
            return mapped
        return torch.add(mapped, self.lateral(heard), alpha=self._strength)
