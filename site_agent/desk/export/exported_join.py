"""Exports forests, probabilities and the model of federated-prior as operations of a graph.

The joined model adds the site's regression, the site's forest and the others' score, each times its weight.
"""

from __future__ import annotations

from typing import assert_never

import numpy as np

from site_agent.desk.export.exported_encoding import interval_of_date
from site_agent.desk.export.graph import INPUT, Graph
from site_agent.desk.results.joined_model import JoinedModel
from site_agent.trainer.data.contract import Contract, Task
from site_agent.trainer.data.contract_columns import CategoricalFeature, DateFeature
from site_agent.trainer.forest import Forest, Lines
from site_agent.trainer.prior.concept_encoding import ConceptEncoding
from site_agent.trainer.prior.concept_mapping import MappedCode, MappedNumber

_DISTANCE = 0.005  # as in baselines.py, which gives the reason


def forest_answers(graph: Graph, trees: Forest, features: str) -> str:
    """Add a forest to the graph. The result is the mean over trees, float64 of shape (rows, answers).

    `features` names float32 columns. See `Forest.answers`.
    """
    # A float32 value is above a float64 threshold exactly if it is above the largest float32 that is not above the
    # threshold.
    thresholds = trees.thresholds.astype(np.float32)
    above = thresholds.astype(np.float64) > trees.thresholds
    thresholds[above] = np.nextafter(thresholds[above], np.float32(-np.inf))
    names = [
        graph.constant(trees.roots, "int64"),
        graph.constant(trees.columns, "int64"),
        graph.constant(thresholds, "float32"),
        graph.constant(trees.children, "int64"),
        graph.constant(trees.values, "float64"),
    ]
    return graph.apply("forest", features, *names)


def scores_of_outputs(graph: Graph, task: Task, outputs: str) -> str:
    """Add to the graph the conversion of outputs, float64 (rows, outputs), to probabilities; numbers stay unchanged."""
    match task:
        case "binary" | "segmentation":
            return graph.apply("sigmoid", outputs)
        case "multi-class":
            return graph.apply("softmax", outputs)
        case "regression":
            return outputs
        case _:
            assert_never(task)


def shares_on_scale(graph: Graph, task: Task, answers: str, outputs: int) -> str:
    """Add to the graph the operations of `baselines._on_scale`: fractions (rows, outputs) to logits or logarithms."""
    if task == "regression":
        return answers
    raised = graph.apply("add", answers, graph.constant([[_DISTANCE]], "float64"))
    if task == "binary":
        rest = graph.apply("subtract", graph.constant([[1.0 + _DISTANCE]], "float64"), answers)
    else:
        rest = graph.constant([[1.0 + outputs * _DISTANCE]], "float64")
    return graph.apply("log", graph.apply("divide", raised, rest))


_FURTHEST = 30.0  # as in joined_model.py


def joined_outputs(graph: Graph, joined: JoinedModel, concepts: ConceptEncoding, contract: Contract, own: str) -> str:
    """Add the model of federated-prior to the graph. The result is float64 of shape (rows, outputs).

    See `JoinedModel.outputs`.

    Args:
        joined: the three models and their weights.
        concepts: how the site's columns become the common columns.
        own: the name of the encoded columns.
    """
    wide, outputs = graph.apply("cast", own, to="float64"), len(joined.own.starts)
    line = _lines(graph, wide, joined.own)
    if joined.task == "multi-class":
        line = graph.apply("log", graph.apply("softmax", line))
    grown = shares_on_scale(graph, joined.task, forest_answers(graph, joined.forest, own), outputs)
    others = _others(graph, joined, concepts, contract, line)
    said = [
        graph.apply("multiply", one, graph.constant([[float(weight)]], "float64"))
        for one, weight in zip((line, grown, others), joined.weights, strict=True)
    ]
    return graph.apply("add", graph.apply("add", said[0], said[1]), said[2])


