"""Converts outputs to probabilities, and stores linear models and random forests as plain arrays.

scikit-learn fits the models. Only numbers are stored. So a saved model is read without unpickling, and its predictions
do not depend on the installed version of scikit-learn. The rules:

* baselines, reports and predictions use the same two functions for probabilities and losses, so they agree to the bit;
* a forest's prediction equals scikit-learn's to 1e-12. Trees compare float32 values with float64 thresholds. The
  prediction is the mean over trees of the leaf's class shares (or number);
* the nodes of all trees are in one list. A node comes before its children, so every path ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, assert_never

import numpy as np
import numpy.typing as npt

from protos.statistics.newton_walk import probabilities as logistic
from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.image_folder import blocks

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression, Ridge


_TINIEST: Final = float(np.finfo(np.float64).eps)


def probabilities(task: Task, outputs: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
    """Return the probabilities, float64, that follow from a network's outputs. Very large outputs cause no overflow.

    Outputs are logits of shape (rows,) or (rows, 1) for binary, (rows, classes) for multi-class, or a regression's
    numbers (rows,) or (rows, 1), which are only flattened. The result has shape (rows,), or (rows, classes).
    """
    values = outputs.astype(np.float64)
    match task:
        case "binary":
            return logistic(values.reshape(len(values)))
        case "multi-class":
            raised = np.exp(values - values.max(axis=1, keepdims=True))
            return np.asarray(raised / raised.sum(axis=1, keepdims=True))
        case "regression":
            return values.reshape(len(values))
        case _:
            assert_never(task)


def log_loss_of_rows(targets: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return minus the logarithm of the probability of the observed class, shape (rows,), in nats.

    As in scikit-learn, probabilities are clipped 2.2e-16 away from 0 and 1. So one row with a certain and wrong
    prediction costs 36 nats.
    """
    happened = (
        np.where(targets == 1, scores, 1.0 - scores) if scores.ndim == 1 else scores[np.arange(len(scores)), targets]
    )
    return np.asarray(-np.log(happened.clip(_TINIEST, 1.0 - _TINIEST)))


# Pairs of row and tree that are processed at once; they need about 100 MB.
_BLOCK_PAIRS: Final = 1 << 22
DISTANCE: Final = 0.005  # fractions are kept this far away from 0 and 1, where a logit would be infinite


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Lines:
    """A linear model: float64 `slopes` of shape (outputs, columns), and `starts` (outputs,), the values at zero."""

    slopes: npt.NDArray[np.float64]
    starts: npt.NDArray[np.float64]

    def of(self, columns: npt.NDArray[np.generic]) -> npt.NDArray[np.float64]:
        """Return the linear model's outputs, float64 (rows, outputs), for columns of shape (rows, columns)."""
        values = np.empty((len(columns), len(self.starts)))
        for block in blocks(*columns.shape):  # the pixels of all rows could need too much memory
            wide = columns[block].astype(np.float64)
            # We avoid a matrix product, because its last bits would depend on the number of rows.
            for output, (slope, start) in enumerate(zip(self.slopes, self.starts, strict=True)):
                values[block, output] = (wide * slope).sum(axis=1) + start
        return values


def lines_of(fitted: LogisticRegression | Ridge, outputs: int, gap: float = np.inf) -> Lines:
    """Convert a linear model of scikit-learn, whose class labels are indices of classes, to plain arrays.

    If no row has a class, its start is lower than the lowest other start by `gap`.
    """
    slopes, starts = np.atleast_2d(fitted.coef_), np.atleast_1d(fitted.intercept_)
    if outputs == 1:
        return Lines(slopes=slopes, starts=starts)
    # If two classes are present, scikit-learn returns the logit of the second class.
    if len(slopes) < len(fitted.classes_):
        slopes, starts = (np.concatenate([np.zeros_like(each), each]) for each in (slopes, starts))
    all_slopes, all_starts = np.zeros((outputs, slopes.shape[1])), np.full(outputs, starts.min() - gap)
    all_slopes[fitted.classes_], all_starts[fitted.classes_] = slopes, starts
    return Lines(slopes=all_slopes, starts=all_starts)


