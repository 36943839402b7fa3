"""Divides small tables of scikit-learn by rows among five sites with the same columns.

Three come with scikit-learn and one is made up from a seed. Rows are divided evenly, or partly sorted by their target,
so that the outcome has different frequencies at the sites.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits

from benchmarks.experiments.data.sources import Sites
from site_agent.trainer.data.contract import Task
from site_agent.trainer.data.dataset import Dataset, Examples

TableName: TypeAlias = Literal["breast-cancer", "diabetes", "digits", "made-up"]
TABLE_NAMES: Final[tuple[TableName, ...]] = get_args(TableName)
SITES: Final = ("ahus", "berlin", "cluj", "delft", "espoo")
_MADE_UP_ROWS: Final = 1500
Numbers: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class _Whole:
    features: Numbers
    target: Numbers
    task: Task


def dealt_rows(name: TableName, seed: int, *, spread: float | None = None) -> Sites:
    """Return five sites.

    Each site has three fifths of its rows for training, a fifth for validation, a fifth for testing.

    Args:
        name: the name of the table.
        seed: decides which site has which patient, and the made-up table.
        spread: None deals evenly; otherwise rows are sorted by target plus this many of its standard deviations of
            noise: the smaller, the more the sites differ.
    """
    generator = np.random.default_rng([seed, TABLE_NAMES.index(name)])
    whole = _whole(name, generator)
    rows = generator.permutation(len(whole.target))
    if spread is not None:
        noise = whole.target.std() * spread * generator.normal(size=len(rows))
        rows = rows[np.argsort(whole.target[rows] + noise, kind="stable")]
    parts = np.array_split(rows, len(SITES))
    return {site: _dataset(whole, generator.permutation(part)) for site, part in zip(SITES, parts, strict=True)}


def _whole(name: TableName, generator: np.random.Generator) -> _Whole:
    if name == "made-up":
        features = generator.normal(size=(_MADE_UP_ROWS, 8))
        score = features @ generator.normal(size=8) + features[:, 0] * features[:, 1]
        noise = 0.7 * generator.normal(size=_MADE_UP_ROWS)
        return _Whole(features, (score + noise > 0).astype(np.float64), "binary")
    loaders: dict[str, tuple[Task, object]] = {
        "breast-cancer": ("binary", load_breast_cancer),
        "diabetes": ("regression", load_diabetes),
        "digits": ("multi-class", load_digits),
    }
    task, load = loaders[name]
    assert callable(load)
    features, target = load(return_X_y=True)
    return _Whole(features.astype(np.float64), target.astype(np.float64), task)


def _dataset(whole: _Whole, rows: npt.NDArray[np.int64]) -> Dataset:
    training, validation, test = np.split(rows, [3 * len(rows) // 5, 4 * len(rows) // 5])
    fitted = whole.features[training]
    middle, scale = fitted.mean(axis=0), fitted.std(axis=0)
    scale = np.where(scale > 1e-6, scale, 1.0)  # a pixel that is always dark
    is_number = whole.task == "regression"
    target = whole.target
    if is_number:
        target = (target - target[training].mean()) / target[training].std()

    def examples(part: npt.NDArray[np.int64]) -> Examples:
        features = ((whole.features[part] - middle) / scale).astype(np.float32)
        kind = np.int64 if whole.task == "multi-class" else np.float32
        return Examples(features=features, targets=target[part].astype(kind))

    classes = () if is_number else tuple(str(number) for number in range(int(whole.target.max()) + 1))
    return Dataset(
        training=examples(training),
        validation=examples(validation),
        test=examples(test),
        columns=tuple(f"column {number}" for number in range(whole.features.shape[1])),
        task=whole.task,
        classes=classes,
    )
