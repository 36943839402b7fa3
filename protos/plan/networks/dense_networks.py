"""Lists the tensors of networks of linear layers: a regression without hidden layers, or an MLP with hidden layers.

Layers are layer1 to layerN, each a linear map with bias. All but the last have an activation, and dropout is before the
last. The first layer is the part input, the last is head, and the layers between are body. A single layer is head,
because the layer that gives the output is most often private.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from protos.plan.documents import Document
from protos.plan.networks.network_tensors import Part, Rate, Sizes, TensorSpec, Width, linear

Widths: TypeAlias = Annotated[tuple[Width, ...], Field(max_length=64)]
ActivationName: TypeAlias = Literal["relu", "selu", "gelu", "tanh"]


class DenseNetwork(Document):
    """Linear layers with these hidden widths. Without hidden widths the network is a logistic or linear regression.

    `dropout` skips a share of the last layer's inputs in training. Without hidden widths these are the encoded columns.
    """

    name: Literal["dense"]
    hidden: Widths
    activation: ActivationName = "relu"
    dropout: Rate = 0.0

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        """Yield every tensor in the order of the network's parameters."""
        last = len(self.hidden)
        for index, (inner, outer) in enumerate(pairwise((sizes.columns, *self.hidden, sizes.outputs))):
            part = Part.HEAD if index == last else Part.INPUT if index == 0 else Part.BODY
            yield from linear(f"{part}.layer{index + 1}", inner, outer, bias=True)
