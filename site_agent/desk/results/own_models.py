"""Stores a site's simple models (linear models, forests, boosted trees) as arrays of numbers.

scikit-learn fits them, and only numbers are stored. So a saved model is read without unpickling, and its predictions
do not depend on the installed version of scikit-learn. The rules:

* a probability equals scikit-learn's to 1e-9;
* a class that no training row has keeps probability 0;
* a row's prediction does not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt
from sklearn import ensemble
from sklearn.linear_model import LogisticRegression, Ridge

from site_agent.desk.comparison.evaluation import Scores
from site_agent.desk.results.stored_arrays import FOREST_ARRAYS, Arrays, forest_arrays, forest_from, has_types
from site_agent.trainer.data.contract import Task
from site_agent.trainer.plain_models import Forest, Lines, forest_of, lines_of, probabilities

Float64: TypeAlias = npt.NDArray[np.float64]
_Boosting: TypeAlias = (
    ensemble.GradientBoostingClassifier
    | ensemble.GradientBoostingRegressor
    | ensemble.HistGradientBoostingClassifier
    | ensemble.HistGradientBoostingRegressor
)
_LINE: Final = {"slopes": "<f8", "starts": "<f8"}
_BOOSTED: Final = {**FOREST_ARRAYS, "starts": "<f8"}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BoostedTrees:
    """Boosted trees. The sum of the trees plus `starts`, float64 of shape (outputs,), is a logit or a number."""

    forest: Forest
    starts: Float64


# Lines compute a logit for each output, or the number of a ridge regression. A forest without starts is a random
# forest, which predicts probabilities of the outputs, or numbers.
OwnModel: TypeAlias = Lines | Forest | BoostedTrees


def own_scores(model: OwnModel, task: Task, features: npt.NDArray[np.float32]) -> Scores:
    """Return probabilities or z-scores, (rows,) or (rows, classes), of encoded rows, float32 (rows, own columns)."""
    match model:
        case Lines():
            return probabilities(task, model.of(features))
        case Forest():
            answers = model.answers(features)
            return answers if task == "multi-class" else answers[:, 0]
        case BoostedTrees(forest=forest, starts=starts):
            return probabilities(task, forest.answers(features) + starts)
        case _:
            assert_never(model)


def kept_model(fitted: object, task: Task, outputs: int) -> OwnModel | None:
    """Convert a fitted model of scikit-learn to plain arrays.

    Args:
        fitted: a model that was fitted to the site's training rows, with the indices of classes as labels.
        outputs: one, or one per class if there are several.

    Returns:
        None for a guess, which is not stored.
    """
    match fitted:
        case Ridge() | LogisticRegression():
            return lines_of(fitted, outputs)
        case ensemble.RandomForestRegressor():
            return forest_of(fitted.estimators_)
        case ensemble.RandomForestClassifier():
            forest = forest_of(fitted.estimators_)
            places = np.eye(max(2, outputs))[fitted.classes_][:, -outputs:]
            return replace(forest, values=forest.values @ places)
        case ensemble.GradientBoostingRegressor() | ensemble.HistGradientBoostingRegressor():
            return _boosted(fitted, fitted.predict, np.zeros(1, dtype=np.int64), np.zeros(1))
        case ensemble.GradientBoostingClassifier() | ensemble.HistGradientBoostingClassifier():
            known = np.zeros(1, dtype=np.int64) if task == "binary" else fitted.classes_
            starts = np.full(outputs, -np.inf)
            starts[known] = 0.0
            # If the training rows have two classes, the trees compute the logit of the second class.
            asked = known[1:] if task == "multi-class" and len(known) == 2 else known
            return _boosted(fitted, fitted.decision_function, asked, starts)
        case _:
            return None


def arrays_of(model: OwnModel) -> dict[str, npt.NDArray[np.generic]]:
    """Return all arrays of a simple model. `own_model_of` builds the model again from these arrays."""
    match model:
        case Lines():
            return {"slopes": model.slopes, "starts": model.starts}
        case Forest():
            return forest_arrays(model)
        case BoostedTrees(forest=forest, starts=starts):
            return {**forest_arrays(forest), "starts": starts}
        case _:
            assert_never(model)


def own_model_of(arrays: Arrays) -> OwnModel:
    """Build a simple model from the arrays of `arrays_of`. Raises ValueError for other arrays."""
    if not any(has_types(arrays, types) for types in (_LINE, FOREST_ARRAYS, _BOOSTED)):
        raise ValueError("other arrays than those of a line, a forest or boosted trees")
    if "slopes" in arrays:
        slopes, starts = (np.asarray(arrays[name], dtype=np.float64) for name in ("slopes", "starts"))
        return Lines(slopes=slopes, starts=starts)
    forest = forest_from(arrays)
    if "starts" not in arrays:
        return forest
    starts = np.asarray(arrays["starts"], dtype=np.float64)
    if forest.values.shape[1:] != starts.shape:
        raise ValueError("trees with other answers than starts")
    return BoostedTrees(forest=forest, starts=starts)


def _boosted(
    fitted: _Boosting,
    answer: Callable[[Float64], npt.NDArray[np.generic]],
    known: npt.NDArray[np.int64],
    starts: Float64,
) -> BoostedTrees:
    """Convert boosted trees of scikit-learn to plain arrays. `starts` has the predictions before the first tree."""
    if isinstance(fitted, ensemble.HistGradientBoostingClassifier | ensemble.HistGradientBoostingRegressor):
        trees, answers, rate = [tree for step in fitted._predictors for tree in step], len(fitted._predictors[0]), 1.0
        forest = _binned(trees)  # their leaves already include the learning rate
    else:
        answers, rate = fitted.estimators_.shape[1], fitted.learning_rate
        forest = forest_of([tree for step in fitted.estimators_ for tree in step])
    sizes = np.diff([*forest.roots, len(forest.columns)])
    output = np.repeat(np.tile(known, len(forest.roots) // answers), sizes)
    values = np.zeros((len(forest.columns), len(starts)))
    # A forest predicts the mean over its trees, but boosting predicts the sum.
    values[np.arange(len(values)), output] = forest.values[:, 0] * rate * len(forest.roots)
    whole = replace(forest, values=values)
    anything = np.zeros((1, fitted.n_features_in_), dtype=np.float32)
    rest = np.atleast_2d(answer(anything.astype(np.float64)).astype(np.float64)) - whole.answers(anything)[:, known]
    starts = starts.copy()
    starts[known] += rest[0]
    return BoostedTrees(forest=whole, starts=starts)


def _binned(trees: Sequence[Any]) -> Forest:  # Any: scikit-learn has no public type for them
    """Convert scikit-learn's histogram-based boosted trees to a forest, whose thresholds are values of the columns."""
    nodes = [tree.nodes for tree in trees]
    roots = np.cumsum([0, *(len(each) for each in nodes)])[:-1]
    whole, first = np.concatenate(nodes), np.repeat(roots, [len(each) for each in nodes])
    is_leaf = whole["is_leaf"].astype(bool)
    children = np.stack((whole["left"], whole["right"]), axis=1).astype(np.int64) + first[:, None]
    return Forest(
        roots=roots.astype(np.int32),
        columns=np.where(is_leaf, 0, whole["feature_idx"]).astype(np.int32),
        thresholds=np.where(is_leaf, np.inf, whole["num_threshold"]),
        children=np.where(is_leaf[:, None], np.arange(len(whole))[:, None], children).astype(np.int32),
        values=whole["value"][:, None].astype(np.float64),
    )
