"""Exports each type of neural network as a graph of simple operations, from encoded rows to outputs.

The formulas are those of `site_agent.trainer.models`, without dropout; the tests compare both for every network. A
hospital's own module is Python code, which cannot be converted to operations. Its tensors are part of the export, and
one operation runs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from protos.plan import architecture as networks
from protos.plan.networks.convolutional_networks import is_halved, sides_after
from protos.plan.networks.dense_networks import ActivationName
from site_agent.desk.export.graph import MODULE, Graph, Value
from site_agent.trainer.models.layers import NORMALISATION_EPSILON, NORMALISATION_FACTOR

_NEVER = 1e9  # exp(-1e9) is 0


@dataclass(frozen=True)
class Layers:
    """Adds the layers of one network to a graph. The plan names the tensors."""

    graph: Graph
    tensors: Mapping[str, npt.NDArray[np.generic]]

    def linear(self, value: Value, name: str) -> Value:
        """Add a linear map of the last axis to the graph: W·x + b, or W·x if there is no b."""
        mapped, bias = value @ self.tensors[f"{name}.weight"].T, self.tensors.get(f"{name}.bias")
        return mapped if bias is None else mapped + bias

    def normalised(self, value: Value, name: str) -> Value:
        """Scale and shift each position of the last axis by the layer's trained parameters."""
        factor = self.tensors[f"{name}.weight"].astype(np.float32) * np.float32(NORMALISATION_FACTOR)
        return value * factor + self.tensors[f"{name}.bias"]

    def normalised_columns(self, value: Value, name: str) -> Value:
        """Scale and shift each column of tokens (rows, columns, width) by the layer's trained parameters."""
        factor = self.tensors[f"{name}.weight"].astype(np.float32) * np.float32(NORMALISATION_FACTOR)
        return value * factor[:, None] + self.tensors[f"{name}.bias"][:, None]

    def layer_normalised(self, value: Value, name: str) -> Value:
        """Normalise the last axis to mean 0 and variance 1, then scale and shift."""
        return _standardised(value) * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def fully_connected(self, value: Value, name: str) -> Value:
        """Add a fully connected layer to the graph: SELU(Linear(normalised x))."""
        return self.linear(self.normalised(value, f"{name}.normalisation"), f"{name}.linear").apply("selu")

    def feed_forward(self, value: Value, name: str) -> Value:
        """Add a feed-forward layer to the graph: W2·SELU(W1·BN(x)), or W2·(SELU(W1·BN(x)) ⊙ W3·x) with a gate."""
        return self.linear(self.gated(self.normalised(value, f"{name}.normalisation"), value, name), f"{name}.outer")

    def gated(self, value: Value, gate: Value, name: str) -> Value:
        """Add SELU(W1·x) to the graph, times W3·gate if the layer has a gate."""
        hidden = self.linear(value, f"{name}.inner").apply("selu")
        return hidden * self.linear(gate, f"{name}.gate") if f"{name}.gate.weight" in self.tensors else hidden

    def block(self, images: Value, name: str, activation: ActivationName, size: tuple[int, int]) -> Value:
        """Add a block of an image network. Its input is (rows, channels, height, width); `size` is height and width."""
        value = self.convolved(images, name, activation, size)
        return value.apply("largest") if is_halved(*size) else value

    def convolved(self, images: Value, name: str, activation: ActivationName, size: tuple[int, int]) -> Value:
        """Add a block that does not change the height and width of its input."""
        value = self.convolution(images, f"{name}.convolution")
        if f"{name}.normalisation.weight" in self.tensors:
            value = self.image_normalised(value, f"{name}.normalisation", size)
        return activated(value, activation)

    def convolution(self, images: Value, name: str, stride: int = 1, groups: int = 1) -> Value:
        """Add a convolution with square filters and a border of zeros. Height and width are divided by the stride."""
        weight = self.tensors[f"{name}.weight"]
        bias = self.tensors.get(f"{name}.bias", np.zeros(len(weight)))
        return images.apply("convolution", weight, bias, stride=stride, groups=groups)

    def image_normalised(self, images: Value, name: str, size: tuple[int, int] | None) -> Value:
        """Scale and shift each channel of images. With a `size`, first bring each image to mean 0, variance 1."""
        weight, bias = self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"]
        if size is not None:
            flat = images.reshape(-1, len(weight) * math.prod(size))
            images = _standardised(flat).reshape(-1, len(weight), *size)
        factor, shift = self.graph.constant(weight[:, None, None]), self.graph.constant(bias[:, None, None])
        return images * factor + shift


