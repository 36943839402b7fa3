"""Exports each type of network as operations of a graph, from encoded rows (rows, columns) to (rows, outputs).

The formulas are those of `site_agent.trainer.models`; the tests compare both for every network. A hospital's own
module is Python code, which cannot be converted to operations. Its tensors are part of the export, and one operation
runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from protos.plan.architecture import (
    Architecture,
    ColumnsNetwork,
    ConvolutionalNetwork,
    DenseNetwork,
    EfficientNetwork,
    FeatureTokensNetwork,
    GlobalLayersNetwork,
    ImageNetwork,
    NamedTensors,
    NoteSize,
    ParallelConvolutionalNetwork,
    ParallelNetwork,
    UNetNetwork,
)
from protos.plan.networks.convolutional_networks import sides_after
from site_agent.desk.export.graph import MODULE
from site_agent.desk.export.onnx_layers import Layers

_NEVER = 1e9  # exp(-1e9) is 0


def network_outputs(layers: Layers, architecture: Architecture, rows: str, columns: int, common: int) -> str:
    """Add a network to the graph, and return the name of its outputs.

    Args:
        rows: the name of the encoded rows, (rows, columns).
        columns: the number of columns that the network reads.
        common: the number of first columns that are common to all sites.
    """
    match architecture:
        case GlobalLayersNetwork():
            return _global_layers(layers, architecture, rows, columns)
        case DenseNetwork():
            hidden = _chain(layers, architecture, "input", rows, 1, min(1, len(architecture.hidden)))
            hidden = _chain(layers, architecture, "body", hidden, 2, len(architecture.hidden))
            return layers.linear(hidden, f"head.layer{len(architecture.hidden) + 1}")
        case ParallelNetwork():
            shared = _chain(layers, architecture, "common", layers.graph.columns(rows, 0, common), 1,
                            len(architecture.common))  # fmt: skip
            own = _chain(layers, architecture, "unique", rows, 1, len(architecture.unique))
            joined = layers.graph.apply("concatenate", shared, own, axis=1)
            return layers.linear(_chain(layers, architecture, "head", joined, 1, len(architecture.head)), "head.output")
        case ColumnsNetwork():
            return _columns(layers, architecture, rows, columns, common)
        case FeatureTokensNetwork():
            return _feature_tokens(layers, architecture, rows, columns)
        case ConvolutionalNetwork():
            images = _images(layers, architecture, rows)
            flat = _blocks(layers, architecture, images, ["input", *["body"] * (len(architecture.blocks) - 1)])
            first = len(architecture.blocks) + 1
            for number in range(first, first + len(architecture.hidden)):
                flat = layers.activated(layers.linear(flat, f"body.layer{number}"), architecture.activation)
            return layers.linear(flat, "head.output")
        case ParallelConvolutionalNetwork():
            images = _images(layers, architecture, rows)
            both = (("common", architecture.common), ("unique", architecture.unique))
            extracted = [_blocks(layers, architecture, images, [part] * len(blocks)) for part, blocks in both]
            return layers.linear(layers.graph.apply("concatenate", *extracted, axis=1), "head.output")
        case EfficientNetwork():
            return _efficient(layers, architecture, rows)
        case UNetNetwork():
            return _u_net(layers, architecture, rows)
        case NamedTensors():
            layers.graph.constants.update({f"{MODULE}{name}": array for name, array in layers.tensors.items()})
            return layers.graph.apply("module", rows)
        case _:
            assert_never(architecture)


def _chain(
    layers: Layers, architecture: DenseNetwork | ParallelNetwork, part: str, value: str, first: int, last: int
) -> str:
    for number in range(first, last + 1):
        value = layers.activated(layers.linear(value, f"{part}.layer{number}"), architecture.activation)
    return value


def _images(layers: Layers, architecture: ImageNetwork | UNetNetwork, rows: str) -> str:
    image = architecture.image
    return layers.graph.apply("reshape", rows, shape=(-1, image.channels, image.height, image.width))


def _blocks(
    layers: Layers, architecture: ConvolutionalNetwork | ParallelConvolutionalNetwork, value: str, parts: Sequence[str]
) -> str:
    """Add the blocks of an image network in sequence, each with the prefix of its tensors.

    The result is (rows, numbers).
    """
    for number, part in enumerate(parts, start=1):
        size = sides_after(architecture.image, number - 1)
        value = layers.block(value, f"{part}.block{number}", architecture.activation, size)
    height, width = sides_after(architecture.image, len(parts))
    channels = len(layers.tensors[f"{parts[-1]}.block{len(parts)}.convolution.bias"])
    return layers.graph.apply("reshape", value, shape=(-1, channels * height * width))


def _efficient(layers: Layers, network: EfficientNetwork, rows: str) -> str:
    """Add an EfficientNet to the graph: a convolution, the stages, a convolution, and a linear map of the means."""
    graph, size = layers.graph, (network.image.height, network.image.width)

    def filtered(value: str, name: str, stride: int = 1, groups: int = 1) -> str:
        nonlocal size
        size = (-(-size[0] // stride), -(-size[1] // stride))
        value = layers.convolution(value, f"{name}.0", stride, groups)
        return layers.image_normalised(value, f"{name}.1", None if network.normalisation == "fixed" else size)

    def squeezed(value: str, name: str, hidden: int) -> str:
        means = graph.apply("reshape", layers.channel_means(value, hidden, size), shape=(-1, hidden, 1, 1))
        fewer = layers.silu(layers.convolution(means, f"{name}.fc1"))
        return graph.apply("multiply", value, graph.apply("sigmoid", layers.convolution(fewer, f"{name}.fc2")))

    value = layers.silu(filtered(_images(layers, network, rows), "input.features.0", 2))
    for stage, blocks in enumerate(network.stages, start=1):
        for number, block in enumerate(blocks):
            name, read = f"body.features.{stage}.{number}.block", value
            first = int(block.hidden != block.inner)
            if first:
                value = layers.silu(filtered(value, f"{name}.0"))
            value = layers.silu(filtered(value, f"{name}.{first}", block.stride, block.hidden))
            value = filtered(squeezed(value, f"{name}.{first + 1}", block.hidden), f"{name}.{first + 2}")
            value = graph.apply("add", value, read) if block.is_residual else value
    value = layers.silu(filtered(value, f"body.features.{len(network.stages) + 1}"))
    means = graph.apply("reshape", layers.channel_means(value, network.last, size), shape=(-1, network.last))
    return layers.linear(means, "head.classifier.1")


def _u_net(layers: Layers, network: UNetNetwork, rows: str) -> str:
    """Add a U-Net to the graph: the path down, the path up, and a logit for each pixel."""
    graph, (down, up) = layers.graph, network.ways

    def pair(value: str, name: str, level: int) -> str:
        size = (network.image.height >> level, network.image.width >> level)
        first = layers.convolved(value, f"{name}.first", network.activation, size)
        return layers.convolved(first, f"{name}.second", network.activation, size)

    kept = [pair(_images(layers, network, rows), "input.block1", 0)]
    for level in range(1, len(down)):
        kept.append(pair(graph.apply("largest", kept[-1]), f"body.block{level + 1}", level))
    value = kept.pop()
    for number, (inner, outer) in enumerate(up):
        level = len(up) - 1 - number
        height, width = network.image.height >> level, network.image.width >> level
        # Repeat each pixel in its row, then repeat each row.
        columns = graph.apply("reshape", value, shape=(-1, inner - outer, height * width // 4, 1))
        wide = graph.apply("concatenate", columns, columns, axis=3)
        lines = graph.apply("reshape", wide, shape=(-1, (inner - outer) * height // 2, 1, width))
        twice = graph.apply("concatenate", lines, lines, axis=2)
        doubled = graph.apply("reshape", twice, shape=(-1, inner - outer, height, width))
        joined = graph.apply("concatenate", doubled, kept.pop(), axis=1)
        value = pair(joined, f"body.block{len(down) + 1 + number}", level)
    flat = graph.apply("reshape", value, shape=(-1, network.width, network.image.pixels))
    pixels = graph.apply("transpose", flat, order=(0, 2, 1))
    return graph.apply("reshape", layers.linear(pixels, "head.output"), shape=(-1, network.image.pixels))


def _columns(layers: Layers, architecture: ColumnsNetwork, rows: str, columns: int, common: int) -> str:
    graph, depth = layers.graph, len(architecture.hidden)

    def heard(value: str, name: str, other: str | None) -> str:
        mapped = layers.linear(value, name)
        if other is None or not architecture.lateral:
            return mapped
        told = layers.scaled(layers.linear(other, f"{name}.lateral"), architecture.lateral)
        return graph.apply("add", mapped, told)

    shared, own = graph.columns(rows, 0, common), graph.columns(rows, common, columns)
    for number in range(1, depth + 1):
        before = shared
        shared = layers.activated(layers.linear(shared, f"common.layer{number}"), architecture.activation)
        told = before if number > 1 else None
        own = layers.activated(heard(own, f"unique.layer{number}", told), architecture.activation)
    return graph.apply("add", layers.linear(shared, "common.output"), heard(own, "unique.output", shared))


def _global_layers(layers: Layers, architecture: GlobalLayersNetwork, rows: str, columns: int) -> str:
    graph, value = layers.graph, rows
    if architecture.input_normalisation:
        value = layers.normalised(value, "input.normalisation")
    if architecture.entities:
        value = _entities(layers, architecture, value, columns)
    wide = layers.fully_connected(value, "input.layer1")
    wide = graph.apply("add", layers.feed_forward(wide, "body.layer2"), wide)
    middle = layers.fully_connected(wide, "body.layer3")
    middle = graph.apply("add", layers.feed_forward(middle, "body.layer4"), middle)
    last = layers.fully_connected(middle, "head.layer5")
    logits = layers.linear(layers.normalised(last, "head.output.normalisation"), "head.output.linear")
    return graph.apply("add", logits, layers.linear(rows, "unique.path")) if architecture.linear_path else logits


def _entities(layers: Layers, architecture: GlobalLayersNetwork, value: str, columns: int) -> str:
    graph, width = layers.graph, architecture.entity_width
    spread = graph.apply("reshape", value, shape=(-1, columns, 1))
    scaled = graph.apply("multiply", spread, graph.constant(layers.tensors["input.embedding.weight"]))
    tokens = graph.apply("add", scaled, graph.constant(layers.tensors["input.embedding.bias"]))
    tokens = layers.normalised_columns(tokens, "input.embedding.normalisation")
    for block in range(1, architecture.transformer_blocks + 1):
        tokens = _entity_block(layers, architecture, tokens, columns, f"input.transformer{block}")
    return graph.apply("reshape", tokens, shape=(-1, columns * width))


def _entity_block(layers: Layers, architecture: GlobalLayersNetwork, tokens: str, columns: int, name: str) -> str:
    graph, width, heads = layers.graph, architecture.entity_width, architecture.heads
    normal = layers.normalised_columns(tokens, f"{name}.normalisation")
    projected = layers.linear(normal, f"{name}.attention.projections")
    # Channel c of head h has the index c·heads + h in queries, keys and values; see models/attention.py.
    apart = graph.apply("reshape", projected, shape=(-1, columns, 3 * (width // heads), heads))
    by_head = graph.apply("transpose", apart, order=(0, 3, 1, 2))
    channels = width // heads
    queries, keys, values = (graph.columns(by_head, part * channels, (part + 1) * channels, 3) for part in range(3))
    attended = graph.apply("transpose", layers.attended(queries, keys, values, channels), order=(0, 2, 3, 1))
    joined = graph.apply("reshape", attended, shape=(-1, columns, width))
    between = graph.apply("add", layers.linear(joined, f"{name}.attention.output"), normal)
    inner = f"{name}.feedforward"
    ready = layers.normalised_columns(between, f"{inner}.normalisation")
    hidden = graph.apply("selu", layers.linear(ready, f"{inner}.inner"))
    if f"{inner}.gate.weight" in layers.tensors:
        hidden = graph.apply("multiply", hidden, layers.linear(between, f"{inner}.gate"))
    return graph.apply("add", graph.apply("selu", layers.linear(hidden, f"{inner}.outer")), between)


def _feature_tokens(layers: Layers, architecture: FeatureTokensNetwork, rows: str, columns: int) -> str:
    graph, width, note, hidden = layers.graph, architecture.width, architecture.note, None
    if note is None:
        own = _of_columns(layers, rows, columns, "")
    else:
        codes = layers.scaled(graph.columns(rows, columns - note.longest, columns), note.buckets)
        columns -= note.columns
        own, hidden = _words(layers, note, codes), _hidden(layers, note, codes, columns)
        if columns:
            of_columns = _of_columns(layers, graph.columns(rows, 0, columns), columns, "column_")
            own = graph.apply("concatenate", of_columns, own, axis=1)
        columns += note.longest
    nothing = layers.scaled(graph.columns(own, 0, 1), 0.0)
    decision = graph.apply("add", nothing, graph.constant(layers.tensors["input.tokenizer.decision"]))
    tokens = graph.apply("concatenate", decision, own, axis=1)
    for number in range(1, architecture.blocks + 1):
        name = f"body.block{number}"
        tokens = graph.apply(
            "add", tokens, _attention(layers, architecture, tokens, columns + 1, f"{name}.attention", hidden)
        )
        tokens = graph.apply("add", tokens, _token_feed_forward(layers, architecture, tokens, f"{name}.feedforward"))
    token = graph.apply("reshape", graph.columns(tokens, 0, 1), shape=(-1, width))
    ready = graph.apply("relu", layers.layer_normalised(token, "head.output.normalisation"))
    return layers.linear(ready, "head.output.linear")


def _of_columns(layers: Layers, rows: str, columns: int, kind: str) -> str:
    """Add the computation of each column's token to the graph: (rows, columns, width)."""
    graph, tensors = layers.graph, layers.tensors
    weight = graph.constant(tensors[f"input.tokenizer.{kind}weight"])
    scaled = graph.apply("multiply", graph.apply("reshape", rows, shape=(-1, columns, 1)), weight)
    return graph.apply("add", scaled, graph.constant(tensors[f"input.tokenizer.{kind}bias"]))


