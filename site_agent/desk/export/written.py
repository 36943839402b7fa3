"""Exports a whole saved model as simple operations, from a patient's values to recalibrated probabilities.

The model is a network, perhaps averaged with the site's baseline, a simple model, or the joined model of
federated-prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np

from site_agent.desk.export.graph import Graph, Value
from site_agent.desk.export.onnx_inputs import input_names, other_day
from site_agent.desk.export.onnx_networks import Layers, network_outputs
from site_agent.desk.results.joined_model import JoinedModel
from site_agent.desk.results.own_models import BoostedTrees, OwnModel
from site_agent.desk.results.saved_model import SavedModel
from site_agent.desk.use.recalibration import PlattMap, Recalibration
from site_agent.trainer.data.cells import interval_rule
from site_agent.trainer.data.contract import Contract, Task
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
from site_agent.trainer.forest import Forest, Lines
from site_agent.trainer.prior.concept_inputs import ConceptEncoding
from site_agent.trainer.prior.concept_mapping import MappedCode, MappedNumber

_TINIEST = 1e-8  # as in calibration.py
_DISTANCE = 0.005  # as in baselines.py, which gives the reason
_FURTHEST = 30.0  # as in joined_model.py


def written_down(model: SavedModel, recalibration: Recalibration | None) -> Graph:
    """Return the graph of a saved model. The graph's result is float64 of shape (rows, 1) or (rows, classes)."""
    graph, task = Graph(), model.preprocessing.contract.target.task
    own = _encoded(graph, model.preprocessing)
    if model.own is not None:
        scores = _of_simple_model(model.own, task, own)
    elif model.joined is not None and model.concepts is not None:
        scores = _scores(task, _joined(model.joined, model.concepts, model.preprocessing.contract, own))
    else:
        scores = _scores(task, _of_network(model, own).cast("float64"))
    scale = model.preprocessing.target_scale
    if scale is not None:
        scores = scores * [[scale.deviation]] + [[scale.mean]]
    graph.finish(scores if recalibration is None else _recalibrated(recalibration, scores, model.outputs))
    return graph


def _scores(task: Task, outputs: Value) -> Value:
    """Add the conversion of outputs (rows, outputs) to probabilities. The outputs of a regression stay unchanged."""
    match task:
        case "binary" | "segmentation":
            return outputs.apply("sigmoid")
        case "multi-class":
            return outputs.apply("softmax")
        case "regression":
            return outputs
        case _:
            assert_never(task)


def _of_simple_model(model: OwnModel, task: Task, own: Value) -> Value:
    """Add a simple model's predictions to the graph, float64 of shape (rows, outputs). See `own_scores`."""
    match model:
        case Lines():
            return _scores(task, _of_lines(own.cast("float64"), model))
        case Forest():
            return _of_forest(model, own)
        case BoostedTrees(forest=forest, starts=starts):
            return _scores(task, _of_forest(forest, own) + starts[None])
        case _:
            assert_never(model)


def _of_lines(wide: Value, lines: Lines) -> Value:
    return wide @ lines.slopes.T + lines.starts[None]


def _of_forest(trees: Forest, features: Value) -> Value:
    """Add a forest on float32 columns to the graph: the mean of its trees, float64 (rows, answers). See `Forest`."""
    # A float32 value is above a float64 threshold exactly if it is above the largest float32 that is not above the
    # threshold.
    thresholds = trees.thresholds.astype(np.float32)
    above = thresholds.astype(np.float64) > trees.thresholds
    thresholds[above] = np.nextafter(thresholds[above], np.float32(-np.inf))
    graph = features.graph
    return features.apply(
        "forest",
        graph.constant(trees.roots, "int64"),
        graph.constant(trees.columns, "int64"),
        graph.constant(thresholds, "float32"),
        graph.constant(trees.children, "int64"),
        graph.constant(trees.values, "float64"),
    )


