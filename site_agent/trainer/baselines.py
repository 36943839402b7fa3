"""Fits a baseline to the site's own rows, such as a statistician would use. Its predictions can be soft targets.

A regularised linear model and a random forest are fitted to the site's training rows and joined. The prediction for a
training row comes from fits without that row's patient. The rules:

* the baseline never leaves the site. It is part of no sum, and its arrays are saved only with the model;
* validation and test rows are not read;
* equal rows and an equal seed give equal bits, and a row's prediction does not depend on the other rows;
* a prediction is bounded: probabilities stay half a percent away from 0 and 1, and their ranking does not change. So
  one unusual row cannot outweigh a network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge

from protos.errors import DataError
from site_agent.trainer.checkpoints import Json
from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.forest import Forest, Lines, forest_of, lines_of, on_bounded_scale
from site_agent.trainer.probabilities import log_loss_of_rows, probabilities

FOLDS: Final = 5
# The largest number of rows that each tree draws, to limit the time.
MOST_ROWS: Final = 10_000
TREES: Final = 500
_TREES_IN_A_FOLD: Final = 100  # with few trees, the noise is small compared with the effect of the choice of folds
_SMALLEST_LEAF: Final = 3
_PENALTY: Final = 10.0  # logistic regression uses the inverse, C = 0.1

Numbers: TypeAlias = npt.NDArray[np.float64]
_Features: TypeAlias = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Baseline:
    """A linear model and a forest that predict together, stored as numbers only.

    The start of a class without training rows is minus infinity. The forest has one number for each output: the share
    of the positive class or of each class, or the regression's number. `forest_share` is from 0 to 1.
    """

    task: Task
    lines: Lines
    forest: Forest
    forest_share: float

    def __post_init__(self) -> None:
        if self.forest.values.shape[1] != len(self.lines.starts) or not 0.0 <= self.forest_share <= 1.0:
            raise ValueError("a forest that answers something else, or a share that is none")

    def predictions(self, features: _Features) -> Numbers:
        """Return the baseline's predictions for rows, on the scale of the neural network's outputs.

        From the site's own encoded columns, float32 (rows, columns), to finite float64 (rows, outputs): the logit of a
        binary target, the logarithms of the probabilities of several classes, or a regression's number.
        """
        linear = on_bounded_scale(self.task, _linear_answers(self, features))
        return _joined(self.task, linear, on_bounded_scale(self.task, self.forest.answers(features)), self.forest_share)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FittedBaseline:
    """A newly fitted baseline with its predictions for the training rows.

    `out_of_fold` is float64 of shape (training rows, outputs): predictions of rows whose patient was not used.
    `evidence` has the mean losses out of fold and the resulting share, for the site's own report.
    """

    baseline: Baseline
    out_of_fold: Numbers
    evidence: Mapping[str, Json]


def fit_baseline(dataset: Dataset, seed: int) -> FittedBaseline:
    """Fit a linear model and a forest to the training rows, first without the rows of each fold, and then to all rows.

    Classes: logistic regression with C = 0.1 and a forest of 500 trees with at least 3 rows in a leaf. Numbers: ridge
    regression with the same penalty, and a forest. The forest's share is the probability that its mean loss is lower,
    for a normal distribution with the mean and standard error of the differences between patients.

    Raises:
        DataError: the rows have too few patients, or one fold would have all rows of a class.
    """
    rows, task = dataset.training, dataset.task
    patients = np.arange(len(rows)) if dataset.training_patients is None else dataset.training_patients
    folds = patient_folds(rows.targets, patients, seed, has_classes=task != "regression")
    linear, grown = (np.empty((len(rows), dataset.outputs)) for _ in range(2))
    for fold in range(FOLDS):
        seen, unseen = folds != fold, folds == fold
        part = Examples(features=rows.features[seen], targets=rows.targets[seen])
        model = _fit(dataset, part, _TREES_IN_A_FOLD, seed + 1 + fold)
        linear[unseen] = on_bounded_scale(task, _linear_answers(model, rows.features[unseen]))
        grown[unseen] = on_bounded_scale(task, model.forest.answers(rows.features[unseen]))
    losses = [_losses(task, rows, predictions) for predictions in (linear, grown)]
    share = _probability_of_less(losses[1] - losses[0], patients)
    final = _fit(dataset, rows, TREES, seed, share)
    evidence: dict[str, Json] = {
        "out_of_fold_loss": {"linear": float(losses[0].mean()), "forest": float(losses[1].mean())},
        "forest_share": share,
    }
    return FittedBaseline(baseline=final, out_of_fold=_joined(task, linear, grown, share), evidence=evidence)


def patient_folds(
    targets: npt.NDArray[np.generic], patients: npt.NDArray[np.int64], seed: int, *, has_classes: bool
) -> npt.NDArray[np.int64]:
    """Return the fold of each row for cross-validation, int64 of shape (rows,). All rows of a patient share a fold.

    Patients are assigned to the folds in turn, sorted by their mean target. Ties are in random order.

    Raises:
        DataError: there are too few patients, or without one fold all rows would have one class.
    """
    _, owners = np.unique(patients, return_inverse=True)
    counts = np.bincount(owners)
    if len(counts) < FOLDS:
        raise _too_few(f"It has training rows of {len(counts)} patients")
    means = np.bincount(owners, weights=targets.astype(np.float64)) / counts
    order = np.random.default_rng(seed).permutation(len(counts))
    order = order[np.argsort(means[order], kind="stable")]
    folds = np.empty(len(counts), dtype=np.int64)
    folds[order] = np.arange(len(counts)) % FOLDS
    of_rows = folds[owners]
    if has_classes and any(len(np.unique(targets[of_rows != fold])) < 2 for fold in range(FOLDS)):
        raise _too_few("All patients of one class would be in one of its folds")
    return of_rows


def _fit(dataset: Dataset, rows: Examples, trees: int, seed: int, share: float = 0.5) -> Baseline:
    sizes = {"n_estimators": trees, "max_samples": MOST_ROWS if len(rows) > MOST_ROWS else None}
    draws = {"min_samples_leaf": _SMALLEST_LEAF, "random_state": seed % (1 << 32)}
    features = rows.features.astype(np.float64)  # in float32 the linear models would stop early
    if dataset.task == "regression":
        line = Ridge(alpha=_PENALTY).fit(features, rows.targets.astype(np.float64))
        grown = RandomForestRegressor(**sizes, **draws).fit(rows.features, rows.targets)
        places = np.eye(1)
    else:
        labels = rows.targets.astype(np.int64)
        line = LogisticRegression(C=1.0 / _PENALTY, max_iter=1_000).fit(features, labels)
        grown = RandomForestClassifier(**sizes, **draws).fit(rows.features, labels)
        places = np.eye(len(dataset.classes))[line.classes_][:, -dataset.outputs :]
    forest = forest_of(grown.estimators_)
    return Baseline(
        task=dataset.task,
        lines=lines_of(line, dataset.outputs),
        forest=replace(forest, values=forest.values @ places),
        forest_share=share,
    )


def _linear_answers(baseline: Baseline, features: _Features) -> Numbers:
    """Return a linear model's predictions, (rows, outputs): probabilities of the positive or each class, or numbers."""
    return probabilities(baseline.task, baseline.lines.of(features)).reshape(len(features), -1)


