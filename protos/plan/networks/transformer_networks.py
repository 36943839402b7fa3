"""Lists the tensors of a transformer with one token for each column and one token for the output.

Source: Gorishniy et al. 2021, "Revisiting Deep Learning Models for Tabular Data", section 3.3: a tokenizer x_j·W_j +
b_j, a token for the output (CLS), blocks that normalise before attention and before the feed-forward part, then
Linear(ReLU(LayerNorm(CLS))). The paper's code skips the very first normalisation. Here all blocks are alike. With width
w, hidden width h, d columns and C outputs:

    part   layer      tensors
    input  tokenizer  weight and bias (d, w), decision (w,)
    body   block1..   attention: normalisation (w), projections w -> 3w, output w -> w;
                      feedforward: normalisation (w), inner w -> h (twice for ReGLU), outer h -> w
    head   output     normalisation (w), linear w -> C

All maps have biases. The blocks depend on neither columns nor outputs.

With `note` each word of a note also has a token. Places without a word take no part in attention. The weight then has
one row for each bucket of words, and the bias one row for each place (Vaswani et al. 2017, section 3.4, with learned
places). The note's own columns are the last ones. If d other columns are before them, the tokenizer also has
column_weight and column_bias (d, w). Their tokens are between the deciding token and the words.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, StrictInt, model_validator

from protos.plan.documents import Document
from protos.plan.networks.network_tensors import Rate, Sizes, TensorSpec, Uniform, Width, linear, normalisation, spec

LARGEST_NOTE_BUCKETS = 2048
LONGEST_NOTE = 512


class NoteSize(Document):
    """Limits of a note with word order: the number of hash buckets for words, and the largest number of words."""

    buckets: Annotated[StrictInt, Field(ge=2, le=LARGEST_NOTE_BUCKETS)]
    longest: Annotated[StrictInt, Field(ge=2, le=LONGEST_NOTE)]

    @property
    def columns(self) -> int:
        """Return the number of columns for a note: first the counts of its words, then the places of its words."""
        return self.buckets + self.longest

    def __str__(self) -> str:
        """Return the limits of a note as text, such as `200 words in 512 buckets`."""
        return f"{self.longest} words in {self.buckets} buckets"


class FeatureTokensNetwork(Document):
    """The width of a token, the numbers of heads and blocks, and the activation: the paper's ReGLU or GELU."""

    name: Literal["feature-tokens"]
    width: Annotated[StrictInt, Field(ge=1, le=4096)] = 96
    heads: Annotated[StrictInt, Field(ge=1, le=1024)] = 8
    blocks: Annotated[StrictInt, Field(ge=1, le=64)] = 3
    hidden: Width = 128
    activation: Literal["reglu", "gelu"] = "reglu"
    attention_dropout: Rate = 0.2
    feedforward_dropout: Rate = 0.1
    residual_dropout: Rate = 0.0
    note: NoteSize | None = None

    @model_validator(mode="after")
    def _heads_share_the_width_evenly(self) -> FeatureTokensNetwork:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        """Yield every tensor in the order of the network's parameters."""
        width, columns, initial = self.width, sizes.columns, Uniform(1.0 / math.sqrt(self.width))
        rows = (columns, columns) if self.note is None else (self.note.buckets, self.note.longest)
        for kind, count in zip(("weight", "bias"), rows, strict=True):
            yield spec(f"input.tokenizer.{kind}", (count, width), initial)
        yield spec("input.tokenizer.decision", (width,), initial)
        if self.note is not None and columns > self.note.columns:
            for kind in ("column_weight", "column_bias"):
                yield spec(f"input.tokenizer.{kind}", (columns - self.note.columns, width), initial)
        inner = 2 * self.hidden if self.activation == "reglu" else self.hidden
        for number in range(1, self.blocks + 1):
            attention, feedforward = f"body.block{number}.attention", f"body.block{number}.feedforward"
            yield from normalisation(attention, width)
            yield from linear(f"{attention}.projections", width, 3 * width, bias=True)
            yield from linear(f"{attention}.output", width, width, bias=True)
            yield from normalisation(feedforward, width)
            yield from linear(f"{feedforward}.inner", width, inner, bias=True)
            yield from linear(f"{feedforward}.outer", self.hidden, width, bias=True)
        yield from normalisation("head.output", width)
        yield from linear("head.output.linear", width, sizes.outputs, bias=True)