class _Nodes(Protocol):
    """One tree in scikit-learn's memory. A leaf has child -1. `value` has shape (nodes, 1, answers)."""

    feature: npt.NDArray[np.int64]
    threshold: npt.NDArray[np.float64]
    children_left: npt.NDArray[np.int64]
    children_right: npt.NDArray[np.int64]
    value: npt.NDArray[np.float64]


class GrownTree(Protocol):
    """A decision tree that scikit-learn has fitted."""

    tree_: _Nodes


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Forest:
    """A random forest as arrays. The nodes of all trees are numbered in one sequence.

    Attributes:
        roots: int32 of shape (trees,).
        columns: int32 of shape (nodes,): the column that a node compares, 0 at a leaf.
        thresholds: float64 of shape (nodes,): a value up to the threshold follows the left child. Infinite at a leaf.
        children: int32 of shape (nodes, 2), left and right. The children of a leaf are the leaf itself.
        values: float64 of shape (nodes, answers): shares of classes, or the mean number.
    """

    roots: npt.NDArray[np.int32]
    columns: npt.NDArray[np.int32]
    thresholds: npt.NDArray[np.float64]
    children: npt.NDArray[np.int32]
    values: npt.NDArray[np.float64]

    def answers(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        """Return the mean output of all trees of the forest, float64 (rows, answers), for features (rows, columns)."""
        block = max(1, _BLOCK_PAIRS // len(self.roots))
        parts = [self._mean(features[start : start + block]) for start in range(0, len(features), block)]
        return np.concatenate(parts) if parts else np.empty((0, self.values.shape[1]))

    def _mean(self, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        rows = np.arange(len(features))[:, None]
        at = np.broadcast_to(self.roots, (len(features), len(self.roots)))
        while True:
            is_above = features[rows, self.columns[at]] > self.thresholds[at]
            then = self.children[at, is_above.astype(np.int8)]
            if np.array_equal(then, at):
                break
            at = then
        total = np.zeros((len(features), self.values.shape[1]))
        # Trees are added one by one, as in scikit-learn, so that a row's sum does not depend on other rows.
        for leaves in at.T:
            total += self.values[leaves]
        return total / len(self.roots)


def forest_of(trees: Sequence[GrownTree]) -> Forest:
    """Convert trees that scikit-learn has trained into a forest of arrays."""
    nodes = [tree.tree_ for tree in trees]
    starts = np.cumsum([0, *(len(each.feature) for each in nodes)])
    children = np.concatenate([_children(each) + start for each, start in zip(nodes, starts, strict=False)])
    is_leaf = np.concatenate([each.children_left < 0 for each in nodes])
    return Forest(
        roots=starts[:-1].astype(np.int32),
        columns=np.where(is_leaf, 0, np.concatenate([each.feature for each in nodes])).astype(np.int32),
        thresholds=np.where(is_leaf, np.inf, np.concatenate([each.threshold for each in nodes])),
        children=children.astype(np.int32),
        values=np.concatenate([each.value[:, 0, :] for each in nodes]),
    )


def _children(nodes: _Nodes) -> npt.NDArray[np.int64]:
    numbers = np.arange(len(nodes.feature))
    both = np.stack((nodes.children_left, nodes.children_right), axis=1)
    return np.where(both < 0, numbers[:, None], both)


def on_bounded_scale(task: Task, answers: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Convert class frequencies (rows, outputs) to bounded logits or logarithms. Numbers are not changed."""
    match task:
        case "binary":
            return np.asarray(np.log((answers + DISTANCE) / (1.0 - answers + DISTANCE)))
        case "multi-class":
            return np.asarray(np.log((answers + DISTANCE) / (1.0 + answers.shape[1] * DISTANCE)))
        case "regression":
            return answers
        case _:
            assert_never(task)
