"""Makes a federation of the four UCI heart centres, which have the same columns.

Two published experiments use them:

* `fed_heart`: Fed-Heart-Disease as FLamby defines it, with two classes, which FENDA-FL uses in its tables 2 and 5;
* `player_heart`: PLayer-FL's heart row, five classes.

Both drop the three columns that are nearly empty at all centres but Cleveland. Then they drop every row with a missing
value. 303, 261, 46 and 130 rows remain. A cholesterol of 0 (all Swiss rows) remains a number, as in both experiments.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import train_test_split

from benchmarks.experiments.data.sources import Sites, experiment_contract, public_table
from site_agent.trainer.data.cell_rules import UNKNOWN_POSITION
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import CategoricalFeature
from site_agent.trainer.data.dataset import Dataset, Examples, SplitRows
from site_agent.trainer.data.preprocessing import Rows

CENTRES: Final = ("cleveland", "hungarian", "switzerland", "va")
PLAYER_SPLIT_SEED: Final = 42
DEGREES: Final = tuple("01234")

_FED_HEART_SPLIT_SEED: Final = 43
_DUMMIES: Final = {"cp": (2, 3, 4), "restecg": (1, 2)}
_UNSCALED: Final = ("sex", "fbs", "exang")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Centre:
    """The rows of one centre that have no missing value, in the order of the file.

    Attributes:
        columns: by name float64 of shape (rows,); codes are their numbers.
        degrees: int64 of shape (rows,), 0 for no disease to 4.
    """

    columns: dict[str, Numbers]
    degrees: npt.NDArray[np.int64]


def fed_heart(folder: Path, run_seed: int, *, one_scale: bool = False) -> Sites:
    """Fed-Heart-Disease: 13 columns, two classes, 199/104, 172/89, 30/16 and 85/45 rows to train and to test.

    Source: Ogier du Terrail et al. 2022 (FLamby). Ten columns, of which chest pain and resting ECG become dummies
    without their first code, behind the others. The test rows are the same in every run. The run decides only which
    fifth of the others is the validation set (rounded down).

    A centre's z-scores use mean and deviation (n - 1) of all rows that are not test rows, *before* the fifth is set
    aside: FLamby scales inside the data set and FENDA-FL splits what it returns. So validation rows affect the scale,
    and test rows do not. Dummies and 0/1 are scaled like numbers. A constant column is only centred; FLamby divides it
    by 1e-9. The only such column (Swiss cholesterol) is constant in the test rows too, so the numbers equal FLamby's.

    Args:
        folder: holds `heart/`.
        run_seed: of the choosing rows.
        one_scale: whether all centres use mean and deviation of their pooled rows, as the published central baseline
            does. The federated methods do not.
    """
    numbers = {name: _with_dummies(_centre(folder, name)) for name in CENTRES}
    labels = {name: (_centre(folder, name).degrees > 0).astype(np.float32) for name in CENTRES}
    dealt = {name: _fed_heart_rows(labels[name]) for name in CENTRES}
    kept = {name: np.stack(list(numbers[name].values()), axis=1)[dealt[name][0]] for name in CENTRES}
    sites = {}
    for place, name in enumerate(CENTRES):
        before_test, test = dealt[name]
        fitted_on = np.concatenate(list(kept.values())) if one_scale else kept[name]
        features = _z_scores(np.stack(list(numbers[name].values()), axis=1), fitted_on)
        order = np.random.default_rng((run_seed, place)).permutation(before_test)
        choosing = len(before_test) // 5
        rows = SplitRows(training=order[choosing:], validation=order[:choosing], test=test)
        sites[name] = _dataset(features, labels[name], rows, tuple(numbers[name]), binary=True)
    return sites


def player_heart(folder: Path, seed: int = PLAYER_SPLIT_SEED) -> Sites:
    """PLayer-FL's heart data: ten columns, five classes; Hungary's file has the classes 0 and 1 alone.

    Source: Elhussein and Gürsoy 2025 for classes, columns and centres. The rest follows the authors' published code: a
    fifth of a centre's rows tests and a fifth of the rest chooses, shuffled by seed 42 in every run and not stratified;
    `sex`, `fbs` and `exang` stay 0 and 1, codes are numbers, and seven columns are scaled alike at all centres. Their
    constants are, to a hundredth of their size, the mean of all 740 rows and the mean of the centres' variances (n - 1)
    weighted by rows, so these are computed here. Their test rows are included, as in the authors' code, but nothing of
    the outcome is.

    Args:
        folder: holds `heart/`.
        seed: of the split. Only 42 gives the published split.
    """
    centres = {name: _centre(folder, name) for name in CENTRES}
    columns = tuple(centres[CENTRES[0]].columns)
    numbers = {name: np.stack(list(centre.columns.values()), axis=1) for name, centre in centres.items()}
    counts = [len(values) for values in numbers.values()]
    mean = np.average([values.mean(axis=0) for values in numbers.values()], axis=0, weights=counts)
    variance = np.average([values.var(axis=0, ddof=1) for values in numbers.values()], axis=0, weights=counts)
    is_scaled = ~np.isin(columns, _UNSCALED)
    mean, deviation = np.where(is_scaled, mean, 0.0), np.where(is_scaled, np.sqrt(variance), 1.0)
    return {
        name: _dataset(
            (numbers[name] - mean) / deviation,
            centre.degrees,
            _player_rows(len(centre.degrees), seed),
            columns,
            binary=False,
        )
        for name, centre in centres.items()
    }


@cache
def _centre(folder: Path, name: str) -> _Centre:
    contract = experiment_contract("uci-heart")
    table = public_table(folder / "heart" / f"{name}.data", contract)
    if table.target is None:
        raise ValueError("a table read for training has a target")
    is_complete = np.ones(table.rows, dtype=np.bool_)
    columns = {}
    for feature in contract.features:
        values = table.features[feature.name]
        if isinstance(feature, CategoricalFeature):
            is_complete &= values != UNKNOWN_POSITION
            codes = np.array([float(code) for code in feature.codes])
            values = codes[values.astype(np.int64)]
        is_complete &= ~np.isnan(values)
        columns[feature.name] = values
    return _Centre(
        columns={name: values[is_complete] for name, values in columns.items()},
        degrees=table.target[is_complete].astype(np.int64),
    )


def _with_dummies(centre: _Centre) -> dict[str, Numbers]:
    numbers = {name: values for name, values in centre.columns.items() if name not in _DUMMIES}
    for name, codes in _DUMMIES.items():
        numbers |= {f"{name}={code}": (centre.columns[name] == code).astype(np.float64) for code in codes}
    return numbers


def _fed_heart_rows(labels: npt.NDArray[np.float32]) -> tuple[Rows, Rows]:
    """Training or validation rows, and test rows, stratified if each class has more than two rows."""
    counts = np.unique(labels, return_counts=True)[1]
    remaining, test = train_test_split(
        np.arange(len(labels), dtype=np.int64),
        train_size=0.66,
        test_size=0.34,
        random_state=_FED_HEART_SPLIT_SEED,
        stratify=labels if len(counts) > 1 and counts.min() > 2 else None,
    )
    return np.sort(remaining), np.sort(test)


def _player_rows(count: int, seed: int) -> SplitRows:
    everyone = np.arange(count, dtype=np.int64)
    remaining, test = train_test_split(everyone, test_size=0.2, random_state=seed)
    training, validation = train_test_split(remaining, test_size=0.2, random_state=seed)
    return SplitRows(training=training, validation=validation, test=test)


def _z_scores(values: Numbers, fitted_on: Numbers) -> Numbers:
    """float64 of shape (rows, columns), by mean and deviation (n - 1) of `fitted_on`'s columns."""
    is_constant = fitted_on.min(axis=0) == fitted_on.max(axis=0)
    deviation = np.where(is_constant, 1.0, fitted_on.std(axis=0, ddof=1))
    return np.asarray((values - fitted_on.mean(axis=0)) / deviation)


def _dataset(
    features: Numbers,
    targets: npt.NDArray[np.float32] | npt.NDArray[np.int64],
    rows: SplitRows,
    columns: tuple[str, ...],
    *,
    binary: bool,
) -> Dataset:
    training, validation, test = (
        Examples(features=np.ascontiguousarray(features[part], dtype=np.float32), targets=targets[part])
        for part in (rows.training, rows.validation, rows.test)
    )
    return Dataset(
        training=training,
        validation=validation,
        test=test,
        columns=columns,
        task="binary" if binary else "multi-class",
        classes=("negative", "positive") if binary else DEGREES,
    )