def _joined(task: Task, linear: Numbers, grown: Numbers, share: float) -> Numbers:
    both = (1.0 - share) * linear + share * grown
    return both - np.log(np.exp(both).sum(axis=1, keepdims=True)) if task == "multi-class" else both


def _losses(task: Task, rows: Examples, predictions: Numbers) -> Numbers:
    """Return each row's log loss or squared error, (rows,)."""
    scores = probabilities(task, predictions)
    if task == "regression":
        return np.square(scores - rows.targets)
    return log_loss_of_rows(rows.targets.astype(np.int64), scores)


def _probability_of_less(differences: Numbers, patients: npt.NDArray[np.int64]) -> float:
    """Return the probability that the true mean of the rows' differences is below 0, with patients as units."""
    _, owners = np.unique(patients, return_inverse=True)
    means = np.bincount(owners, weights=differences) / np.bincount(owners)
    error = float(means.std(ddof=1)) / math.sqrt(len(means))
    if error == 0.0:
        return 0.5
    return 0.5 * math.erfc(float(means.mean()) / error / math.sqrt(2.0))


def _too_few(what: str) -> DataError:
    return DataError(
        what=(
            f"This site's own baseline models cannot be fitted. {what}. To fit these models, the program divides the "
            "training "
            f"rows into {FOLDS} parts (folds), and there are too few rows."
        ),
        consequence="These models were not fitted, and nothing about them was sent.",
        remedy=(
            "Add rows to this hospital's table. The plan's key `expert` and the method federated-prior need these "
            "models."
        ),
    )