def concept_columns(graph: Graph, concepts: ConceptEncoding, contract: Contract, own: str) -> str:
    """Add to the graph the operations of `ConceptEncoding.encode`. The result is float32 of shape (rows, columns).

    Args:
        own: the name of the encoded columns, at least one; only their number of rows is used.
    """
    first = graph.apply("cast", graph.columns(own, 0, 1), to="float64")
    nothing = graph.apply("multiply", first, graph.constant([[0.0]], "float64"))
    columns = [
        nothing if one is None or not concepts.used[place] else _column(graph, concepts, contract, place)
        for place, one in enumerate(concepts.mapped)
    ]
    both = columns[0] if len(columns) == 1 else graph.apply("concatenate", *columns, axis=1)
    return graph.apply("cast", both, to="float32")


def _lines(graph: Graph, wide: str, lines: Lines) -> str:
    products = graph.apply("matmul", wide, graph.constant(lines.slopes.T, "float64"))
    return graph.apply("add", products, graph.constant(lines.starts[None], "float64"))


def _others(graph: Graph, joined: JoinedModel, concepts: ConceptEncoding, contract: Contract, like: str) -> str:
    """Add the score from the other hospitals' coefficients to the graph. The result has the shape of `like`."""
    places = [place for place, one in enumerate(concepts.mapped) if one is not None and concepts.used[place]]
    nothing = graph.apply("multiply", like, graph.constant([[0.0]], "float64"))
    line = graph.apply("add", nothing, graph.constant(joined.others.starts[None], "float64"))
    if places:
        columns = [_column(graph, concepts, contract, place) for place in places]
        both = columns[0] if len(columns) == 1 else graph.apply("concatenate", *columns, axis=1)
        both = graph.apply("cast", graph.apply("cast", both, to="float32"), to="float64")
        slopes = graph.constant(joined.others.slopes[:, places].T, "float64")
        line = graph.apply("add", line, graph.apply("matmul", both, slopes))
    return _as_shares(graph, joined.task, line)


def _as_shares(graph: Graph, task: Task, line: str) -> str:
    """Add to the graph the operations of `joined_model.of_others`."""
    match task:
        case "binary" | "regression" | "segmentation":
            return line
        case "multi-class":
            shares = graph.apply("sigmoid", graph.clipped(line, [[-_FURTHEST]], [[_FURTHEST]]))
            return graph.apply("log", graph.apply("divide", shares, graph.apply("sum", shares)))
        case _:
            assert_never(task)


def _column(graph: Graph, concepts: ConceptEncoding, contract: Contract, place: int) -> str:
    """Add one standardised concept to the graph, float64 of shape (rows, 1). A missing value is 0."""
    one, mean, deviation = concepts.mapped[place], concepts.means[place], concepts.deviations[place]
    assert one is not None
    names = [feature.name for feature in contract.features]
    number = names.index(one.feature)
    feature, value = contract.features[number], graph.columns(INPUT, number, number + 1)
    if isinstance(feature, DateFeature):
        value = interval_of_date(graph, contract, feature, value)
    match one:
        case MappedNumber():
            return _number(graph, one, value, mean, deviation)
        case MappedCode():
            assert isinstance(feature, CategoricalFeature)
            positions = np.arange(len(feature.codes), dtype=np.float64)
            scores = np.where(np.isin(positions, one.ones), 1.0 - mean, -mean) / deviation
            is_code = graph.apply("equal", value, graph.constant(positions[None], "float64"))
            chosen = graph.apply("cast", is_code, to="float64")
            known = np.where(np.isin(positions, one.known), scores, 0.0)
            return graph.apply("matmul", chosen, graph.constant(known[:, None], "float64"))
        case _:
            assert_never(one)


def _number(graph: Graph, one: MappedNumber, value: str, mean: float, deviation: float) -> str:
    # Only NaN differs from itself.
    is_there, zero = graph.apply("equal", value, value), graph.constant([[0.0]], "float64")
    filled = graph.apply("where", is_there, value, zero)
    width = one.high - one.low
    scaled = graph.apply("multiply", filled, graph.constant([[one.factor / width]], "float64"))
    moved = graph.apply("add", scaled, graph.constant([[(one.offset - one.low) / width]], "float64"))
    centred = graph.apply("subtract", graph.clipped(moved, [[0.0]], [[1.0]]), graph.constant([[mean]], "float64"))
    standard = graph.apply("divide", centred, graph.constant([[deviation]], "float64"))
    return graph.apply("where", is_there, standard, zero)
