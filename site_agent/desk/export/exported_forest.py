"""A forest as an operation, and outputs as probabilities, as several kinds of models need them."""

from __future__ import annotations

from typing import assert_never

import numpy as np

from site_agent.desk.export.graph import Graph
from site_agent.trainer.data.contract import Task
from site_agent.trainer.forest import Forest

_DISTANCE = 0.005  # as in baselines.py, which says why


def forest_answers(graph: Graph, trees: Forest, features: str) -> str:
    """The mean over trees, float64 of shape (rows, answers), for float32 columns; see `Forest.answers`."""
    # Columns are float32: not above a float64 threshold is not above the next float32 below it.
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
    """Outputs, float64 of shape (rows, outputs), as probabilities or numbers."""
    match task:
        case "binary":
            return graph.apply("sigmoid", outputs)
        case "multi-class":
            return graph.apply("softmax", outputs)
        case "regression":
            return outputs
        case _:
            assert_never(task)


def shares_on_scale(graph: Graph, task: Task, answers: str, outputs: int) -> str:
    """A model's shares of shape (rows, outputs) as bounded logits or logarithms; see `baselines._on_scale`."""
    if task == "regression":
        return answers
    raised = graph.apply("add", answers, graph.constant([[_DISTANCE]], "float64"))
    if task == "binary":
        rest = graph.apply("subtract", graph.constant([[1.0 + _DISTANCE]], "float64"), answers)
    else:
        rest = graph.constant([[1.0 + outputs * _DISTANCE]], "float64")
    return graph.apply("log", graph.apply("divide", raised, rest))