def _on_scale(task: Task, shares: Value, outputs: int) -> Value:
    """Add to the graph the operations of `baselines._on_scale`: fractions (rows, outputs) to logits or logarithms."""
    if task == "regression":
        return shares
    raised = shares.apply("add", [[_DISTANCE]])
    if task == "binary":
        return (raised / ([[1.0 + _DISTANCE]] - shares)).apply("log")
    return (raised / [[1.0 + outputs * _DISTANCE]]).apply("log")


def _of_network(model: SavedModel, own: Value) -> Value:
    """Add the network to the graph; float32 (rows, outputs)."""
    rows, columns = _placed(model, own), len(model.columns)
    common = columns if model.common is None else model.common
    return network_outputs(Layers(own.graph, model.values), model.plan.architecture, rows, columns, common)


def _placed(model: SavedModel, own: Value) -> Value:
    """Add to the graph the columns that the network reads, in the plan's order. A column that this site lacks is 0.

    See `dataset.place_columns`. A network on concepts reads other columns: see `concept_inputs.read_places`.
    """
    mine = model.preprocessing.columns
    if model.read_places is not None and model.concepts is not None:
        shared = _concept_columns(model.concepts, model.preprocessing.contract, own)
        return own.beside(shared).apply("gather", places=model.read_places)
    if not model.plan.columns or model.columns == mine:
        return own
    both = own.beside(own.columns(0, 1) * [[0.0]])
    places = {name: place for place, name in enumerate(mine)}
    return both.apply("gather", places=tuple(places.get(name, len(mine)) for name in model.columns))


def _joined(joined: JoinedModel, concepts: ConceptEncoding, contract: Contract, own: Value) -> Value:
    """Add the model of federated-prior to the graph. The result is float64 of shape (rows, outputs).

    See `JoinedModel.outputs`. The model adds the site's regression, its forest and the others' score, each times its
    weight.
    """
    line = _of_lines(own.cast("float64"), joined.own)
    if joined.task == "multi-class":
        line = line.apply("softmax").apply("log")
    grown = _on_scale(joined.task, _of_forest(joined.forest, own), len(joined.own.starts))
    others = _others(joined, concepts, contract, line)
    first, second, third = (
        one * [[float(weight)]] for one, weight in zip((line, grown, others), joined.weights, strict=True)
    )
    return first + second + third


def _others(joined: JoinedModel, concepts: ConceptEncoding, contract: Contract, like: Value) -> Value:
    """Add to the graph the score of this site's rows from the other hospitals' coefficients, in the shape of `like`."""
    places = [place for place, one in enumerate(concepts.mapped) if one is not None and concepts.used[place]]
    line = like * [[0.0]] + joined.others.starts[None]
    if places:
        first, *rest = [_concept(like.graph, concepts, contract, place) for place in places]
        both = first.beside(*rest).cast("float32").cast("float64")
        line = line + both @ joined.others.slopes[:, places].T
    if joined.task != "multi-class":
        return line
    shares = line.clipped([[-_FURTHEST]], [[_FURTHEST]]).apply("sigmoid")  # as in joined_model.of_others
    return (shares / shares.apply("sum")).apply("log")


def _concept_columns(concepts: ConceptEncoding, contract: Contract, own: Value) -> Value:
    """Add `ConceptEncoding.encode` to the graph: float32 (rows, columns). Of `own` only the number of rows is used."""
    nothing = own.columns(0, 1).cast("float64") * [[0.0]]
    first, *rest = [
        nothing if one is None or not concepts.used[place] else _concept(own.graph, concepts, contract, place)
        for place, one in enumerate(concepts.mapped)
    ]
    return first.beside(*rest).cast("float32")


