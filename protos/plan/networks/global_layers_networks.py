"""Lists the tensors of the network of "Global Layers" (Obeidi).

With d columns, C outputs, latent size s, entities of width e and hidden width h = e/2. Every normalisation has a weight
and a bias; (n) counts its channels:

    part   block          tensors                                                         numbers
    input  normalisation  normalisation (d), only with input_normalisation                     2d
    input  embedding      weight and bias (d, e), normalisation (d)                      2de + 2d
    input  transformer1.. normalisation (d); attention.projections (3e, e), .output (e, e);
                          feedforward: normalisation (d), inner (h, e), [gate (h, e)],
                          outer (e, h)                             4d + 4e² + 2eh [+ eh]
    input  layer1         normalisation (ed), linear ed -> 4s with bias       2ed + 4s·ed + 4s
    body   layer2         normalisation (4s), inner 4s -> s, [gate], outer s -> 4s
    body   layer3         normalisation (4s), linear 4s -> 2s
    body   layer4         normalisation (2s), inner 2s -> s/2, [gate], outer s/2 -> 2s
    head   layer5         normalisation (2s), linear 2s -> s                     4s + 2s² + s
    head   output         normalisation (s), linear s -> C                       2s + sC + C

The body has 18s² + 29.5s numbers without gate and 23s² + 29.5s with it. The inner and outer maps of the body have
biases, the gates and the transformer's maps have none. Without entities layer 1 maps the d columns themselves:
normalisation (d), linear d -> 4s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, StrictBool, StrictInt, model_validator

from protos.plan.documents import Document
from protos.plan.networks.network_tensors import Rate, Sizes, TensorSpec, Uniform, linear, normalisation, spec


class GlobalLayersNetwork(Document):
    """The Global Layers paper's network: entities, transformer blocks, five layers. Widths are multiples of `latent`.

    `dropout` acts inside the layers and keeps SELU's mean and variance; `input_dropout` sets encoded inputs to 0."""

    name: Literal["global-layers-network"]
    latent: Annotated[StrictInt, Field(ge=8, le=65_536, multiple_of=8)]
    gate: StrictBool
    input_normalisation: StrictBool
    entity_width: Annotated[StrictInt, Field(ge=2, le=1024, multiple_of=2)] = 16
    heads: Annotated[StrictInt, Field(ge=1, le=1024)] = 8
    transformer_blocks: Annotated[StrictInt, Field(ge=0, le=64)] = 6
    dropout: Rate = 0.0
    input_dropout: Rate = 0.0
    entities: StrictBool = True

    @model_validator(mode="after")
    def _heads_share_the_width_evenly(self) -> GlobalLayersNetwork:
        if self.entity_width % self.heads:
            raise ValueError(f"entity_width {self.entity_width} is not a multiple of heads {self.heads}")
        if self.transformer_blocks and not self.entities:
            raise ValueError(
                "transformer blocks need entities: true. With entities: false, set transformer_blocks to 0"
            )
        return self

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        latent, gate = self.latent, self.gate
        wide, middle = 4 * latent, 2 * latent
        yield from _input(self, sizes.columns)
        yield from _feedforward("body.layer2", wide, wide, latent, gate=gate, bias=True)
        yield from _fully_connected("body.layer3", wide, middle)
        yield from _feedforward("body.layer4", middle, middle, latent // 2, gate=gate, bias=True)
        yield from _fully_connected("head.layer5", middle, latent)
        yield from _fully_connected("head.output", latent, sizes.outputs)


def _input(network: GlobalLayersNetwork, columns: int) -> Iterator[TensorSpec]:
    width = network.entity_width if network.entities else 1
    if network.input_normalisation:
        yield from normalisation("input", columns)
    if network.entities:
        for kind in ("weight", "bias"):
            # Each entity is a linear map of one number, so its fan-in is 1.
            yield spec(f"input.embedding.{kind}", (columns, width), Uniform(1.0))
        yield from normalisation("input.embedding", columns)
    for block in range(1, network.transformer_blocks + 1):
        yield from _transformer(network, f"input.transformer{block}", columns)
    yield from _fully_connected("input.layer1", columns * width, 4 * network.latent)


def _transformer(network: GlobalLayersNetwork, name: str, columns: int) -> Iterator[TensorSpec]:
    width = network.entity_width
    yield from normalisation(name, columns)
    # Queries, keys and values are one packed matrix, and Xavier's rule counts its 3·width rows.
    packed = (3 * width, width)
    yield spec(f"{name}.attention.projections.weight", packed, Uniform(math.sqrt(6.0 / sum(packed))))
    yield from linear(f"{name}.attention.output", width, width, bias=False)
    yield from _feedforward(f"{name}.feedforward", columns, width, width // 2, gate=network.gate, bias=False)


def _fully_connected(name: str, inputs: int, outputs: int) -> Iterator[TensorSpec]:
    yield from normalisation(name, inputs)
    yield from linear(f"{name}.linear", inputs, outputs, bias=True)


def _feedforward(name: str, channels: int, width: int, hidden: int, *, gate: bool, bias: bool) -> Iterator[TensorSpec]:
    yield from normalisation(name, channels)
    yield from linear(f"{name}.inner", width, hidden, bias=bias)
    if gate:
        yield from linear(f"{name}.gate", width, hidden, bias=False)
    yield from linear(f"{name}.outer", hidden, width, bias=bias)
