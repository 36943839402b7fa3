"""Makes the sites of CHFL's experiment on covertype, which share some columns and also have columns of their own.

The three hillshade columns are not in these tables. They are computed again from aspect and slope (`hillshades`), so
that there are 54 columns as in the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from sklearn.model_selection import train_test_split

from benchmarks.experiments.data.covertype import both_files, targets_of
from benchmarks.experiments.data.sources import Sites, experiment_contract
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import CategoricalFeature
from site_agent.trainer.data.dataset import Dataset, Examples, SplitRows

# The sun at the three times of the original, a clear summer solstice in the Roosevelt National Forest. The clock of the
# original data is an hour before solar time, as the values in the data show.
_LATITUDE: Final = 40.6
_DECLINATION: Final = 23.44
_HOUR_ANGLES: Final = {"hillshade_9am": -30.0, "hillshade_noon": 15.0, "hillshade_3pm": 60.0}

# These columns repeat the code of the soil, and the original data do not have them.
_DERIVED: Final = ("climate_zone", "geologic_zone")


@dataclass(frozen=True, kw_only=True)
class DealtColumns:
    """The sites and the data that they share.

    Attributes:
        sites: each with the common columns first, in the order of `common`, then its own.
        common: the names that every site has.
    """

    sites: Sites
    common: tuple[str, ...]


def chfl_covertype(folder: Path, split: int, run: int, *, sites: int = 5, common_share: float = 0.3) -> DealtColumns:
    """Sites that share a part of 54 columns and test on the same rows.

    Source: Mori et al. 2022, section V-A: 60% of the rows train, 20% choose, 20% test. The first two are divided evenly
    among the sites; all sites test on all test rows. Columns that are not common are divided among the sites. Soil and
    wilderness area are one-hot again (40 and 4 columns) beside ten numbers; two of the soils have no row. Numbers are
    z-scored on a site's training rows, which the paper does not state.

    The accuracy of all methods depends mostly on whether `elevation` is common, so methods are compared on equal splits
    and runs. A larger share has all common columns of a smaller one.

    Args:
        folder: holds `covertype/`.
        split: divides the columns.
        run: divides the rows.
        sites: the number of sites.
        common_share: of the 54 columns.

    Raises: ConfigurationError, DataError: a table is missing or differs from the expected one.
    """
    table = _one_hot_table(folder)
    places = np.random.default_rng(split).permutation(len(table.columns))
    remaining, test = train_test_split(np.arange(len(table.targets)), test_size=0.2, random_state=run)
    training, validation = train_test_split(remaining, test_size=0.25, random_state=run)
    shared = round(common_share * len(places))
    common, others = np.sort(places[:shared]), places[shared:]
    dealt = {}
    for number in range(sites):
        rows = SplitRows(training=training[number::sites], validation=validation[number::sites], test=test)
        columns = np.concatenate([common, np.sort(others[number::sites])])
        dealt[f"site-{number + 1}"] = _dataset(table, columns, rows)
    return DealtColumns(sites=dealt, common=tuple(table.columns[place] for place in common))


def hillshades(aspect: Numbers, slope: Numbers) -> dict[str, Numbers]:
    """The brightness of the ground at three times of a summer day, 0 to 255, by the usual formula of maps.

    Computed values are within 3 of the original's at its first five records.

    Args:
        aspect: degrees clockwise from north.
        slope: degrees.
    """
    latitude, declination, turned, steep = map(np.radians, (_LATITUDE, _DECLINATION, aspect, slope))
    shades = {}
    for name, angle in _HOUR_ANGLES.items():
        hour = np.radians(angle)
        up = np.sin(latitude) * np.sin(declination) + np.cos(latitude) * np.cos(declination) * np.cos(hour)
        north = np.cos(latitude) * np.sin(declination) - np.sin(latitude) * np.cos(declination) * np.cos(hour)
        east = -np.cos(declination) * np.sin(hour)
        facing = north * np.cos(turned) + east * np.sin(turned)
        shades[name] = 255.0 * np.clip(up * np.cos(steep) + facing * np.sin(steep), 0.0, 1.0)
    return shades


@dataclass(frozen=True, kw_only=True, eq=False)
class _OneHotTable:
    """All rows: float64 of shape (rows, 54), and int64 classes.

    `is_number` shows which columns are numbers, not codes.
    """

    columns: tuple[str, ...]
    is_number: npt.NDArray[np.bool_]
    values: Numbers
    targets: npt.NDArray[np.int64]
    classes: tuple[str, ...]


@cache
def _one_hot_table(folder: Path) -> _OneHotTable:
    contract = experiment_contract("covertype")
    parts = both_files(folder, contract)
    columns: dict[str, Numbers] = {}
    numbers = []
    for feature in contract.features:
        values = np.concatenate([table.features[feature.name] for table in parts])
        if not isinstance(feature, CategoricalFeature):
            columns[feature.name] = values
            numbers.append(feature.name)
        elif feature.name not in _DERIVED:
            for position, code in enumerate(feature.codes):
                columns[f"{feature.name}={code}"] = (values == position).astype(np.float64)
    shades = hillshades(columns["aspect"], columns["slope"])
    columns |= shades
    numbers += shades
    return _OneHotTable(
        columns=tuple(columns),
        is_number=np.isin(list(columns), numbers),
        values=np.stack(list(columns.values()), axis=1),
        targets=np.concatenate([targets_of(table) for table in parts]).astype(np.int64),
        classes=contract.target.classes,
    )


def _dataset(table: _OneHotTable, columns: npt.NDArray[np.int64], rows: SplitRows) -> Dataset:
    values = table.values[:, columns]
    fitted_on, is_number = values[rows.training], table.is_number[columns]
    mean = np.where(is_number, fitted_on.mean(axis=0), 0.0)
    deviation = np.where(is_number & (fitted_on.std(axis=0) > 0), fitted_on.std(axis=0), 1.0)
    training, validation, test = (
        Examples(
            features=np.ascontiguousarray((values[part] - mean) / deviation, dtype=np.float32),
            targets=table.targets[part],
        )
        for part in (rows.training, rows.validation, rows.test)
    )
    return Dataset(
        training=training,
        validation=validation,
        test=test,
        columns=tuple(table.columns[place] for place in columns),
        task="multi-class",
        classes=table.classes,
    )
