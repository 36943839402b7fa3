"""Lists the tensors of networks of linear layers: regressions, MLPs, parallel extractors, and columns of layers.

In an MLP, layers are layer1 to layerN, each a linear map with bias. All but the last have an activation, and dropout is
before the last. The first layer is the part input, the last is head, and the layers between are body. A single layer is
head, because the layer that gives the output is most often private.
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


ExtractorWidths: TypeAlias = Annotated[tuple[Width, ...], Field(min_length=1, max_length=64)]


class ParallelNetwork(Document):
    """Hidden widths of the common extractor, the unique extractor and the head (FENDA-FL, PerFCL).

    Source: Tavakoli et al. 2024, "FENDA-FL", section 3: the extractors may differ in depth and width. The common one
    reads the columns that the plan lists for all sites, and the unique one reads all columns of its site. The head is a
    linear map of both results, or of hidden layers over them. Dropout is before the head.
    """

    name: Literal["parallel"]
    common: ExtractorWidths
    unique: ExtractorWidths
    activation: ActivationName = "relu"
    dropout: Rate = 0.0
    head: Widths = ()

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        yield from _extractor("common", (sizes.common, *self.common))
        yield from _extractor("unique", (sizes.columns, *self.unique))
        widths = (self.common[-1] + self.unique[-1], *self.head)
        yield from _extractor("head", widths)
        yield from linear("head.output", widths[-1], sizes.outputs, bias=True)


def _extractor(part: str, widths: tuple[int, ...]) -> Iterator[TensorSpec]:
    for number, (inner, outer) in enumerate(pairwise(widths), start=1):
        yield from linear(f"{part}.layer{number}", inner, outer, bias=True)


class ColumnsNetwork(Document):
    """Hidden widths of two columns of layers (CHFL). `lateral` is mu, the common column's effect on the unique column.

    Source: Mori et al. 2022, "Continual Horizontal Federated Learning for Heterogeneous Data". The common column is an
    MLP over the columns that the plan lists for all sites. The unique column is an MLP over the remaining columns of
    its site, and also reads the common one, by matrices U from the results of its layers, not from its input:

        z_u(i+1) = a(W z_u(i) + b + mu U z_c(i)),    logits = z_c(L) + z_u(L)

    The last layers have no activation. With mu = 0 there are no matrices U.
    """

    name: Literal["columns"]
    hidden: ExtractorWidths = (512, 256, 128)
    activation: ActivationName = "relu"
    lateral: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]

    def specs(self, sizes: Sizes) -> Iterator[TensorSpec]:
        """Yield every tensor in the order of the network's parameters. At least one column is not common."""
        yield from self._column("common", sizes.common, sizes.outputs, has_lateral=False)
        yield from self._column("unique", sizes.columns - sizes.common, sizes.outputs, has_lateral=self.lateral > 0.0)

    def _column(self, part: str, inputs: int, outputs: int, *, has_lateral: bool) -> Iterator[TensorSpec]:
        widths = (inputs, *self.hidden, outputs)
        for number, (inner, outer) in enumerate(pairwise(widths), start=1):
            name = f"{part}.output" if number == len(widths) - 1 else f"{part}.layer{number}"
            yield from linear(name, inner, outer, bias=True)
            if has_lateral and number > 1:
                # The columns have equal widths, so a lateral input is as wide as the layer's own input.
                yield from linear(f"{name}.lateral", inner, outer, bias=False)