def _standardised(value: Value) -> Value:
    centred = value - value.apply("mean")
    variance = (centred * centred).apply("mean")
    return centred / variance.apply("add", [NORMALISATION_EPSILON]).apply("sqrt")


def activated(value: Value, activation: ActivationName) -> Value:
    """Apply the activation function that the plan requires."""
    match activation:
        case "relu" | "selu" | "tanh":
            return value.apply(activation)
        case "gelu":
            raised = (value * [1.0 / math.sqrt(2.0)]).apply("erf").apply("add", [1.0])
            return value * raised * [0.5]
        case _:
            assert_never(activation)


def attended(queries: Value, keys: Value, values: Value, width: int, hidden: Value | None = None) -> Value:
    """Compute softmax(q·k / √width)·v, all of shape (rows, heads, tokens, width). Vaswani et al. 2017, eq. 1.

    `hidden` of shape (rows, 1, 1, tokens) is added before the softmax. A token with a very negative number is ignored.
    """
    scores = queries @ keys.apply("transpose", order=(0, 1, 3, 2)) * [1.0 / math.sqrt(width)]
    return (scores if hidden is None else scores + hidden).apply("softmax") @ values


def network_outputs(
    layers: Layers, architecture: networks.Architecture, rows: Value, columns: int, common: int
) -> Value:
    """Add a network to the graph, from encoded rows (rows, columns), the `common` columns first, to its outputs."""
    match architecture:
        case networks.GlobalLayersNetwork():
            return _global_layers(layers, architecture, rows, columns)
        case networks.DenseNetwork():
            hidden = _chain(layers, architecture, "input", rows, 1, min(1, len(architecture.hidden)))
            hidden = _chain(layers, architecture, "body", hidden, 2, len(architecture.hidden))
            return layers.linear(hidden, f"head.layer{len(architecture.hidden) + 1}")
        case networks.ParallelNetwork():
            shared = _chain(layers, architecture, "common", rows.columns(0, common), 1, len(architecture.common))
            own = _chain(layers, architecture, "unique", rows, 1, len(architecture.unique))
            head = _chain(layers, architecture, "head", shared.beside(own), 1, len(architecture.head))
            return layers.linear(head, "head.output")
        case networks.ColumnsNetwork():
            return _columns(layers, architecture, rows, columns, common)
        case networks.FeatureTokensNetwork():
            return _feature_tokens(layers, architecture, rows, columns)
        case networks.ConvolutionalNetwork():
            parts = ["input", *["body"] * (len(architecture.blocks) - 1)]
            flat, first = _blocks(layers, architecture, _images(architecture, rows), parts), len(parts) + 1
            flat = _chain(layers, architecture, "body", flat, first, len(parts) + len(architecture.hidden))
            return layers.linear(flat, "head.output")
        case networks.ParallelConvolutionalNetwork():
            images = _images(architecture, rows)
            both = (("common", architecture.common), ("unique", architecture.unique))
            shared, own = (_blocks(layers, architecture, images, [part] * len(blocks)) for part, blocks in both)
            return layers.linear(shared.beside(own), "head.output")
        case networks.EfficientNetwork():
            return _efficient(layers, architecture, rows)
        case networks.UNetNetwork():
            return _u_net(layers, architecture, rows)
        case networks.NamedTensors():
            layers.graph.constants.update({f"{MODULE}{name}": array for name, array in layers.tensors.items()})
            return rows.apply("module")
        case _:
            assert_never(architecture)


