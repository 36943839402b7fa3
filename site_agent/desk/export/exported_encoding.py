"""Exports preprocessing as operations of a graph, from float64 inputs (rows, inputs) to encoded columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np

from site_agent.desk.export.graph import Graph, Value
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


def encoded(graph: Graph, preprocessing: Preprocessing) -> Value:
    """Add to the graph the operations of `Preprocessing.encode`. The result is float32 of shape (rows, columns)."""
    contract, parts = preprocessing.contract, list[Value]()
    for place, (feature, encoding) in enumerate(zip(contract.features, preprocessing.encodings, strict=True)):
        parts.append(_feature(feature, encoding, value_of(graph, contract, place)).cast("float32"))
    place = len(input_names(contract))
    for column, weights in zip(contract.terms, preprocessing.term_weights, strict=True):
        end, last = place + column.counted, place + len(column.encoded_columns)
        parts.append(_terms(graph.input.columns(place, end), weights))
        if column.note_size is not None:
            share = graph.constant([1.0 / column.note_size.buckets], "float64")
            parts.append((graph.input.columns(end, last) * share).cast("float32"))
        place = last
    if contract.image is not None:
        parts.append(_pixels(graph.input, contract.image, preprocessing.pixel_scales))
    return parts[0].beside(*parts[1:])


def value_of(graph: Graph, contract: Contract, place: int) -> Value:
    """Add to the graph the value of the feature at this position, float64 (rows, 1). A date becomes its interval.

    See `intervals.interval_of`.
    """
    feature, own = contract.features[place], graph.input.columns(place, place + 1)
    if not isinstance(feature, DateFeature):
        return own
    one = interval(contract, feature)
    if one.column is None:
        other = graph.constant([[one.day]], "float64")
    else:
        other = graph.input.columns(one.column, one.column + 1)
    return (own - other if one.sign > 0 else other - own) / [[one.divisor]]


def _terms(counts: Value, weights: TermWeights) -> Value:
    """Add to the graph the operations of `terms.weighted`."""
    rare = counts * [weights.rarity]
    length = (rare * rare).apply("sum").apply("sqrt")
    return (rare / length.apply("maximum", [[1.0]]) / [weights.largest]).cast("float32")


def _pixels(intensities: Value, column: ImageColumn, scales: Sequence[Scale]) -> Value:
    """Add to the graph the conversion of a file's intensities to standardised pixels. See `image_files.in_window`."""
    low, high = column.limits
    inside = intensities.clipped([[float(low)]], [[float(high)]])
    each = column.image.height * column.image.width
    # First (value - low) / (high - low). Then this number minus the mean of its channel, divided by the deviation.
    centres = np.repeat([low + scale.mean * (high - low) for scale in scales], each)[None]
    widths = np.repeat([scale.deviation * (high - low) for scale in scales], each)[None]
    return ((inside - centres) / widths).cast("float32")


def _feature(feature: Feature, encoding: Encoding, value: Value) -> Value:
    match encoding:
        case OrdinalEncoding() | OneHotEncoding() | EmbeddingEncoding():
            assert isinstance(feature, CategoricalFeature)
            return _coded(feature, encoding, value)
        case NumericEncoding() | QuantileEncoding() | PiecewiseEncoding():
            is_there = value.apply("equal", value)  # only NaN differs from itself
            filled = value
            if encoding.fill is not None:
                filled = is_there.chosen(value, [[encoding.fill]])
            columns = _measured(encoding, filled)
            has_flag = feature.missing.endswith("-and-flag")
            return columns.beside(is_there.apply("not").cast("float64")) if has_flag else columns
        case _:
            assert_never(encoding)


def _measured(encoding: NumericEncoding | QuantileEncoding | PiecewiseEncoding, value: Value) -> Value:
    match encoding:
        case NumericEncoding(scale=scale):
            return (value - [[scale.mean]]) / [[scale.deviation]]
        case QuantileEncoding(values=knots, scores=scores):
            return value.interpolated(knots, scores)
        case PiecewiseEncoding(ends=ends):
            return _shares(np.array(ends), value)
        case _:
            assert_never(encoding)


def _shares(ends: np.ndarray[tuple[int], np.dtype[np.float64]], value: Value) -> Value:
    """Add to the graph the operations of `encodings.shares_of_bins`."""
    width = np.diff(ends)
    is_open = width > 0
    floor, ceiling = np.zeros(len(width)), np.ones(len(width))
    if is_open.any():
        floor[np.flatnonzero(is_open)[0]], ceiling[np.flatnonzero(is_open)[-1]] = -np.inf, np.inf
    share = (value - ends[None, :-1]) / np.where(is_open, width, 1.0)[None]
    return share.clipped(floor[None], ceiling[None]) * is_open[None].astype(float)


def _coded(feature: CategoricalFeature, encoding: Encoding, value: Value) -> Value:
    """Add to the graph the conversion of each code to its row of encoded columns. Unknown codes get the last row."""
    positions = np.arange(len(feature.codes), dtype=np.float64)
    table = encode(feature, encoding, np.append(positions, -1.0))
    chosen = value.apply("equal", positions[None]).cast("float64")
    known = chosen @ np.ones((len(positions), 1))
    return chosen.beside([[1.0]] - known) @ table
