"""Networks with two parallel feature extractors and one head, as in FENDA-FL and PerFCL.

Source: Tavakoli et al. 2024, "FENDA-FL", section 3: the extractors may differ in depth and width. The
common one sees the columns that the plan lists for all sites, the unique one all columns of its
site; the head is a linear map of both results.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from protos.plan.documents import Document
from protos.plan.networks.dense_networks import ActivationName
from protos.plan.networks.network_tensors import Rate, TensorSpec, Width, linear

ExtractorWidths: TypeAlias = Annotated[tuple[Width, ...], Field(min_length=1, max_length=64)]


class ParallelNetwork(Document):
    """Hidden widths of the common and of the unique extractor; dropout is before the head."""

    name: Literal["parallel"]
    common: ExtractorWidths
    unique: ExtractorWidths
    activation: ActivationName = "relu"
    dropout: Rate = 0.0


def parallel_tensors(network: ParallelNetwork, columns: int, outputs: int, common: int) -> Iterator[TensorSpec]:
    """Yield every tensor in the order of the network's parameters."""
    yield from _extractor("common", (common, *network.common))
    yield from _extractor("unique", (columns, *network.unique))
    yield from linear("head.output", network.common[-1] + network.unique[-1], outputs, bias=True)


def _extractor(part: str, widths: tuple[int, ...]) -> Iterator[TensorSpec]:
    for number, (inner, outer) in enumerate(pairwise(widths), start=1):
        yield from linear(f"{part}.layer{number}", inner, outer, bias=True)
