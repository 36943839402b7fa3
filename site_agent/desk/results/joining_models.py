"""Chooses the weights of three models from a site's own rows: its regression, its forest, the other sites' score.

The rules:

* only training rows are read. The loss of a row comes from models that were fitted without this row (only the
  intercept of the others' score was fitted with it);
* the regression is a mean over seven penalties. Each has a weight by its predictions of rows that it did not use;
* weights are not negative and have sum 1. With few rows they stay nearly equal: out-of-fold loss + 5 * squared
  distance from equal weights;
* equal rows and an equal seed give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize_scalar
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge

from protos.errors import DataError
from site_agent.desk.results.joined_model import JoinedModel, of_others, on_scale, weighted
from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.fitted_models import Forest, Lines, forest_of, lines_of, on_bounded_scale
from site_agent.trainer.prior.site_sums import profiled_intercept

Float64: TypeAlias = npt.NDArray[np.float64]
PENALTIES: Final = tuple(10.0 ** (power / 2) for power in range(7))  # 1 to 1000
_PULL: Final = 5.0  # towards equal weights, in units of log loss
_SMALLEST_LEAF: Final = 3
_SEEDS: Final = 1 << 32
FOLDS: Final = 5
TREES: Final = 500
# The largest number of rows that each tree draws, to limit the time.
_MOST_ROWS: Final = 10_000
_SWEEPS: Final = 60
_STILL: Final = 1e-7


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FittedJoin:
    """A joined model, and the same two own models joined with weight 0 for the score of the other sites."""

    model: JoinedModel
    alone: JoinedModel


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OwnModels:
    """A site's own regression and forest, fitted to all training rows and not yet joined.

    `unseen` has each one's predictions for rows that it did not use, both float64 of shape (rows, outputs).
    """

    regression: Lines
    forest: Forest
    unseen: tuple[Float64, Float64]


def fit_own_models(dataset: Dataset, seed: int) -> OwnModels:
    """Fit the site's own regression and forest. Raise DataError if folds have too few patients or only one class."""
    task, targets = dataset.task, dataset.training.targets
    patients = np.arange(len(targets)) if dataset.training_patients is None else dataset.training_patients
    folds = _patient_folds(targets, patients, seed, has_classes=task != "regression")
    regression, unseen = _own_regression(dataset, folds)
    forest, unseen_grown = _forest(dataset, folds, patients, seed)
    return OwnModels(
        regression=regression, forest=forest, unseen=(on_scale(task, unseen), on_bounded_scale(task, unseen_grown))
    )


def join_models(
    dataset: Dataset, own: OwnModels, concepts: Float64, others: Float64, *, has_others: bool = True
) -> FittedJoin:
    """Combine the site's own models with the score of the other sites, on the training rows of `dataset`.

    `concepts` (training rows, concept columns) are standardised. `others` (outputs, concept columns) are coefficients
    without any of these rows, in the units of the targets. Without `has_others` their score helps no site: weight 0.
    """
    task, targets = dataset.task, dataset.training.targets
    score = _others(task, concepts, others, targets)
    said = (*own.unseen, of_others(task, score.of(concepts)))
    pair = join_weights(task, own.unseen, targets)
    weights = join_weights(task, said, targets) if has_others else np.array([*pair, 0.0])
    alone, model = (
        JoinedModel(task=task, own=own.regression, forest=own.forest, others=score, weights=each)
        for each in (np.array([*pair, 0.0]), weights)
    )
    return FittedJoin(model=model, alone=alone)


def join_weights(task: Task, models: Sequence[Float64], targets: npt.NDArray[np.generic]) -> Float64:
    """Return the weights w that minimise the loss of the models' weighted mean + 5 * ||w - equal weights||^2.

    `models` are float64 (rows, outputs), for rows that each did not use. The weights are float64 (models,), with sum 1.
    """
    equal = np.full(len(models), 1.0 / len(models))
    # Squared errors are divided by twice the mean squared error of the best model, so that their size is like that of
    # log losses.
    scale = 1.0
    if task == "regression":
        scale = 0.5 / max(min(float(_loss(task, one, targets).mean()) for one in models), 1e-12)

    def value(weights: Float64) -> float:
        loss = float(_loss(task, weighted(models, weights), targets).sum()) * scale
        return loss + _PULL * float(((weights - equal) ** 2).sum())

    return smallest_on_simplex(value, equal)


def smallest_on_simplex(value: Callable[[Float64], float], start: Float64) -> Float64:
    """Return the weights for which the function `value` is smallest. Each step changes two weights, not their sum.

    For a smooth convex function of shares, float64 of shape (n,), a point that no pair can improve is the minimum
    (Beck 2014, "The 2-coordinate descent method").
    """
    weights = start.copy()
    for _ in range(_SWEEPS):
        before = weights.copy()
        for one, other in combinations(range(len(weights)), 2):
            weights = _between(value, weights, one, other)
        if np.abs(weights - before).max() < _STILL:
            break
    return weights


def _between(value: Callable[[Float64], float], weights: Float64, one: int, other: int) -> Float64:
    """Return the weights after the best division of the sum of two weights between these two weights."""
    both = float(weights[one] + weights[other])

    def divided(share: float) -> Float64:
        changed = weights.copy()
        changed[one], changed[other] = share, both - share
        return changed

    best = minimize_scalar(lambda share: value(divided(share)), bounds=(0.0, both), options={"xatol": 1e-9}).x
    # At an end of the interval, one of the two weights is exactly 0.
    return divided(min((0.0, both, float(best)), key=lambda share: value(divided(share))))