def _words(layers: Layers, note: NoteSize, codes: str) -> str:
    """Add the computation of each word's token to the graph: (rows, places, width).

    A code is a bucket's number, from 1.
    """
    graph, tensors = layers.graph, layers.tensors
    weight = graph.constant(tensors["input.tokenizer.weight"])
    # A look-up drops the fraction, so a whole number minus one half selects the next lower number.
    places = graph.apply("subtract", codes, graph.constant([0.5]))
    words = graph.apply("lookup", weight, graph.clipped(places, [0.0], [note.buckets - 1.0], "float32"))
    return graph.apply("add", words, graph.constant(tensors["input.tokenizer.bias"]))


def _hidden(layers: Layers, note: NoteSize, codes: str, others: int) -> str:
    """Add an attention mask to the graph, (rows, 1, 1, tokens). It excludes the places without a word."""
    graph = layers.graph
    is_word = graph.apply("cast", graph.apply("greater", codes, graph.constant([0.5])), to="float32")
    negative = layers.scaled(graph.apply("subtract", is_word, graph.constant([1.0])), _NEVER)
    shown = graph.apply("multiply", graph.columns(codes, 0, 1), graph.constant([0.0] * (others + 1)))
    together = graph.apply("concatenate", shown, negative, axis=1)
    return graph.apply("reshape", together, shape=(-1, 1, 1, others + 1 + note.longest))


