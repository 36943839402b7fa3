"""Networks with two columns of layers, connected by lateral matrices, as in CHFL.

Source: Mori et al. 2022, "Continual Horizontal Federated Learning for Heterogeneous Data". The common
column is an MLP over the columns that the plan lists for all sites; the unique column is one over the
remaining columns of its site and hears the common one:

    z_u(i+1) = a(W z_u(i) + b + mu U z_c(i)),    logits = z_c(L) + z_u(L)

for i from 1: the matrices U start at the results of the common column's layers, not at its input. The
last layers have no activation. With mu = 0 there are no matrices U.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field

from protos.plan.documents import Document
from protos.plan.networks.dense_networks import ActivationName
from protos.plan.networks.network_tensors import TensorSpec, linear
from protos.plan.networks.parallel_networks import ExtractorWidths


class ColumnsNetwork(Document):
    """Hidden widths of both columns, and the strength mu of what the unique column hears."""

    name: Literal["columns"]
    hidden: ExtractorWidths = (512, 256, 128)
    activation: ActivationName = "relu"
    lateral: Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]


def columns_tensors(network: ColumnsNetwork, columns: int, outputs: int, common: int) -> Iterator[TensorSpec]:
    """Yield every tensor in the order of the network's parameters. The `common` column is below `columns`."""
    yield from _column(network, "common", common, outputs, has_lateral=False)
    yield from _column(network, "unique", columns - common, outputs, has_lateral=network.lateral > 0.0)


def _column(
    network: ColumnsNetwork, part: str, inputs: int, outputs: int, *, has_lateral: bool
) -> Iterator[TensorSpec]:
    widths = (inputs, *network.hidden, outputs)
    for number, (inner, outer) in enumerate(pairwise(widths), start=1):
        name = f"{part}.output" if number == len(widths) - 1 else f"{part}.layer{number}"
        yield from linear(name, inner, outer, bias=True)
        if has_lateral and number > 1:
            # The columns have equal widths, so what layer `number` hears is as wide as its own input.
            yield from linear(f"{name}.lateral", inner, outer, bias=False)