def _own_regression(dataset: Dataset, folds: npt.NDArray[np.int64]) -> tuple[Lines, Float64]:
    """Return a regression whose coefficients are the mean over several penalties.

    Also predict each row by regressions that were fitted without it.
    """
    rows, task = dataset.training, dataset.task
    unseen = np.empty((len(PENALTIES), len(rows), dataset.outputs))
    for fold in range(FOLDS):
        part = Examples(features=rows.features[folds != fold], targets=rows.targets[folds != fold])
        for place, penalty in enumerate(PENALTIES):
            unseen[place, folds == fold] = _line(dataset, part, penalty).of(rows.features[folds == fold])
    losses = np.array([float(_loss(task, on_scale(task, one), rows.targets).sum()) for one in unseen])
    if task == "regression":
        losses = losses * 0.5 / max(losses.min() / len(rows), 1e-12)
    shares = np.exp(losses.min() - losses)
    shares /= shares.sum()
    lines = [_line(dataset, rows, penalty) for penalty in PENALTIES]
    mean = Lines(
        slopes=np.asarray(sum(share * one.slopes for share, one in zip(shares, lines, strict=True))),
        starts=np.asarray(sum(share * one.starts for share, one in zip(shares, lines, strict=True))),
    )
    return mean, np.asarray(np.tensordot(shares, unseen, axes=1))


def _line(dataset: Dataset, rows: Examples, penalty: float) -> Lines:
    features = rows.features.astype(np.float64)
    if dataset.task == "regression":
        return lines_of(Ridge(alpha=penalty).fit(features, rows.targets.astype(np.float64)), 1)
    line = LogisticRegression(C=1.0 / penalty, max_iter=1_000).fit(features, rows.targets.astype(np.int64))
    return lines_of(line, dataset.outputs, gap=5.0)  # a class without rows is rare, not impossible


def _forest(
    dataset: Dataset, folds: npt.NDArray[np.int64], patients: npt.NDArray[np.int64], seed: int
) -> tuple[Forest, Float64]:
    """Return the forest, and a prediction for each row by trees that used no row of the same patient."""
    rows = dataset.training
    trees = _trees(dataset, rows, seed, has_votes=True)
    places, forest = _places(dataset, trees), forest_of(trees.estimators_)
    forest = replace(forest, values=forest.values @ places)
    if len(np.unique(patients)) == len(rows):
        votes = trees.oob_prediction_[:, None] if dataset.task == "regression" else trees.oob_decision_function_
        return forest, np.nan_to_num(votes, nan=1.0 / max(1, votes.shape[1])) @ places
    unseen = np.empty((len(rows), dataset.outputs))
    for fold in range(FOLDS):
        part = Examples(features=rows.features[folds != fold], targets=rows.targets[folds != fold])
        some = _trees(dataset, part, seed + 1 + fold, has_votes=False)
        grown_there = forest_of(some.estimators_)
        unseen[folds == fold] = grown_there.answers(rows.features[folds == fold]) @ _places(dataset, some)
    return forest, unseen


def _trees(
    dataset: Dataset, rows: Examples, seed: int, *, has_votes: bool
) -> RandomForestClassifier | RandomForestRegressor:
    sizes = {"n_estimators": TREES, "max_samples": _MOST_ROWS if len(rows) > _MOST_ROWS else None}
    draws = {"min_samples_leaf": _SMALLEST_LEAF, "random_state": seed % _SEEDS, "oob_score": has_votes}
    if dataset.task == "regression":
        return RandomForestRegressor(**sizes, **draws).fit(rows.features, rows.targets)
    return RandomForestClassifier(**sizes, **draws).fit(rows.features, rows.targets.astype(np.int64))


def _places(dataset: Dataset, trees: RandomForestClassifier | RandomForestRegressor) -> Float64:
    """Return a matrix of 0 and 1, (answers of a tree, outputs), that assigns each answer of the trees to an output."""
    if dataset.task == "regression":
        return np.eye(1)
    return np.asarray(np.eye(len(dataset.classes))[trees.classes_][:, -dataset.outputs :])


def _others(task: Task, concepts: Float64, others: Float64, targets: npt.NDArray[np.generic]) -> Lines:
    """Return the other sites' coefficients with intercepts that are fitted to this site's own prevalence."""
    starts = np.empty(len(others))
    for output, slopes in enumerate(others):
        line = concepts @ slopes
        own = targets.astype(np.float64) if task != "multi-class" else (targets == output).astype(np.float64)
        # If all rows have the same class, half a row of each other class is added.
        if task != "regression" and own.min() == own.max():
            starts[output] = np.log((own.sum() + 0.5) / (len(own) - own.sum() + 0.5)) - line.mean()
        else:
            starts[output] = profiled_intercept(line, own, is_number=task == "regression")
    return Lines(slopes=others, starts=starts)


def _loss(task: Task, outputs: Float64, targets: npt.NDArray[np.generic]) -> Float64:
    """Return each row's loss, float64 of shape (rows,): log loss, or squared error."""
    if task == "regression":
        return np.asarray((outputs[:, 0] - targets.astype(np.float64)) ** 2)
    if task == "binary":
        return np.asarray(np.logaddexp(0.0, outputs[:, 0]) - targets.astype(np.float64) * outputs[:, 0])
    return np.asarray(np.log(np.exp(outputs).sum(axis=1)) - outputs[np.arange(len(targets)), targets.astype(np.int64)])


def _patient_folds(
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


def _too_few(what: str) -> DataError:
    return DataError(
        what=(
            f"This site's own baseline models cannot be fitted. {what}. To fit these models, the program divides the "
            "training "
            f"rows into {FOLDS} parts (folds), and there are too few rows."
        ),
        consequence="These models were not fitted, and nothing about them was sent.",
        remedy=("Add rows to this hospital's table. The method federated-prior needs these models."),
    )
