"""Fits the simple models that a hospital's statistician would use to this site's own training rows.

They are a regularised linear model, a random forest, gradient boosting, and a guess that reads no column. Every
site's report compares the network with them. The rules:

* they read the site's own columns as its preprocessing encodes them, and no validation or test row;
* equal rows and an equal seed give equal scores. The forest has one thread, because several threads add its trees in
  varying order, which changes the last bits;
* each is fitted, tested and dropped before the next one;
* only training rows decide which of them a statistician would have chosen, before any test row is read;
* time is bounded: see `MOST_ROWS`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn import ensemble
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.linear_model import LogisticRegression, Ridge

from site_agent.desk.comparison.evaluation import Scores
from site_agent.trainer.data.dataset import Dataset
from site_agent.trainer.data.preprocessing import Preprocessing

# The number of training rows (for boosting times the classes, if there are more than two) above which the recipes
# change: each tree of the forest draws this many rows, and boosting counts values in 255 bins (HistGradientBoosting).
# Measured with 50 columns on one core: 27 s for the forest and 13 s for boosting at 10,000 rows, 51 s and 2 s at
# 100,000. A forest for a numeric outcome searches every column in each split and takes 140 s and 250 s.
MOST_ROWS: Final = 10_000
# With more columns than this, such as pixels, only the linear model and, for classes, the forest are
# fitted. Measured with 400 rows of 4,096 pixels on one core: 28 s for boosting and 5 s for the forest, each fitted six
# times.
MOST_COLUMNS: Final = 2_048
# The names that people use for models that read a patient's data.
TITLES: Final = {
    "logistic_regression": "logistic regression",
    "ridge_regression": "ridge regression",
    "random_forest": "random forest",
    "gradient_boosting": "gradient boosting",
}
MOST_NUMBERS: Final = 1 << 26  # numbers in all training images; as float64 they need 512 MiB
MOST_CHOOSING_ROWS: Final = 2_000
_CHOOSING_FOLDS: Final = 5
_SMALLEST_PROBABILITY: Final = 1e-6  # otherwise a probability of 0 from a forest would have an infinite loss
_TREES: Final = 500
_SMALLEST_LEAF: Final = 3
_SEEDS: Final = 1 << 32  # the number of different seeds in scikit-learn
_PENALTY: Final = 10.0  # penalty of both linear models; logistic regression has its inverse, C = 0.1
_Matrix: TypeAlias = npt.NDArray[np.float64]


class _Model(Protocol):
    """The functions that scikit-learn's models share. `classes_` has the classes in a classifier's training rows."""

    classes_: npt.NDArray[np.int64]

    def fit(self, features: _Matrix, targets: npt.NDArray[np.generic]) -> object: ...

    def predict(self, features: _Matrix) -> _Matrix: ...

    def predict_proba(self, features: _Matrix) -> _Matrix: ...


def simple_scores(dataset: Dataset, preprocessing: Preprocessing, seed: int) -> Iterator[tuple[str, Scores]]:
    """Fit each simple model of `TITLES`, and a constant guess that reads no column. Yield name and scores of test rows.

    Linear model: logistic regression with C = 0.1, or ridge regression with the same penalty (10). Forest: 500 trees,
    at least 3 rows in a leaf. Boosting: scikit-learn's default. `majority_guess`: the shares of the classes in
    training for every row, so that the most frequent one is predicted. `mean_guess`: the mean in training.
    """
    features, targets = dataset.training.features.astype(np.float64), _targets(dataset)
    tested = dataset.test.features.astype(np.float64)
    for name, model in _unfitted(dataset, len(features), seed % _SEEDS):
        model.fit(features, targets)
        if dataset.task == "regression":
            yield name, preprocessing.in_target_units(model.predict(tested).astype(np.float64))
        else:
            yield name, _scores_of_classes(model, tested, dataset)


def reads_simply(dataset: Dataset) -> bool:
    """Return whether simple models can be fitted. They cannot be fitted to very large images."""
    return dataset.image is None or dataset.training.features.size <= MOST_NUMBERS


def best_simple_model(dataset: Dataset, seed: int) -> str:
    """Return the simple model that this site would choose alone: the lowest loss in cross-validation (five folds).

    Rows of one patient share a fold. The loss is the log loss, or the squared error of a number. If there are more
    than MOST_CHOOSING_ROWS rows, that many are drawn. With fewer than five patients, or a fold without two classes,
    no comparison is possible and the linear model is chosen. Only training rows are read.
    """
    generator, is_number = np.random.default_rng(seed), dataset.task == "regression"
    rows = generator.permutation(len(dataset.training.targets))[:MOST_CHOOSING_ROWS]
    patients = rows if dataset.training_patients is None else dataset.training_patients[rows]
    owners, owner = np.unique(patients, return_inverse=True)
    folds = (generator.permutation(len(owners)) % _CHOOSING_FOLDS)[owner]
    features, targets = dataset.training.features[rows].astype(np.float64), _targets(dataset)[rows]
    parts = [targets[folds != fold] for fold in range(_CHOOSING_FOLDS)]
    if len(owners) < _CHOOSING_FOLDS or (not is_number and min(len(np.unique(part)) for part in parts) < 2):
        return "ridge_regression" if is_number else "logistic_regression"
    losses = defaultdict[str, float](float)
    for fold, seen in enumerate(parts):
        known, unseen, answers = features[folds != fold], features[folds == fold], targets[folds == fold]
        for name, model in _unfitted(dataset, len(known), seed % _SEEDS):
            model.fit(known, seen)
            if is_number:
                losses[name] += float(((model.predict(unseen) - answers) ** 2).sum())
            else:
                losses[name] += _log_loss(model, unseen, answers.astype(np.int64))
    return min(TITLES.keys() & losses.keys(), key=lambda name: (losses[name], name))


def _targets(dataset: Dataset) -> npt.NDArray[np.float64] | npt.NDArray[np.int64]:
    targets = dataset.training.targets
    return targets.astype(np.float64) if dataset.task == "regression" else targets.astype(np.int64)


def _log_loss(classifier: _Model, features: _Matrix, labels: npt.NDArray[np.int64]) -> float:
    """Return the sum of the log loss over rows. Classes without training rows have a probability of almost 0."""
    known = classifier.predict_proba(features)
    places = np.searchsorted(classifier.classes_, labels)
    has_seen = np.isin(labels, classifier.classes_)
    found = known[np.arange(len(labels)), np.where(has_seen, places, 0)]
    return float(-np.log(np.maximum(np.where(has_seen, found, 0.0), _SMALLEST_PROBABILITY)).sum())


def _scores_of_classes(classifier: _Model, tested: _Matrix, dataset: Dataset) -> Scores:
    known = classifier.predict_proba(tested).astype(np.float64)
    scores = np.zeros((len(tested), len(dataset.classes)))
    scores[:, classifier.classes_] = known  # if no training row has a class, the probability of this class stays 0
    return scores[:, 1] if dataset.task == "binary" else scores


def _unfitted(dataset: Dataset, rows: int, random_state: int) -> Iterator[tuple[str, _Model]]:
    """Yield each simple model, not yet fitted, with its name. Its settings are for `rows` rows. The guess is last."""
    is_number, is_wide = dataset.task == "regression", len(dataset.columns) > MOST_COLUMNS
    most = MOST_ROWS if rows > MOST_ROWS else None
    sizes = {"n_estimators": _TREES, "min_samples_leaf": _SMALLEST_LEAF, "max_samples": most}
    if is_number:
        yield "ridge_regression", Ridge(alpha=_PENALTY)
    else:
        yield "logistic_regression", LogisticRegression(C=1.0 / _PENALTY, max_iter=1_000)
    if not is_number:
        yield "random_forest", ensemble.RandomForestClassifier(**sizes, random_state=random_state)
    elif not is_wide:
        yield "random_forest", ensemble.RandomForestRegressor(**sizes, random_state=random_state)
    # Boosting grows a tree for each class if there are more than two.
    if not is_wide and rows * (len(dataset.classes) if len(dataset.classes) > 2 else 1) > MOST_ROWS:
        histogram = ensemble.HistGradientBoostingRegressor if is_number else ensemble.HistGradientBoostingClassifier
        yield "gradient_boosting", histogram(early_stopping=False, random_state=random_state)
    elif not is_wide:
        plain = ensemble.GradientBoostingRegressor if is_number else ensemble.GradientBoostingClassifier
        yield "gradient_boosting", plain(random_state=random_state)
    if is_number:
        yield "mean_guess", DummyRegressor(strategy="mean")
    else:
        yield "majority_guess", DummyClassifier(strategy="prior")