def _concept(graph: Graph, concepts: ConceptEncoding, contract: Contract, place: int) -> Value:
    """Add one standardised concept to the graph, float64 of shape (rows, 1). A missing value is 0."""
    one, mean, deviation = concepts.mapped[place], concepts.means[place], concepts.deviations[place]
    assert one is not None
    number = [feature.name for feature in contract.features].index(one.feature)
    feature, value = contract.features[number], _value_of(graph, contract, number)
    match one:
        case MappedNumber():
            is_there, zero = value.apply("equal", value), graph.constant([[0.0]], "float64")  # only NaN differs
            width = one.high - one.low
            scaled = is_there.chosen(value, zero) * [[one.factor / width]] + [[(one.offset - one.low) / width]]
            return is_there.chosen((scaled.clipped([[0.0]], [[1.0]]) - [[mean]]) / [[deviation]], zero)
        case MappedCode():
            assert isinstance(feature, CategoricalFeature)
            positions = np.arange(len(feature.codes), dtype=np.float64)
            scores = np.where(np.isin(positions, one.ones), 1.0 - mean, -mean) / deviation
            known = np.where(np.isin(positions, one.known), scores, 0.0)
            return value.apply("equal", positions[None]).cast("float64") @ known[:, None]
        case _:
            assert_never(one)


def _recalibrated(recalibration: Recalibration, scores: Value, outputs: int) -> Value:
    parts = []
    for place, one in enumerate(recalibration.maps):
        own = scores.columns(place, place + 1)
        if isinstance(one, PlattMap):
            inside = own.clipped([[_TINIEST]], [[1.0 - _TINIEST]])
            logit = (inside / ([[1.0]] - inside)).apply("log")
            parts.append((logit * [[one.slope]] + [[one.intercept]]).apply("sigmoid"))
        else:
            parts.append(own.interpolated(one.xs, one.ys))
    if outputs == 1:
        return parts[0]
    mapped = parts[0].beside(*parts[1:])
    total, zero = mapped.apply("sum"), scores.graph.constant([[0.0]], "float64")
    is_known = total.apply("greater", zero)
    return is_known.chosen(mapped / is_known.chosen(total, [[1.0]]), scores)


def _encoded(graph: Graph, preprocessing: Preprocessing) -> Value:
    """Add to the graph the operations of `Preprocessing.encode`. The result is float32 of shape (rows, columns)."""
    contract, parts = preprocessing.contract, list[Value]()
    for place, (feature, encoding) in enumerate(zip(contract.features, preprocessing.encodings, strict=True)):
        parts.append(_feature(feature, encoding, _value_of(graph, contract, place)).cast("float32"))
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


def _value_of(graph: Graph, contract: Contract, place: int) -> Value:
    """Add a feature's value to the graph, float64 (rows, 1). A date becomes its interval, see `cells.interval_of`."""
    feature, own = contract.features[place], graph.input.columns(place, place + 1)
    if not isinstance(feature, DateFeature):
        return own
    (column, day), rule = other_day(contract, feature), interval_rule(feature)
    other = graph.constant([[day]], "float64") if column is None else graph.input.columns(column, column + 1)
    return (own - other if rule.sign > 0 else other - own) / [[rule.divisor]]


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
    if isinstance(encoding, OrdinalEncoding | OneHotEncoding | EmbeddingEncoding):
        assert isinstance(feature, CategoricalFeature)
        return _coded(feature, encoding, value)
    is_there = value.apply("equal", value)  # only NaN differs from itself
    filled = value if encoding.fill is None else is_there.chosen(value, [[encoding.fill]])
    match encoding:
        case NumericEncoding(scale=scale):
            columns = (filled - [[scale.mean]]) / [[scale.deviation]]
        case QuantileEncoding(values=knots, scores=scores):
            columns = filled.interpolated(knots, scores)
        case PiecewiseEncoding(ends=ends):
            columns = _shares(np.array(ends), filled)
        case _:
            assert_never(encoding)
    has_flag = feature.missing.endswith("-and-flag")
    return columns.beside(is_there.apply("not").cast("float64")) if has_flag else columns


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
    """Add to the graph an encoding of codes as rows of a table. Unknown codes get the table's last row."""
    positions = np.arange(len(feature.codes), dtype=np.float64)
    table = encode(feature, encoding, np.append(positions, -1.0))
    chosen = value.apply("equal", positions[None]).cast("float64")
    known = chosen @ np.ones((len(positions), 1))
    return chosen.beside([[1.0]] - known) @ table
