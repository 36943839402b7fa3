"""Encodes numbers piecewise linearly, by the quantiles of the training rows.

Source: Gorishniy, Rubachev, Babenko 2022, "On Embeddings for Numerical Features in Tabular Deep Learning", equation 1,
with quantiles as the bins' ends (section 3.2.1). A shift or a scale of the numbers does not change the encoding, so it
is applied to columns that are already z-scored.

One difference from the paper: if a value is so frequent that two quantiles are equal, the empty bin between them keeps
its column, which is always zero. The paper's encoding removes such bins, and the other columns are equal. Here the
number of columns is the same for every seed and site.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.data.preprocessing import shares_of_bins

BINS: Final = 10


def piecewise_linear(dataset: Dataset, columns: Collection[str], bins: int = BINS) -> Dataset:
    """Return the dataset with each selected column replaced by `bins` columns.

    The bins are fitted to the training rows.

    Args:
        dataset: columns z-scored or not, without missing values.
        columns: encoded names; those of the new columns are "name in bin 1 of 10" and so on.
        bins: the largest number of bins; their ends are the quantiles 0, 1/bins, ..., 1.

    Raises:
        ValueError: a column is not in the dataset.
    """
    if strangers := sorted(set(columns) - set(dataset.columns)):
        raise ValueError(f"no such columns: {', '.join(strangers)}")
    quantiles = np.linspace(0.0, 1.0, bins + 1)
    ends = {
        place: np.quantile(dataset.training.features[:, place].astype(np.float64), quantiles)
        for place, name in enumerate(dataset.columns)
        if name in columns
    }
    names = tuple(
        new
        for place, name in enumerate(dataset.columns)
        for new in ([f"{name} in bin {i + 1} of {bins}" for i in range(bins)] if place in ends else [name])
    )
    return replace(
        dataset,
        training=_encoded(dataset.training, ends),
        validation=_encoded(dataset.validation, ends),
        test=_encoded(dataset.test, ends),
        columns=names,
    )


def _encoded(part: Examples, ends: dict[int, npt.NDArray[np.float64]]) -> Examples:
    pieces = [
        shares_of_bins(column.astype(np.float64), ends[place]) if place in ends else column[:, None]
        for place, column in enumerate(part.features.T)
    ]
    return replace(part, features=np.ascontiguousarray(np.concatenate(pieces, axis=1), dtype=np.float32))