def _chain(
    layers: Layers,
    architecture: networks.DenseNetwork | networks.ParallelNetwork | networks.ConvolutionalNetwork,
    part: str,
    value: Value,
    first: int,
    last: int,
) -> Value:
    for number in range(first, last + 1):
        value = activated(layers.linear(value, f"{part}.layer{number}"), architecture.activation)
    return value


def _images(architecture: networks.ImageNetwork | networks.UNetNetwork, rows: Value) -> Value:
    image = architecture.image
    return rows.reshape(-1, image.channels, image.height, image.width)


def _blocks(
    layers: Layers,
    architecture: networks.ConvolutionalNetwork | networks.ParallelConvolutionalNetwork,
    value: Value,
    parts: Sequence[str],
) -> Value:
    """Add the blocks of an image network in sequence, each with the prefix of its tensors, up to (rows, numbers)."""
    for number, part in enumerate(parts, start=1):
        size = sides_after(architecture.image, number - 1)
        value = layers.block(value, f"{part}.block{number}", architecture.activation, size)
    height, width = sides_after(architecture.image, len(parts))
    channels = len(layers.tensors[f"{parts[-1]}.block{len(parts)}.convolution.bias"])
    return value.reshape(-1, channels * height * width)


def _efficient(layers: Layers, network: networks.EfficientNetwork, rows: Value) -> Value:
    """Add an EfficientNet to the graph: a convolution, the stages, a convolution, and a linear map of the means."""
    size = (network.image.height, network.image.width)

    def filtered(value: Value, name: str, stride: int = 1, groups: int = 1) -> Value:
        nonlocal size
        size = (-(-size[0] // stride), -(-size[1] // stride))
        value = layers.convolution(value, f"{name}.0", stride, groups)
        return layers.image_normalised(value, f"{name}.1", None if network.normalisation == "fixed" else size)

    def channel_means(value: Value, channels: int) -> Value:
        return value.reshape(-1, channels, math.prod(size)).apply("mean")

    def squeezed(value: Value, name: str, hidden: int) -> Value:
        means = channel_means(value, hidden).reshape(-1, hidden, 1, 1)
        fewer = _silu(layers.convolution(means, f"{name}.fc1"))
        return value * layers.convolution(fewer, f"{name}.fc2").apply("sigmoid")

    value = _silu(filtered(_images(network, rows), "input.features.0", 2))
    for stage, blocks in enumerate(network.stages, start=1):
        for number, block in enumerate(blocks):
            name, read = f"body.features.{stage}.{number}.block", value
            first = int(block.hidden != block.inner)
            if first:
                value = _silu(filtered(value, f"{name}.0"))
            value = _silu(filtered(value, f"{name}.{first}", block.stride, block.hidden))
            value = filtered(squeezed(value, f"{name}.{first + 1}", block.hidden), f"{name}.{first + 2}")
            value = value + read if block.is_residual else value
    value = _silu(filtered(value, f"body.features.{len(network.stages) + 1}"))
    return layers.linear(channel_means(value, network.last).reshape(-1, network.last), "head.classifier.1")


def _silu(value: Value) -> Value:
    return value * value.apply("sigmoid")


def _u_net(layers: Layers, network: networks.UNetNetwork, rows: Value) -> Value:
    """Add a U-Net to the graph: the path down, the path up, and a logit for each pixel."""
    down, up = network.ways

    def pair(value: Value, name: str, level: int) -> Value:
        size = (network.image.height >> level, network.image.width >> level)
        first = layers.convolved(value, f"{name}.first", network.activation, size)
        return layers.convolved(first, f"{name}.second", network.activation, size)

    kept = [pair(_images(network, rows), "input.block1", 0)]
    for level in range(1, len(down)):
        kept.append(pair(kept[-1].apply("largest"), f"body.block{level + 1}", level))
    value = kept.pop()
    for number, (inner, outer) in enumerate(up):
        level = len(up) - 1 - number
        height, width = network.image.height >> level, network.image.width >> level
        # Repeat each pixel in its row, then repeat each row.
        columns = value.reshape(-1, inner - outer, height * width // 4, 1)
        lines = columns.beside(columns, axis=3).reshape(-1, (inner - outer) * height // 2, 1, width)
        doubled = lines.beside(lines, axis=2).reshape(-1, inner - outer, height, width)
        value = pair(doubled.beside(kept.pop()), f"body.block{len(down) + 1 + number}", level)
    flat = value.reshape(-1, network.width, network.image.pixels)
    pixels = flat.apply("transpose", order=(0, 2, 1))
    return layers.linear(pixels, "head.output").reshape(-1, network.image.pixels)


def _columns(layers: Layers, architecture: networks.ColumnsNetwork, rows: Value, columns: int, common: int) -> Value:
    depth = len(architecture.hidden)

    def heard(value: Value, name: str, other: Value | None) -> Value:
        mapped = layers.linear(value, name)
        if other is None or not architecture.lateral:
            return mapped
        return mapped + layers.linear(other, f"{name}.lateral") * [architecture.lateral]

    shared, own = rows.columns(0, common), rows.columns(common, columns)
    for number in range(1, depth + 1):
        before = shared
        shared = activated(layers.linear(shared, f"common.layer{number}"), architecture.activation)
        told = before if number > 1 else None
        own = activated(heard(own, f"unique.layer{number}", told), architecture.activation)
    return layers.linear(shared, "common.output") + heard(own, "unique.output", shared)


def _global_layers(layers: Layers, architecture: networks.GlobalLayersNetwork, rows: Value, columns: int) -> Value:
    value = rows
    if architecture.input_normalisation:
        value = layers.normalised(value, "input.normalisation")
    if architecture.entities:
        value = _entities(layers, architecture, value, columns)
    wide = layers.fully_connected(value, "input.layer1")
    wide = layers.feed_forward(wide, "body.layer2") + wide
    middle = layers.fully_connected(wide, "body.layer3")
    middle = layers.feed_forward(middle, "body.layer4") + middle
    last = layers.fully_connected(middle, "head.layer5")
    logits = layers.linear(layers.normalised(last, "head.output.normalisation"), "head.output.linear")
    return logits + layers.linear(rows, "unique.path") if architecture.linear_path else logits


def _entities(layers: Layers, architecture: networks.GlobalLayersNetwork, value: Value, columns: int) -> Value:
    spread = value.reshape(-1, columns, 1)
    tokens = spread * layers.tensors["input.embedding.weight"] + layers.tensors["input.embedding.bias"]
    tokens = layers.normalised_columns(tokens, "input.embedding.normalisation")
    for block in range(1, architecture.transformer_blocks + 1):
        tokens = _entity_block(layers, architecture, tokens, columns, f"input.transformer{block}")
    return tokens.reshape(-1, columns * architecture.entity_width)


def _entity_block(
    layers: Layers, architecture: networks.GlobalLayersNetwork, tokens: Value, columns: int, name: str
) -> Value:
    heads, channels = architecture.heads, architecture.entity_width // architecture.heads
    normal = layers.normalised_columns(tokens, f"{name}.normalisation")
    projected = layers.linear(normal, f"{name}.attention.projections")
    # Channel c of head h has the index c·heads + h in queries, keys and values; see models/attention.py.
    by_head = projected.reshape(-1, columns, 3 * channels, heads).apply("transpose", order=(0, 3, 1, 2))
    queries, keys, values = (by_head.columns(part * channels, (part + 1) * channels, 3) for part in range(3))
    together = attended(queries, keys, values, channels).apply("transpose", order=(0, 2, 3, 1))
    joined = together.reshape(-1, columns, architecture.entity_width)
    between = layers.linear(joined, f"{name}.attention.output") + normal
    inner = f"{name}.feedforward"
    hidden = layers.gated(layers.normalised_columns(between, f"{inner}.normalisation"), between, inner)
    return layers.linear(hidden, f"{inner}.outer").apply("selu") + between


def _feature_tokens(layers: Layers, architecture: networks.FeatureTokensNetwork, rows: Value, columns: int) -> Value:
    note, hidden = architecture.note, None
    if note is None:
        own = _of_columns(layers, rows, columns, "")
    else:
        codes = rows.columns(columns - note.longest, columns) * [note.buckets]
        columns -= note.columns
        own, hidden = _words(layers, note, codes), _hidden(note, codes, columns)
        if columns:
            own = _of_columns(layers, rows.columns(0, columns), columns, "column_").beside(own)
        columns += note.longest
    decision = own.columns(0, 1) * [0.0] + layers.tensors["input.tokenizer.decision"]
    tokens = decision.beside(own)
    for number in range(1, architecture.blocks + 1):
        name = f"body.block{number}"
        tokens = tokens + _attention(layers, architecture, tokens, columns + 1, f"{name}.attention", hidden)
        tokens = tokens + _token_feed_forward(layers, architecture, tokens, f"{name}.feedforward")
    token = tokens.columns(0, 1).reshape(-1, architecture.width)
    ready = layers.layer_normalised(token, "head.output.normalisation").apply("relu")
    return layers.linear(ready, "head.output.linear")


def _of_columns(layers: Layers, rows: Value, columns: int, kind: str) -> Value:
    """Add the computation of each column's token to the graph: (rows, columns, width)."""
    weight = layers.graph.constant(layers.tensors[f"input.tokenizer.{kind}weight"])
    return rows.reshape(-1, columns, 1) * weight + layers.tensors[f"input.tokenizer.{kind}bias"]


def _words(layers: Layers, note: networks.NoteSize, codes: Value) -> Value:
    """Add each word's token to the graph, (rows, places, width). A code is a bucket's number, from 1."""
    weight = layers.graph.constant(layers.tensors["input.tokenizer.weight"])
    # A look-up drops the fraction, so a whole number minus one half selects the next lower number.
    places = (codes - [0.5]).clipped([0.0], [note.buckets - 1.0])
    return weight.apply("lookup", places) + layers.tensors["input.tokenizer.bias"]


def _hidden(note: networks.NoteSize, codes: Value, others: int) -> Value:
    """Add an attention mask to the graph, (rows, 1, 1, tokens). It excludes the places without a word."""
    negative = (codes.apply("greater", [0.5]).cast("float32") - [1.0]) * [_NEVER]
    together = (codes.columns(0, 1) * ([0.0] * (others + 1))).beside(negative)
    return together.reshape(-1, 1, 1, others + 1 + note.longest)


def _attention(
    layers: Layers,
    architecture: networks.FeatureTokensNetwork,
    tokens: Value,
    count: int,
    name: str,
    hidden: Value | None,
) -> Value:
    width, heads = architecture.width, architecture.heads
    projected = layers.linear(layers.layer_normalised(tokens, f"{name}.normalisation"), f"{name}.projections")
    parts = []
    for part in range(3):
        own = projected.columns(part * width, (part + 1) * width, 2).reshape(-1, count, heads, width // heads)
        parts.append(own.apply("transpose", order=(0, 2, 1, 3)))
    together = attended(parts[0], parts[1], parts[2], width // heads, hidden).apply("transpose", order=(0, 2, 1, 3))
    return layers.linear(together.reshape(-1, count, width), f"{name}.output")


def _token_feed_forward(layers: Layers, architecture: networks.FeatureTokensNetwork, tokens: Value, name: str) -> Value:
    hidden = architecture.hidden
    inner = layers.linear(layers.layer_normalised(tokens, f"{name}.normalisation"), f"{name}.inner")
    if architecture.activation == "reglu":
        ready = inner.columns(0, hidden, 2).apply("relu") * inner.columns(hidden, 2 * hidden, 2)
    else:
        ready = activated(inner, "gelu")
    return layers.linear(ready, f"{name}.outer")
