"""Computes metrics of a model's predictions on rows that were not used for training, with scikit-learn.

A metric that is undefined is None, such as AUROC with test rows of one class. It is never NaN or 0.5, which somebody
would average. No metric cuts a probability at 0.5, which is no threshold of a clinic.

Calibration is whether 20 of 100 patients with a predicted probability of 20% have the outcome. A probability is limited
to 1e-8 to 1 - 1e-8, so that its logit is finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.data.preprocessing import Preprocessing, Targets
from site_agent.trainer.disk import Json
from site_agent.trainer.fitted_models import log_loss_of_rows, probabilities

Scores: TypeAlias = npt.NDArray[np.float64]
Metrics: TypeAlias = dict[str, float | None]
_RANKING: Final = ("auroc", "auprc")  # these need both classes
METRIC_NAMES: Final = {
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "brier": "Brier score",
    "log_loss": "log loss",
    "rmse": "root mean square error",
    "mae": "mean absolute error",
    "r2": "R²",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HeldOutRows:
    """The true outcomes of rows on which models are compared. These rows are never used in training.

    Attributes:
        task: the kind of prediction.
        targets: shape (rows,): 0 and 1, indices of `classes`, or numbers in the target's own unit.
        classes: the names of the classes by index; empty for regression.
        patients: int64 of shape (rows,), equal for rows of one patient; None if every row is a patient.
        unit: of a regression's target, if the contract names it.
    """

    task: Task
    targets: npt.NDArray[np.generic]
    classes: tuple[str, ...]
    patients: npt.NDArray[np.int64] | None = None
    unit: str | None = None

    def __post_init__(self) -> None:
        if not len(self.targets) or (self.patients is not None and len(self.patients) != len(self.targets)):
            raise ValueError("at least one row, and a patient for each where patients are known")

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:
        """Return what `repr` shows: only the number of rows, because a traceback must not show a patient's values."""
        return f"HeldOutRows(rows={len(self)})"

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The observed class of each row, shape (rows,). Only for outcomes with classes."""
        return self.targets.astype(np.int64)

    @property
    def owners(self) -> npt.NDArray[np.int64]:
        """The patient of each row, shape (rows,). If patients are not identified, each row counts as a patient."""
        return np.arange(len(self)) if self.patients is None else self.patients

    @property
    def class_counts(self) -> list[int]:
        """The number of patients in each declared class. A patient with several rows of a class is counted once."""
        return [len(np.unique(self.owners[self.labels == place])) for place in range(len(self.classes))]

    def part(self, places: npt.NDArray[np.int64]) -> HeldOutRows:
        """Return only the rows at the positions `places`, int64 of shape (rows of the part,)."""
        patients = None if self.patients is None else self.patients[places]
        return replace(self, targets=self.targets[places], patients=patients)

    def evaluate(self, scores: Scores) -> Metrics:
        return measure(self.task, self.targets, scores, self.classes)


def scores_of(preprocessing: Preprocessing, outputs: npt.NDArray[np.generic]) -> Scores:
    """Convert a model's outputs (rows, outputs) to probabilities, or to numbers in the outcome's own unit.

    The result is float64 of shape (rows,), or (rows, classes) for multi-class.
    """
    task = preprocessing.contract.target.task
    scores = probabilities(task, outputs)
    return preprocessing.in_target_units(scores) if task == "regression" else scores


def targets_of(preprocessing: Preprocessing, targets: Targets) -> Targets:
    """Convert encoded targets (rows,) to the unit of the outcome."""
    is_number = preprocessing.contract.target.task == "regression"
    return preprocessing.in_target_units(targets.astype(np.float64)) if is_number else targets


def held_out_rows(dataset: Dataset, preprocessing: Preprocessing) -> HeldOutRows:
    """Return a site's test rows, with targets in the target's own unit."""
    target = preprocessing.contract.target
    return HeldOutRows(
        task=dataset.task,
        targets=targets_of(preprocessing, dataset.test.targets),
        classes=dataset.classes,
        patients=dataset.test_patients,
        unit=target.unit if target.task == "regression" else None,
    )


def headline_metric(task: Task) -> str:
    """Return the main metric for a task. Reports give the gain from joining in this metric."""
    return "rmse" if task == "regression" else "auroc"


def measure(task: Task, targets: npt.NDArray[np.generic], scores: Scores, classes: Sequence[str]) -> Metrics:
    """Return the metrics for an outcome of this task, by name. A metric that is undefined is None.

    With several classes auroc and auprc are one against the rest, as means over the classes present in `targets`. Of
    `classes` only the number is used. Targets are of shape (rows,), as in HeldOutRows; the scores are finite.
    """
    if not len(targets) or len(targets) != len(scores) or not np.isfinite(scores).all():
        raise ValueError("as many finite scores as targets are needed, and at least one")
    match task:
        case "binary" | "multi-class":
            if task == "multi-class" and scores.shape != (len(targets), len(classes)):
                raise ValueError("one probability for each row and class is needed")
            return _measure_classes(targets.astype(np.int64), scores)
        case "regression":
            return _measure_numbers(targets.astype(np.float64), scores)
        case _:
            assert_never(task)


def brier_of_rows(targets: npt.NDArray[np.int64], scores: Scores) -> Scores:
    """Return the squared error of each row, shape (rows,), whose mean is the Brier score.

    Source: Brier 1950. Binary: the squared distance of the positive class's probability to 0 or 1, so from 0 to 1.
    Several classes: the squared distance of the vector of probabilities to the one-hot label, so from 0 to 2. For two
    classes that would be twice the binary score, as in scikit-learn.
    """
    if scores.ndim == 1:
        return np.square(scores - targets)
    return np.asarray(np.square(scores - np.eye(scores.shape[1])[targets]).sum(axis=1))


def _measure_classes(targets: npt.NDArray[np.int64], scores: Scores) -> Metrics:
    # Imported here, because the import takes a second.
    from sklearn.metrics import average_precision_score

    metrics: Metrics = {
        **dict.fromkeys(_RANKING),
        "brier": float(brier_of_rows(targets, scores).mean()),
        "log_loss": float(log_loss_of_rows(targets, scores).mean()),
    }
    if len(np.unique(targets)) < 2:
        return metrics
    precisions = [average_precision_score(*pair) for pair in _ranked(targets, scores)]
    return metrics | {"auroc": auroc(targets, scores), "auprc": float(np.mean(precisions))}


def auroc(targets: npt.NDArray[np.int64], scores: Scores) -> float | None:
    """Return AUROC as the mean over all classes, each against the others. None if all rows have one class.

    `targets` are 0 and 1 or indices of classes, shape (rows,). `scores` are (rows,) or (rows, classes).
    """
    from sklearn.metrics import roc_auc_score

    if len(np.unique(targets)) < 2:
        return None
    return float(np.mean([roc_auc_score(*pair) for pair in _ranked(targets, scores)]))


def _ranked(targets: npt.NDArray[np.int64], scores: Scores) -> list[tuple[npt.NDArray[np.bool_], Scores]]:
    return [(targets == 1, scores)] if scores.ndim == 1 else [(targets == c, scores[:, c]) for c in np.unique(targets)]


def _measure_numbers(targets: Scores, scores: Scores) -> Metrics:
    from sklearn.metrics import mean_absolute_error, mean_squared_error, r2_score

    return {
        "rmse": math.sqrt(float(mean_squared_error(targets, scores))),
        "mae": float(mean_absolute_error(targets, scores)),
        "r2": float(r2_score(targets, scores)) if targets.min() < targets.max() else None,
    }


_TINIEST: Final = 1e-8


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """How far predicted probabilities are from observed outcomes.

    Attributes:
        predicted, observed: the mean predicted probability, and the share of the rows with the outcome.
        intercept, slope: of the logistic regression of the outcome on the logit (Cox 1958); perfect are 0 and 1. A
            slope below 1 means that predictions are too extreme. None if the logit separates the classes.
    """

    predicted: float
    observed: float
    intercept: float | None
    slope: float | None


def calibration(happened: npt.NDArray[np.generic], scores: Scores) -> Calibration:
    """Return how well probabilities (rows,) of an outcome are calibrated. `happened` is 0 and 1, of shape (rows,)."""
    from sklearn.linear_model import LogisticRegression

    outcome, inside = happened.astype(np.int64), scores.clip(_TINIEST, 1.0 - _TINIEST)
    logit = np.log(inside) - np.log1p(-inside)
    yes, no = logit[outcome == 1], logit[outcome == 0]
    intercept, slope = None, None
    if len(yes) and len(no) and yes.min() < no.max() and no.min() < yes.max():
        # Centred and scaled, so that the solver's first step is good for all logits.
        centre, spread = float(logit.mean()), float(logit.std())
        line = LogisticRegression(C=np.inf, solver="newton-cholesky", tol=1e-10, max_iter=1000)
        line.fit((logit[:, None] - centre) / spread, outcome)
        slope = float(line.coef_[0, 0]) / spread
        intercept = float(line.intercept_[0]) - slope * centre
    return Calibration(predicted=float(scores.mean()), observed=float(outcome.mean()), intercept=intercept, slope=slope)


_BINS: Final = 10


def calibration_curve(happened: npt.NDArray[np.generic], scores: Scores) -> dict[str, Json] | None:
    """Return the share with the outcome, by mean probability, in ten groups of about equal size. None for one class."""
    if len(np.unique(happened)) < 2:
        return None
    from sklearn import calibration as scikit_learn

    observed, predicted = scikit_learn.calibration_curve(
        happened.astype(np.int64), scores.clip(0.0, 1.0), n_bins=_BINS, strategy="quantile"
    )
    return {"xs": predicted.tolist(), "ys": observed.tolist()}
