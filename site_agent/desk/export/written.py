"""Exports a whole saved model as a graph, from a patient's values to recalibrated probabilities."""

from __future__ import annotations

from typing import assert_never

from site_agent.desk.export.exported_encoding import encoded
from site_agent.desk.export.exported_join import (
    concept_columns,
    forest_answers,
    joined_outputs,
    scores_of_outputs,
    shares_on_scale,
)
from site_agent.desk.export.graph import Graph
from site_agent.desk.export.onnx_layers import Layers
from site_agent.desk.export.onnx_networks import network_outputs
from site_agent.desk.results.own_models import BoostedTrees, LinearModel, OwnModel, VotingForest
from site_agent.desk.results.saved_model import SavedModel
from site_agent.desk.use.recalibration import PlattMap, Recalibration
from site_agent.trainer.baselines import Baseline
from site_agent.trainer.data.contract import Task
from site_agent.trainer.soft_target_training import added_columns

_TINIEST = 1e-8  # as in calibration.py


def written_down(model: SavedModel, recalibration: Recalibration | None) -> Graph:
    """Return the graph of a saved model. The graph's result is float64 of shape (rows, 1) or (rows, classes)."""
    graph, task = Graph(), model.preprocessing.contract.target.task
    own = encoded(graph, model.preprocessing)
    if model.own is not None:
        scores = _of_simple_model(graph, model.own, task, own)
    elif model.joined is not None and model.concepts is not None:
        outputs = joined_outputs(graph, model.joined, model.concepts, model.preprocessing.contract, own)
        scores = scores_of_outputs(graph, task, outputs)
    else:
        outputs = graph.apply("cast", _of_network(graph, model, own), to="float64")
        scores = scores_of_outputs(graph, task, outputs)
    scale = model.preprocessing.target_scale
    if scale is not None:
        wide = graph.apply("multiply", scores, graph.constant([[scale.deviation]], "float64"))
        scores = graph.apply("add", wide, graph.constant([[scale.mean]], "float64"))
    if recalibration is not None:
        scores = _recalibrated(graph, recalibration, scores, model.outputs)
    graph.finish(scores)
    return graph


def _of_simple_model(graph: Graph, model: OwnModel, task: Task, own: str) -> str:
    """Add a simple model's predictions to the graph, float64 of shape (rows, outputs). See `own_scores`."""
    match model:
        case LinearModel(lines=lines):
            products = graph.apply(
                "matmul", graph.apply("cast", own, to="float64"), graph.constant(lines.slopes.T, "float64")
            )
            started = graph.apply("add", products, graph.constant(lines.starts[None], "float64"))
            return scores_of_outputs(graph, task, started)
        case VotingForest(forest=forest):
            return forest_answers(graph, forest, own)
        case BoostedTrees(forest=forest, starts=starts):
            sums = graph.apply("add", forest_answers(graph, forest, own), graph.constant(starts[None], "float64"))
            return scores_of_outputs(graph, task, sums)
        case _:
            assert_never(model)


def _of_network(graph: Graph, model: SavedModel, own: str) -> str:
    """Add the network to the graph, averaged with the baseline if the plan requires it; float32 (rows, outputs)."""
    rows = _placed(graph, model, own)
    said = None if model.baseline is None else _predictions(graph, model.baseline, own)
    use = model.plan.expert
    if said is not None and use is not None and use.path_start:
        rows = graph.apply("concatenate", rows, graph.apply("cast", said, to="float32"), axis=1)
    columns = len(model.columns) + added_columns(model.plan, model.outputs)
    layers = Layers(graph, model.values)
    common = columns if model.common is None else model.common
    outputs = network_outputs(layers, model.plan.architecture, rows, columns, common)
    if said is not None and use is not None:
        network = layers.scaled(outputs, 1.0 - use.result_share)
        outputs = graph.apply("add", network, layers.scaled(graph.apply("cast", said, to="float32"), use.result_share))
    return outputs


def _placed(graph: Graph, model: SavedModel, own: str) -> str:
    """Add to the graph the columns that the network reads, in the plan's order. A column that this site lacks is 0.

    See `dataset.place_columns`. A network on concepts reads other columns: see `concept_inputs.read_places`.
    """
    mine = model.preprocessing.columns
    if model.read_places is not None and model.concepts is not None:
        shared = concept_columns(graph, model.concepts, model.preprocessing.contract, own)
        return graph.apply("gather", graph.apply("concatenate", own, shared, axis=1), places=model.read_places)
    if not model.plan.columns or model.columns == mine:
        return own
    nothing = graph.apply("multiply", graph.columns(own, 0, 1), graph.constant([[0.0]]))
    both = graph.apply("concatenate", own, nothing, axis=1)
    places = {name: place for place, name in enumerate(mine)}
    return graph.apply("gather", both, places=tuple(places.get(name, len(mine)) for name in model.columns))


def _predictions(graph: Graph, baseline: Baseline, features: str) -> str:
    """Add the predictions of the site's baseline to the graph, float64 (rows, outputs). See `Baseline.predictions`."""
    wide = graph.apply("cast", features, to="float64")
    lines = graph.apply("matmul", wide, graph.constant(baseline.lines.slopes.T, "float64"))
    lines = graph.apply("add", lines, graph.constant(baseline.lines.starts[None], "float64"))
    linear = shares_on_scale(
        graph, baseline.task, scores_of_outputs(graph, baseline.task, lines), len(baseline.lines.starts)
    )
    answers = forest_answers(graph, baseline.forest, features)
    grown = shares_on_scale(graph, baseline.task, answers, len(baseline.lines.starts))
    share = baseline.forest_share
    both = graph.apply("add", graph.apply("multiply", linear, graph.constant([[1.0 - share]], "float64")),
                       graph.apply("multiply", grown, graph.constant([[share]], "float64")))  # fmt: skip
    if baseline.task != "multi-class":
        return both
    total = graph.apply("log", graph.apply("sum", graph.apply("exp", both)))
    return graph.apply("subtract", both, total)


def _recalibrated(graph: Graph, recalibration: Recalibration, scores: str, outputs: int) -> str:
    parts = []
    for place, one in enumerate(recalibration.maps):
        own = graph.columns(scores, place, place + 1)
        if isinstance(one, PlattMap):
            inside = graph.clipped(own, [[_TINIEST]], [[1.0 - _TINIEST]])
            rest = graph.apply("subtract", graph.constant([[1.0]], "float64"), inside)
            logit = graph.apply("log", graph.apply("divide", inside, rest))
            line = graph.apply("multiply", logit, graph.constant([[one.slope]], "float64"))
            parts.append(graph.apply("sigmoid", graph.apply("add", line, graph.constant([[one.intercept]], "float64"))))
        else:
            parts.append(graph.interpolated(own, one.xs, one.ys))
    if outputs == 1:
        return parts[0]
    mapped = graph.apply("concatenate", *parts, axis=1)
    total, zero = graph.apply("sum", mapped), graph.constant([[0.0]], "float64")
    is_known = graph.apply("greater", total, zero)
    divisor = graph.apply("where", is_known, total, graph.constant([[1.0]], "float64"))
    return graph.apply("where", is_known, graph.apply("divide", mapped, divisor), scores)
