"""Implements the network of "Global Layers" in the simplest way, for comparison with our network.

One nn.Linear(1, 16) per column in a loop, nn.MultiheadAttention, nn.BatchNorm1d that stays in
evaluation mode, the batch first. It shares no code with the network of the site agent, so equal
logits and gradients are evidence for both.

`attention_weights` chooses how attention is called, with equal results: True is the plain call,
`attention(x, x, x)[0]`, which computes the weights of attention for nobody; False is
`need_weights=False`, which lets torch use its fused kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from protos.plan.architecture import GlobalLayersNetwork


class FullyConnected(nn.Module):
    """Computes Dropout(SELU(Linear(BN(x))))."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.normalisation = nn.BatchNorm1d(inputs)
        self.linear = nn.Linear(inputs, outputs)
        self.activation = nn.SELU()
        self.dropout = nn.AlphaDropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, inputs) to (B, outputs)."""
        result: Tensor = self.dropout(self.activation(self.linear(self.normalisation(x))))
        return result


class FeedForward(nn.Module):
    """Computes W2·SELU(W1·Dropout(BN(x))). If there is a gate, SELU's result is multiplied by the gate's W3·x."""

    def __init__(self, channels: int, width: int, hidden: int, *, gate: bool, bias: bool, dropout: float) -> None:
        super().__init__()
        self.normalisation = nn.BatchNorm1d(channels)
        self.dropout = nn.AlphaDropout(dropout)
        self.inner = nn.Linear(width, hidden, bias=bias)
        self.gate = nn.Linear(width, hidden, bias=False) if gate else None
        self.activation = nn.SELU()
        self.outer = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, ..., width) to the same shape."""
        hidden = self.activation(self.inner(self.dropout(self.normalisation(x))))
        if self.gate is not None:
            hidden = hidden * self.gate(x)
        result: Tensor = self.outer(hidden)
        return result


class TransformerBlock(nn.Module):
    """Computes x = BN(x); x = attention(x, x, x) + x; SELU(FF(x)) + x."""

    def __init__(self, architecture: GlobalLayersNetwork, columns: int, *, attention_weights: bool) -> None:
        super().__init__()
        self.attention_weights = attention_weights
        width = architecture.entity_width
        self.normalisation = nn.BatchNorm1d(columns)
        self.attention = nn.MultiheadAttention(width, architecture.heads, bias=False, batch_first=True)
        self.feedforward = FeedForward(
            columns, width, width // 2, gate=architecture.gate, bias=False, dropout=architecture.dropout
        )
        self.activation = nn.SELU()

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, d, e) to the same shape."""
        x = self.normalisation(x)
        x = self.attention(x, x, x, need_weights=self.attention_weights)[0] + x
        result: Tensor = self.activation(self.feedforward(x)) + x
        return result


class ReferenceNetwork(nn.Module):
    """Maps rows (B, d) to logits (B, C)."""

    def __init__(
        self, architecture: GlobalLayersNetwork, columns: int, outputs: int, *, attention_weights: bool = True
    ) -> None:
        super().__init__()
        s, width, gate, dropout = (
            architecture.latent,
            architecture.entity_width,
            architecture.gate,
            architecture.dropout,
        )
        self.input_normalisation = nn.BatchNorm1d(columns) if architecture.input_normalisation else None
        self.embeddings = nn.ModuleList(nn.Linear(1, width) for _ in range(columns))
        self.token_normalisation = nn.BatchNorm1d(columns)
        self.blocks = nn.ModuleList(
            TransformerBlock(architecture, columns, attention_weights=attention_weights)
            for _ in range(architecture.transformer_blocks)
        )
        self.layer1 = FullyConnected(columns * width, 4 * s, dropout)
        self.layer2 = FeedForward(4 * s, 4 * s, s, gate=gate, bias=True, dropout=dropout)
        self.layer3 = FullyConnected(4 * s, 2 * s, dropout)
        self.layer4 = FeedForward(2 * s, 2 * s, s // 2, gate=gate, bias=True, dropout=dropout)
        self.layer5 = FullyConnected(2 * s, s, dropout)
        self.output_normalisation = nn.BatchNorm1d(s)
        self.output = nn.Linear(s, outputs)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, d) to (B, C)."""
        if self.input_normalisation is not None:
            x = self.input_normalisation(x)
        x = torch.stack([embed(x[:, column : column + 1]) for column, embed in enumerate(self.embeddings)], dim=1)
        x = self.token_normalisation(x)
        for block in self.blocks:
            x = block(x)
        x = self.layer1(x.flatten(1))
        x = x + self.layer2(x)
        x = self.layer3(x)
        x = x + self.layer4(x)
        logits: Tensor = self.output(self.output_normalisation(self.layer5(x)))
        return logits


def reference_name(name: str) -> str:
    """Return the reference's name of our parameter. The embedding is several parameters in the reference."""
    for ours, theirs in (
        ("input.normalisation", "input_normalisation"),
        ("input.embedding.normalisation", "token_normalisation"),
        ("head.output.normalisation", "output_normalisation"),
        ("head.output.linear", "output"),
        ("attention.projections.weight", "attention.in_proj_weight"),
        ("attention.output", "attention.out_proj"),
    ):
        name = name.replace(ours, theirs)
    if name.startswith("input.transformer"):
        number, _, rest = name.removeprefix("input.transformer").partition(".")
        return f"blocks.{int(number) - 1}.{rest}"
    return name.removeprefix("input.").removeprefix("body.").removeprefix("head.")


def head_major(values: Tensor, name: str, heads: int) -> Tensor:
    """Return our tensor in the order of nn.MultiheadAttention, where channel c of head h has the index h·width + c."""
    if name.endswith("attention.projections.weight"):
        width = len(values) // (3 * heads)
        return values.view(3, width, heads, -1).transpose(1, 2).reshape(values.shape)
    if name.endswith("attention.output.weight"):
        return values.view(len(values), -1, heads).transpose(1, 2).reshape(values.shape)
    return values


def reference_tensors(ours: dict[str, Tensor], heads: int) -> dict[str, Tensor]:
    """Return our parameters, or their gradients, under the reference's names and in the reference's order."""
    theirs = {}
    for name, values in ours.items():
        if name in ("input.embedding.weight", "input.embedding.bias"):
            kind = name.rpartition(".")[2]
            for column, row in enumerate(values):
                theirs[f"embeddings.{column}.{kind}"] = row.unsqueeze(1) if kind == "weight" else row
        else:
            theirs[reference_name(name)] = head_major(values, name, heads)
    return theirs


def copy_parameters(ours: nn.Module, reference: ReferenceNetwork, heads: int) -> None:
    """Copy the parameters of our network into the reference."""
    translated = reference_tensors({name: values.detach() for name, values in ours.named_parameters()}, heads)
    parameters = dict(reference.named_parameters())
    if translated.keys() != parameters.keys():
        raise ValueError(f"names differ: {sorted(translated.keys() ^ parameters.keys())}")
    with torch.no_grad():
        for name, values in translated.items():
            parameters[name].copy_(values)
