"""Defines the neural network of "Global Layers", arranged for fast training of small batches on one thread.

Parameters are those of `protos.plan.architecture.network_tensors`, in names, order and shapes, and there are no
buffers. Up to the last transformer block the batch is the last axis, so every head of attention reads contiguous
memory. From layer 1 on the batch is the first axis, because products of few rows with large matrices are then a quarter
to a third faster. The rules:

* a new network contains NaN, because the plan's seed gives the first values;
* the normalisation is affine, γ·x/√(1 + 1e-5) + β: it neither measures nor stores anything about the patients;
* only dropout behaves differently between training and evaluation.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from protos.plan.architecture import GlobalLayersNetwork
from site_agent.trainer.models.layers import FeedForward, FullyConnected, Linear, Network, Normalisation, parameter
from site_agent.trainer.models.transformer import TransformerBlock


class GlobalLayers(Network):
    """The complete network: `input`, then `body`, then `head`.

    Source: Obeidi, "Global Layers", with batch normalisation as an affine map, as in the authors'
    experiment. `input` maps (B, d) to (B, 4s), `body` to (B, 2s), `head` to (B, C).
    """

    def __init__(self, architecture: GlobalLayersNetwork, columns: int, outputs: int) -> None:
        super().__init__()
        self._input_dropout = architecture.input_dropout
        self.input = InputPart(architecture, columns)
        self.body = BodyPart(architecture)
        self.head = HeadPart(architecture, outputs)

    def represent(self, rows: Tensor) -> tuple[Tensor]:
        """Return the body's result (B, 2s) for rows (B, d)."""
        if self._input_dropout:
            rows = functional.dropout(rows, self._input_dropout, self.training)
        return (self.body(self.input(rows)),)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        logits: Tensor = self.head(representations[0])
        return logits


class InputPart(nn.Module):
    """The first part of the network: embedding, transformer blocks and layer 1. Its shapes depend on the columns."""

    def __init__(self, architecture: GlobalLayersNetwork, columns: int) -> None:
        super().__init__()
        self.normalisation = Normalisation(columns) if architecture.input_normalisation else None
        width = architecture.entity_width if architecture.entities else 1
        self.embedding = Embedding(columns, width) if architecture.entities else None
        for block in range(1, architecture.transformer_blocks + 1):
            self.add_module(f"transformer{block}", TransformerBlock(architecture, columns))
        self.layer1 = FullyConnected(columns * width, 4 * architecture.latent, architecture.dropout)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the result of the input layers, (B, 4s), for rows (B, d)."""
        if self.normalisation is not None:
            rows = self.normalisation(rows)
        if self.embedding is not None:
            tokens = self.embedding(rows.mT.contiguous())
            for block in self.children():
                if isinstance(block, TransformerBlock):
                    tokens = block(tokens)
            rows = tokens.transpose(-3, -1).flatten(-2)  # side by side for all columns: (B, d·e)
        layer1: Tensor = self.layer1(rows)
        return layer1


class BodyPart(nn.Module):
    """The middle part of the network: layers 2 to 4, whose shapes are the same at every site."""

    def __init__(self, architecture: GlobalLayersNetwork) -> None:
        super().__init__()
        latent, gate, dropout = architecture.latent, architecture.gate, architecture.dropout
        self.layer2 = FeedForward(4 * latent, 4 * latent, latent, gate=gate, bias=True, dropout=dropout)
        self.layer3 = FullyConnected(4 * latent, 2 * latent, dropout)
        self.layer4 = FeedForward(2 * latent, 2 * latent, latent // 2, gate=gate, bias=True, dropout=dropout)

    def forward(self, wide: Tensor) -> Tensor:
        """Return the result of the body's layers, (B, 2s), for the result of the input layers, (B, 4s)."""
        wide = self.layer2(wide) + wide
        middle: Tensor = self.layer3(wide)
        narrow: Tensor = self.layer4(middle)
        return narrow + middle


class HeadPart(nn.Module):
    """The last part of the network: layer 5 and the logits. Its shapes depend on the outcome."""

    def __init__(self, architecture: GlobalLayersNetwork, outputs: int) -> None:
        super().__init__()
        self.layer5 = FullyConnected(2 * architecture.latent, architecture.latent, architecture.dropout)
        linear = Linear(architecture.latent, outputs, bias=True)
        self.output = nn.Sequential(OrderedDict(normalisation=Normalisation(architecture.latent), linear=linear))

    def forward(self, middle: Tensor) -> Tensor:
        """Return the logits (B, C) for the result of the body, (B, 2s)."""
        logits: Tensor = self.output(self.layer5(middle))
        return logits


class Embedding(nn.Module):
    """Maps every column by its own Linear(1 -> e), then applies BN over the columns."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.weight = parameter(columns, width)
        self.bias = parameter(columns, width)
        self.normalisation = Normalisation(columns)

    def forward(self, columns: Tensor) -> Tensor:
        """Return a token of e numbers for each column and row, (e, d, B), from columns of rows, (d, B)."""
        # Transposed and copied (2·d·e numbers), so that the tokens are contiguous.
        weight, bias = self.weight.mT.contiguous(), self.bias.mT.contiguous()
        tokens: Tensor = self.normalisation(
            torch.addcmul(bias.unsqueeze(-1), weight.unsqueeze(-1), columns.unsqueeze(-3))
        )
        return tokens