def _attention(
    layers: Layers, architecture: FeatureTokensNetwork, tokens: str, count: int, name: str, hidden: str | None
) -> str:
    graph, width, heads = layers.graph, architecture.width, architecture.heads
    projected = layers.linear(layers.layer_normalised(tokens, f"{name}.normalisation"), f"{name}.projections")
    parts = []
    for part in range(3):
        own = graph.columns(projected, part * width, (part + 1) * width, 2)
        by_head = graph.apply("reshape", own, shape=(-1, count, heads, width // heads))
        parts.append(graph.apply("transpose", by_head, order=(0, 2, 1, 3)))
    together = layers.attended(parts[0], parts[1], parts[2], width // heads, hidden)
    attended = graph.apply("transpose", together, order=(0, 2, 1, 3))
    return layers.linear(graph.apply("reshape", attended, shape=(-1, count, width)), f"{name}.output")


def _token_feed_forward(layers: Layers, architecture: FeatureTokensNetwork, tokens: str, name: str) -> str:
    graph, hidden = layers.graph, architecture.hidden
    inner = layers.linear(layers.layer_normalised(tokens, f"{name}.normalisation"), f"{name}.inner")
    if architecture.activation == "reglu":
        selected = graph.apply("relu", graph.columns(inner, 0, hidden, 2))
        ready = graph.apply("multiply", selected, graph.columns(inner, hidden, 2 * hidden, 2))
    else:
        ready = layers.activated(inner, "gelu")
    return layers.linear(ready, f"{name}.outer")
