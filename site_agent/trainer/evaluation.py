"""How good a site's predictions are, computed with scikit-learn on rows the training never saw.

A metric that is undefined, such as AUROC where the test rows are all of one class, is None: never a
NaN, never a 0.5 that somebody would average. Differs from the authors' experiment, which cut the
logit at 0.5: here the probability is cut at 0.5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    mean_absolute_error,
    mean_squared_error,
    r2_score,
    recall_score,
    roc_auc_score,
)

from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.preprocessing import Preprocessing, Targets

Scores: TypeAlias = npt.NDArray[np.float64]
Metrics: TypeAlias = dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The metrics of one model on one part of the data; `rows` is how many they rest on."""

    task: Task
    rows: int
    metrics: Mapping[str, float | None]

    def to_json(self) -> dict[str, object]:
        """Plain values for `json.dumps`."""
        return {"task": self.task, "rows": self.rows, "metrics": dict(self.metrics)}


def evaluate(task: Task, targets: npt.NDArray[np.generic], scores: Scores, classes: Sequence[str]) -> Evaluation:
    """`measure` with the number of rows it rests on."""
    return Evaluation(task=task, rows=len(targets), metrics=measure(task, targets, scores, classes))


def probabilities(task: Task, outputs: npt.NDArray[np.generic]) -> Scores:
    """A network's outputs as probabilities, float64, stable for outputs of any size.

    Args:
        task: binary outputs have shape (rows,) or (rows, 1), multi-class (rows, classes); a
            regression's outputs are numbers already and only flattened.
        outputs: logits, or the regression's numbers.

    Returns:
        shape (rows,), or (rows, classes) for multi-class.
    """
    values = outputs.astype(np.float64)
    match task:
        case "binary":
            logits = values.reshape(len(values))
            # The exponent is never positive, so nothing overflows.
            small = np.exp(-np.abs(logits))
            return np.asarray(np.where(logits >= 0, 1.0, small) / (1.0 + small))
        case "multi-class":
            raised = np.exp(values - values.max(axis=1, keepdims=True))
            return np.asarray(raised / raised.sum(axis=1, keepdims=True))
        case "regression":
            return values.reshape(len(values))
        case _:
            assert_never(task)


def scores_of(preprocessing: Preprocessing, outputs: npt.NDArray[np.generic]) -> Scores:
    """A network's outputs as people read them: probabilities, or numbers in the target's own unit.

    Args:
        preprocessing: what the site's rows were encoded with.
        outputs: shape (rows, outputs); a regression's are z-scores.

    Returns:
        float64 of shape (rows,), or (rows, classes) for multi-class.
    """
    task = preprocessing.contract.target.task
    scores = probabilities(task, outputs)
    return preprocessing.in_target_units(scores) if task == "regression" else scores


def targets_of(preprocessing: Preprocessing, targets: Targets) -> Targets:
    """Encoded targets of shape (rows,) as `measure` wants them: a regression's in their own unit."""
    is_number = preprocessing.contract.target.task == "regression"
    return preprocessing.in_target_units(targets.astype(np.float64)) if is_number else targets


def measure(task: Task, targets: npt.NDArray[np.generic], scores: Scores, classes: Sequence[str]) -> Metrics:
    """The metrics of a task; None where one is undefined.

    Args:
        task: what is predicted.
        targets: shape (rows,): 0 and 1, indices of `classes`, or numbers in the target's unit.
        scores: probabilities as `probabilities` gives them, or numbers in the target's unit; finite.
        classes: the names of the classes, by index; their number matters here.

    Returns:
        binary and multi-class: auroc, auprc (average precision), accuracy, balanced_accuracy,
        macro_f1, a probability of at least 0.5 (or the largest) deciding. With several classes
        auroc and auprc are one against the rest; all means are over the classes present in
        `targets`. Regression: rmse, mae, r2.
    """
    if not len(targets) or len(targets) != len(scores) or not np.isfinite(scores).all():
        raise ValueError("as many finite scores as targets are needed, and at least one")
    match task:
        case "binary":
            return _measure_classes(targets.astype(np.int64), np.stack([1.0 - scores, scores], axis=1), positive=1)
        case "multi-class":
            if scores.shape != (len(targets), len(classes)):
                raise ValueError("one probability for each row and class is needed")
            return _measure_classes(targets.astype(np.int64), scores, positive=None)
        case "regression":
            return _measure_numbers(targets.astype(np.float64), scores)
        case _:
            assert_never(task)


def _measure_classes(targets: npt.NDArray[np.int64], scores: Scores, positive: int | None) -> Metrics:
    present = np.unique(targets)
    if positive is None:
        predicted = scores.argmax(axis=1)
        ranked = [int(label) for label in present]
    else:
        predicted = (scores[:, positive] >= 0.5).astype(np.int64)
        ranked = [positive]
    accuracy = float(accuracy_score(targets, predicted))
    if len(present) < 2:
        return {"auroc": None, "auprc": None, "accuracy": accuracy, "balanced_accuracy": None, "macro_f1": None}
    over = {"labels": present, "average": "macro", "zero_division": 0}
    return {
        "auroc": float(np.mean([roc_auc_score(targets == label, scores[:, label]) for label in ranked])),
        "auprc": float(np.mean([average_precision_score(targets == label, scores[:, label]) for label in ranked])),
        "accuracy": accuracy,
        "balanced_accuracy": float(recall_score(targets, predicted, **over)),
        "macro_f1": float(f1_score(targets, predicted, **over)),
    }


def _measure_numbers(targets: Scores, scores: Scores) -> Metrics:
    varied = targets.min() < targets.max()
    return {
        "rmse": math.sqrt(float(mean_squared_error(targets, scores))),
        "mae": float(mean_absolute_error(targets, scores)),
        "r2": float(r2_score(targets, scores)) if varied else None,
    }
