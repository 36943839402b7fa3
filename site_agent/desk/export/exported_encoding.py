"""Exports preprocessing as operations of a graph, from float64 inputs (rows, inputs) to encoded columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np

from site_agent.desk.export.graph import INPUT, Graph
from site_agent.desk.export.onnx_inputs import input_names, interval
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.contract_columns import CategoricalFeature, DateFeature, Feature
from site_agent.trainer.data.encodings import (
    EmbeddingEncoding,
    Encoding,
    NumericEncoding,
    OneHotEncoding,
    OrdinalEncoding,
    PiecewiseEncoding,
    QuantileEncoding,
    Scale,
    encode,
)
from site_agent.trainer.data.image_column import ImageColumn
from site_agent.trainer.data.preprocessing import Preprocessing
from site_agent.trainer.data.terms import TermWeights


def encoded(graph: Graph, preprocessing: Preprocessing) -> str:
    """Add to the graph the operations of `Preprocessing.encode`. The result is float32 of shape (rows, columns)."""
    parts = []
    for place, (feature, encoding) in enumerate(
        zip(preprocessing.contract.features, preprocessing.encodings, strict=True)
    ):
        value = graph.columns(INPUT, place, place + 1)
        if isinstance(feature, DateFeature):
            value = interval_of_date(graph, preprocessing.contract, feature, value)
        parts.append(graph.apply("cast", _feature(graph, feature, encoding, value), to="float32"))
    place = len(input_names(preprocessing.contract))
    for column, weights in zip(preprocessing.contract.terms, preprocessing.term_weights, strict=True):
        end, last = place + column.counted, place + len(column.encoded_columns)
        parts.append(_terms(graph, graph.columns(INPUT, place, end), weights))
        if column.note_size is not None:
            share = graph.constant([1.0 / column.note_size.buckets], "float64")
            in_order = graph.apply("multiply", graph.columns(INPUT, end, last), share)
            parts.append(graph.apply("cast", in_order, to="float32"))
        place = last
    if preprocessing.contract.image is not None:
        parts.append(_pixels(graph, preprocessing.contract.image, preprocessing.pixel_scales))
    return parts[0] if len(parts) == 1 else graph.apply("concatenate", *parts, axis=1)


def _terms(graph: Graph, counts: str, weights: TermWeights) -> str:
    """Add to the graph the operations of `terms.weighted`."""
    rare = graph.apply("multiply", counts, graph.constant([weights.rarity], "float64"))
    length = graph.apply("sqrt", graph.apply("sum", graph.apply("multiply", rare, rare)))
    unit = graph.apply("divide", rare, graph.apply("maximum", length, graph.constant([[1.0]], "float64")))
    return graph.apply("cast", graph.apply("divide", unit, graph.constant([weights.largest], "float64")), to="float32")


def _pixels(graph: Graph, column: ImageColumn, scales: Sequence[Scale]) -> str:
    """Add to the graph the conversion of a file's intensities to standardised pixels. See `image_files.in_window`."""
    low, high = column.limits
    inside = graph.clipped(INPUT, [[float(low)]], [[float(high)]])
    each = column.image.height * column.image.width
    # First (value - low) / (high - low). Then this number minus the mean of its channel, divided by the deviation.
    centres = np.repeat([low + scale.mean * (high - low) for scale in scales], each)[None]
    widths = np.repeat([scale.deviation * (high - low) for scale in scales], each)[None]
    centred = graph.apply("subtract", inside, graph.constant(centres, "float64"))
    return graph.apply("cast", graph.apply("divide", centred, graph.constant(widths, "float64")), to="float32")


def interval_of_date(graph: Graph, contract: Contract, feature: DateFeature, own: str) -> str:
    """Add to the graph the operations of `intervals.interval_of`, for a date in days since 1970-01-01."""
    one = interval(contract, feature)
    if one.column is None:
        other = graph.constant([[one.day]], "float64")
    else:
        other = graph.columns(INPUT, one.column, one.column + 1)
    days = graph.apply("subtract", own, other) if one.sign > 0 else graph.apply("subtract", other, own)
    return graph.apply("divide", days, graph.constant([[one.divisor]], "float64"))


def _feature(graph: Graph, feature: Feature, encoding: Encoding, value: str) -> str:
    match encoding:
        case OrdinalEncoding() | OneHotEncoding() | EmbeddingEncoding():
            assert isinstance(feature, CategoricalFeature)
            return _coded(graph, feature, encoding, value)
        case NumericEncoding() | QuantileEncoding() | PiecewiseEncoding():
            # Only NaN differs from itself.
            is_there = graph.apply("equal", value, value)
            filled = value
            if encoding.fill is not None:
                filled = graph.apply("where", is_there, value, graph.constant([[encoding.fill]], "float64"))
            columns = _measured(graph, encoding, filled)
            if not feature.missing.endswith("-and-flag"):
                return columns
            flag = graph.apply("cast", graph.apply("not", is_there), to="float64")
            return graph.apply("concatenate", columns, flag, axis=1)
        case _:
            assert_never(encoding)


def _measured(graph: Graph, encoding: NumericEncoding | QuantileEncoding | PiecewiseEncoding, value: str) -> str:
    match encoding:
        case NumericEncoding(scale=scale):
            centred = graph.apply("subtract", value, graph.constant([[scale.mean]], "float64"))
            return graph.apply("divide", centred, graph.constant([[scale.deviation]], "float64"))
        case QuantileEncoding(values=knots, scores=scores):
            return graph.interpolated(value, knots, scores)
        case PiecewiseEncoding(ends=ends):
            return _shares(graph, np.array(ends), value)
        case _:
            assert_never(encoding)


def _shares(graph: Graph, ends: np.ndarray[tuple[int], np.dtype[np.float64]], value: str) -> str:
    """Add to the graph the operations of `encodings.shares_of_bins`."""
    width = np.diff(ends)
    is_open = width > 0
    floor, ceiling = np.zeros(len(width)), np.ones(len(width))
    if is_open.any():
        floor[np.flatnonzero(is_open)[0]], ceiling[np.flatnonzero(is_open)[-1]] = -np.inf, np.inf
    centred = graph.apply("subtract", value, graph.constant(ends[None, :-1], "float64"))
    share = graph.apply("divide", centred, graph.constant(np.where(is_open, width, 1.0)[None], "float64"))
    inside = graph.clipped(share, floor[None], ceiling[None])
    return graph.apply("multiply", inside, graph.constant(is_open[None].astype(float), "float64"))


def _coded(graph: Graph, feature: CategoricalFeature, encoding: Encoding, value: str) -> str:
    """Add to the graph the conversion of each code to its row of encoded columns. Unknown codes get the last row."""
    positions = np.arange(len(feature.codes), dtype=np.float64)
    table = encode(feature, encoding, np.append(positions, -1.0))
    is_code = graph.apply("equal", value, graph.constant(positions[None], "float64"))
    chosen = graph.apply("cast", is_code, to="float64")
    known = graph.apply("matmul", chosen, graph.constant(np.ones((len(positions), 1)), "float64"))
    unknown = graph.apply("subtract", graph.constant([[1.0]], "float64"), known)
    both = graph.apply("concatenate", chosen, unknown, axis=1)
    return graph.apply("matmul", both, graph.constant(table, "float64"))
