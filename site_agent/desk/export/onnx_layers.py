"""Exports the layers of networks as operations for prediction, without dropout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import assert_never

import numpy as np
import numpy.typing as npt

from protos.plan.networks.convolutional_networks import is_halved
from protos.plan.networks.dense_networks import ActivationName
from site_agent.desk.export.graph import Graph
from site_agent.trainer.models.layers import NORMALISATION_EPSILON, NORMALISATION_FACTOR

Values = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Layers:
    """Adds the layers of one network to a graph. The plan names the tensors."""

    graph: Graph
    tensors: Mapping[str, Values]

    def linear(self, value: str, name: str) -> str:
        """Add a linear map of the last axis to the graph: W·x + b, or W·x if there is no b."""
        mapped = self.graph.apply("matmul", value, self.graph.constant(self.tensors[f"{name}.weight"].T))
        bias = self.tensors.get(f"{name}.bias")
        return mapped if bias is None else self.graph.apply("add", mapped, self.graph.constant(bias))

    def normalised(self, value: str, name: str) -> str:
        """Scale and shift each position of the last axis by the layer's trained parameters."""
        return self._affine(value, self.tensors[f"{name}.weight"], self.tensors[f"{name}.bias"])

    def normalised_columns(self, value: str, name: str) -> str:
        """Scale and shift each column of tokens (rows, columns, width) by the layer's trained parameters."""
        return self._affine(value, self.tensors[f"{name}.weight"][:, None], self.tensors[f"{name}.bias"][:, None])

    def layer_normalised(self, value: str, name: str) -> str:
        """Normalise the last axis to mean 0 and variance 1, then scale and shift."""
        graph = self.graph
        scaled = graph.apply("multiply", self._standardised(value), graph.constant(self.tensors[f"{name}.weight"]))
        return graph.apply("add", scaled, graph.constant(self.tensors[f"{name}.bias"]))

    def _standardised(self, value: str) -> str:
        graph = self.graph
        centred = graph.apply("subtract", value, graph.apply("mean", value))
        variance = graph.apply("mean", graph.apply("multiply", centred, centred))
        root = graph.apply("sqrt", graph.apply("add", variance, graph.constant([NORMALISATION_EPSILON])))
        return graph.apply("divide", centred, root)

    def fully_connected(self, value: str, name: str) -> str:
        """Add a fully connected layer to the graph: SELU(Linear(normalised x))."""
        return self.graph.apply("selu", self.linear(self.normalised(value, f"{name}.normalisation"), f"{name}.linear"))

    def feed_forward(self, value: str, name: str) -> str:
        """Add a feed-forward layer to the graph: W2·SELU(W1·BN(x)), or W2·(SELU(W1·BN(x)) ⊙ W3·x) with a gate."""
        hidden = self.graph.apply("selu", self.linear(self.normalised(value, f"{name}.normalisation"), f"{name}.inner"))
        if f"{name}.gate.weight" in self.tensors:
            hidden = self.graph.apply("multiply", hidden, self.linear(value, f"{name}.gate"))
        return self.linear(hidden, f"{name}.outer")

    def block(self, images: str, name: str, activation: ActivationName, size: tuple[int, int]) -> str:
        """Add a block of an image network. Its input is (rows, channels, height, width); `size` is height and width."""
        value = self.convolved(images, name, activation, size)
        return self.graph.apply("largest", value) if is_halved(*size) else value

    def convolved(self, images: str, name: str, activation: ActivationName, size: tuple[int, int]) -> str:
        """Add a block whose result has the height and width of its input."""
        value = self.convolution(images, f"{name}.convolution")
        if f"{name}.normalisation.weight" in self.tensors:
            value = self.image_normalised(value, f"{name}.normalisation", size)
        return self.activated(value, activation)

    def convolution(self, images: str, name: str, stride: int = 1, groups: int = 1) -> str:
        """Add a convolution with square filters and a border of zeros. Height and width are divided by the stride."""
        weight = self.tensors[f"{name}.weight"]
        bias = self.tensors.get(f"{name}.bias", np.zeros(len(weight)))
        constants = (self.graph.constant(weight), self.graph.constant(bias))
        return self.graph.apply("convolution", images, *constants, stride=stride, groups=groups)

    def image_normalised(self, images: str, name: str, size: tuple[int, int] | None) -> str:
        """Scale and shift each channel of images. With a `size`, first give each image mean 0 and variance 1."""
        graph = self.graph
        if size is not None:
            shape = (-1, len(self.tensors[f"{name}.weight"]), *size)
            flat = graph.apply("reshape", images, shape=(-1, math.prod(shape[1:])))
            images = graph.apply("reshape", self._standardised(flat), shape=shape)
        weight, bias = (graph.constant(self.tensors[f"{name}.{kind}"][:, None, None]) for kind in ("weight", "bias"))
        return graph.apply("add", graph.apply("multiply", images, weight), bias)

    def channel_means(self, images: str, channels: int, size: tuple[int, int]) -> str:
        """Compute the mean of each channel, of shape (rows, channels, 1)."""
        return self.graph.apply("mean", self.graph.apply("reshape", images, shape=(-1, channels, math.prod(size))))

    def silu(self, value: str) -> str:
        """Compute x·sigmoid(x)."""
        return self.graph.apply("multiply", value, self.graph.apply("sigmoid", value))

    def activated(self, value: str, activation: ActivationName) -> str:
        """Apply the activation function that the plan requires."""
        match activation:
            case "relu" | "selu" | "tanh":
                return self.graph.apply(activation, value)
            case "gelu":
                inner = self.graph.apply("erf", self.scaled(value, 1.0 / math.sqrt(2.0)))
                raised = self.graph.apply("add", inner, self.graph.constant([1.0]))
                return self.scaled(self.graph.apply("multiply", value, raised), 0.5)
            case _:
                assert_never(activation)

    def scaled(self, value: str, factor: float) -> str:
        """Multiply a value of the graph by a constant number."""
        return self.graph.apply("multiply", value, self.graph.constant([factor]))

    def attended(self, queries: str, keys: str, values: str, width: int, hidden: str | None = None) -> str:
        """Compute softmax(q·k / √width)·v, all of shape (rows, heads, tokens, width). Vaswani et al. 2017, eq. 1.

        `hidden` of shape (rows, 1, 1, tokens) is added before the softmax. A token with a very negative number is
        ignored.
        """
        turned = self.graph.apply("transpose", keys, order=(0, 1, 3, 2))
        scores = self.graph.apply("matmul", queries, turned)
        scores = self.scaled(scores, 1.0 / math.sqrt(width))
        shares = self.graph.apply("softmax", scores if hidden is None else self.graph.apply("add", scores, hidden))
        return self.graph.apply("matmul", shares, values)

    def _affine(self, value: str, scale: Values, shift: Values) -> str:
        scaled = self.graph.apply(
            "multiply", value, self.graph.constant(scale.astype(np.float32) * np.float32(NORMALISATION_FACTOR))
        )
        return self.graph.apply("add", scaled, self.graph.constant(shift))
