"""Defines a transformer with a token for each column, and a token for the output.

Source: Gorishniy et al. 2021. `protos.plan.networks.transformer_networks` describes the computation. Parameters are
those of `protos.plan.architecture.network_tensors`, and there are no buffers. A new network contains NaN. Tokens are
(B, d + 1, w) with the output token first, or (S, B, d + 1, w) if parameters have a stack axis.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from protos.plan.architecture import FeatureTokensNetwork
from site_agent.trainer.models.layers import LayerNormalisation, Linear, Network, parameter


class FeatureTokens(Network):
    """The complete transformer. `represent` returns the output token after the last block."""

    def __init__(self, architecture: FeatureTokensNetwork, columns: int, outputs: int) -> None:
        super().__init__()
        width = architecture.width
        self.input = nn.ModuleDict({"tokenizer": Tokenizer(columns, width)})
        blocks = range(1, architecture.blocks + 1)
        self.body = nn.ModuleDict({f"block{number}": Block(architecture) for number in blocks})
        normalisation, linear = LayerNormalisation(width), Linear(width, outputs, bias=True)
        output = OrderedDict[str, nn.Module](normalisation=normalisation, activation=nn.ReLU(), linear=linear)
        self.head = nn.ModuleDict({"output": nn.Sequential(output)})

    def represent(self, rows: Tensor) -> tuple[Tensor]:
        """Return the network's representation, (B, w), of a batch of rows, (B, d)."""
        tokens = self.input["tokenizer"](rows)
        for block in self.body.values():
            tokens = block(tokens)
        return (tokens[..., 0, :],)

    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Return the logits, (B, C), of the representation (B, w)."""
        (token,) = representations
        logits: Tensor = self.head["output"](token)
        return logits


class Tokenizer(nn.Module):
    """Computes a token x_j·W_j + b_j for every column j. The output token, equal for every row, comes first."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.weight = parameter(columns, width)
        self.bias = parameter(columns, width)
        self.decision = parameter(width)

    def forward(self, rows: Tensor) -> Tensor:
        """Return a token for the output and for each column, (B, d + 1, w)."""
        # The batch is between the stack axis, if there is one, and the parameter's own axes.
        tokens = torch.addcmul(self.bias.unsqueeze(-3), rows.unsqueeze(-1), self.weight.unsqueeze(-3))
        return torch.cat((self.decision[..., None, None, :].expand(*tokens.shape[:-2], 1, -1), tokens), dim=-2)


class Block(nn.Module):
    """Computes x + attention(LN(x)), then x + feedforward(LN(x))."""

    def __init__(self, architecture: FeatureTokensNetwork) -> None:
        super().__init__()
        self._dropout = architecture.residual_dropout
        self.attention = Attention(architecture)
        self.feedforward = TokenFeedForward(architecture)

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply the layer to tokens, (B, tokens, w). The shape stays the same."""
        tokens = tokens + functional.dropout(self.attention(tokens), self._dropout, self.training)
        return tokens + functional.dropout(self.feedforward(tokens), self._dropout, self.training)


class Attention(nn.Module):
    """Computes softmax(q·k / √(w / heads))·v in every head, of normalised tokens. Vaswani et al. 2017, eq. 1."""

    def __init__(self, architecture: FeatureTokensNetwork) -> None:
        super().__init__()
        self._heads, self._dropout = architecture.heads, architecture.attention_dropout
        self.normalisation = LayerNormalisation(architecture.width)
        self.projections = Linear(architecture.width, 3 * architecture.width, bias=True)
        self.output = Linear(architecture.width, architecture.width, bias=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply the layer to tokens, (B, tokens, w). The shape stays the same."""
        projections = self.projections(self.normalisation(tokens))
        # (..., tokens, 3·w) to three of (..., heads, tokens, w / heads)
        by_head = projections.unflatten(-1, (3, self._heads, -1)).movedim(-4, -2)
        queries, keys, values = by_head.unbind(-4)
        dropout = self._dropout if self.training else 0.0
        attended = functional.scaled_dot_product_attention(queries, keys, values, None, dropout)
        output: Tensor = self.output(attended.transpose(-3, -2).flatten(-2))
        return output


class TokenFeedForward(nn.Module):
    """Computes W2·(ReLU(first half) ⊙ second half) of W1·LN(x), or W2·GELU(W1·LN(x)). Dropout precedes W2."""

    def __init__(self, architecture: FeatureTokensNetwork) -> None:
        super().__init__()
        self._dropout, self._is_gated = architecture.feedforward_dropout, architecture.activation == "reglu"
        self.normalisation = LayerNormalisation(architecture.width)
        inner = 2 * architecture.hidden if self._is_gated else architecture.hidden
        self.inner = Linear(architecture.width, inner, bias=True)
        self.outer = Linear(architecture.hidden, architecture.width, bias=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply the layer to tokens, (B, tokens, w). The shape stays the same."""
        hidden: Tensor = self.inner(self.normalisation(tokens))
        if self._is_gated:
            selected, gating = hidden.chunk(2, dim=-1)
            hidden = functional.relu(selected) * gating
        else:
            hidden = functional.gelu(hidden)
        outer: Tensor = self.outer(functional.dropout(hidden, self._dropout, self.training))
        return outer
