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
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, StrictInt, model_validator

from protos.plan.documents import Document
from protos.plan.networks.network_tensors import Rate, Sizes, TensorSpec, Uniform, Width, linear, normalisation, spec


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

    @model_validator(mode="after")
    def _heads_share_the_width_evenly(self) -> FeatureTokensNetwork:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        """Yield every tensor in the order of the network's parameters."""
        width, columns, initial = self.width, sizes.columns, Uniform(1.0 / math.sqrt(self.width))
        for kind in ("weight", "bias"):
            yield spec(f"input.tokenizer.{kind}", (columns, width), initial)
        yield spec("input.tokenizer.decision", (width,), initial)
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
