"""Defines a transformer with a token for each column, a token for each word of a note, and a token for the output.

Source: Gorishniy et al. 2021. `protos.plan.networks.transformer_networks` describes the computation. Parameters are
those of `protos.plan.architecture.network_tensors`, and there are no buffers. A new network contains NaN. Tokens are
(B, d + 1, w) with the output token first, or (S, B, d + 1, w) if parameters have a stack axis. With a note, d is the
number of other columns and of the note's places. Places are the last columns of a row; see
`site_agent.trainer.data.columns.in_order`.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from protos.plan.architecture import FeatureTokensNetwork, NoteSize
from site_agent.trainer.models.layers import LayerNormalisation, Linear, Network, parameter


class FeatureTokens(Network):
    """The complete transformer. `represent` returns the output token after the last block."""

    def __init__(self, architecture: FeatureTokensNetwork, columns: int, outputs: int) -> None:
        super().__init__()
        width, note = architecture.width, architecture.note
        tokenizer = Tokenizer(columns, width) if note is None else WordTokenizer(note, columns - note.columns, width)
        self.input = nn.ModuleDict({"tokenizer": tokenizer})
        blocks = range(1, architecture.blocks + 1)
        self.body = nn.ModuleDict({f"block{number}": Block(architecture) for number in blocks})
        normalisation, linear = LayerNormalisation(width), Linear(width, outputs, bias=True)
        output = OrderedDict[str, nn.Module](normalisation=normalisation, activation=nn.ReLU(), linear=linear)
        self.head = nn.ModuleDict({"output": nn.Sequential(output)})

    def represent(self, rows: Tensor) -> tuple[Tensor]:
        """Return the network's representation, (B, w), of a batch of rows, (B, d)."""
        tokens, is_word = self.input["tokenizer"](rows)
        for block in self.body.values():
            tokens = block(tokens, is_word)
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

    def forward(self, rows: Tensor) -> tuple[Tensor, None]:
        """Return a token for each column and for the output, (B, d + 1, w). All tokens take part in attention."""
        return _decided(self.decision, _of_columns(rows, self.weight, self.bias)), None


class WordTokenizer(nn.Module):
    """Computes a token W[c_j] + b_j for the word at place j of a note, where c_j is the word's bucket.

    The tokens of the output and of other columns come first.
    """

    def __init__(self, note: NoteSize, others: int, width: int) -> None:
        """Create the embedding tables. `others` is the number of columns before the note's columns."""
        super().__init__()
        self._buckets, self._longest, self._others = note.buckets, note.longest, max(others, 0)
        self.weight = parameter(note.buckets, width)
        self.bias = parameter(note.longest, width)
        self.decision = parameter(width)
        if self._others:
            self.column_weight = parameter(self._others, width)
            self.column_bias = parameter(self._others, width)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return tokens (B, n, w) of rows (B, d), and whether each token takes part in attention, (B, 1, 1, n)."""
        codes = (rows[..., -self._longest :] * self._buckets + 0.5).clamp(0, self._buckets).long()
        places = (codes - 1).clamp(min=0)
        if self.weight.dim() == 3:  # the tables of all copies in a stack are joined into one long table
            places = places + torch.arange(len(self.weight), device=rows.device)[:, None, None] * self._buckets
        words = functional.embedding(places, self.weight.reshape(-1, self.weight.shape[-1]))
        tokens = words + self.bias.unsqueeze(-3)
        if self._others:
            of_columns = _of_columns(rows[..., : self._others], self.column_weight, self.column_bias)
            tokens = torch.cat((of_columns, tokens), dim=-2)
        always = codes.new_ones((*codes.shape[:-1], self._others + 1))
        is_word = torch.cat((always, codes), dim=-1) > 0
        return _decided(self.decision, tokens), is_word[..., None, None, :]


def _of_columns(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return x_j·W_j + b_j for each column j: (B, d) to (B, d, w)."""
    # The batch is between the stack axis, if there is one, and the parameter's own axes.
    return torch.addcmul(bias.unsqueeze(-3), rows.unsqueeze(-1), weight.unsqueeze(-3))


def _decided(decision: Tensor, tokens: Tensor) -> Tensor:
    """Put the output token before the other tokens."""
    return torch.cat((decision[..., None, None, :].expand(*tokens.shape[:-2], 1, -1), tokens), dim=-2)


class Block(nn.Module):
    """Computes x + attention(LN(x)), then x + feedforward(LN(x))."""

    def __init__(self, architecture: FeatureTokensNetwork) -> None:
        super().__init__()
        self._dropout = architecture.residual_dropout
        self.attention = Attention(architecture)
        self.feedforward = TokenFeedForward(architecture)

    def forward(self, tokens: Tensor, is_word: Tensor | None) -> Tensor:
        """Apply the layer to tokens, (B, tokens, w). The shape stays the same."""
        tokens = tokens + functional.dropout(self.attention(tokens, is_word), self._dropout, self.training)
        return tokens + functional.dropout(self.feedforward(tokens), self._dropout, self.training)


class Attention(nn.Module):
    """Computes softmax(q·k / √(w / heads))·v in every head, of normalised tokens. Vaswani et al. 2017, eq. 1."""

    def __init__(self, architecture: FeatureTokensNetwork) -> None:
        super().__init__()
        self._heads, self._dropout = architecture.heads, architecture.attention_dropout
        self.normalisation = LayerNormalisation(architecture.width)
        self.projections = Linear(architecture.width, 3 * architecture.width, bias=True)
        self.output = Linear(architecture.width, architecture.width, bias=True)

    def forward(self, tokens: Tensor, is_word: Tensor | None) -> Tensor:
        """Apply the layer to tokens (B, tokens, w). The mask (B, 1, 1, tokens) excludes tokens without a word."""
        projections = self.projections(self.normalisation(tokens))
        # (..., tokens, 3·w) to three of (..., heads, tokens, w / heads)
        by_head = projections.unflatten(-1, (3, self._heads, -1)).movedim(-4, -2)
        queries, keys, values = by_head.unbind(-4)
        dropout = self._dropout if self.training else 0.0
        attended = functional.scaled_dot_product_attention(queries, keys, values, is_word, dropout)
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
