"""Encodes numbers piecewise linearly, by the quantiles of the training rows.

Source: Gorishniy, Rubachev, Babenko 2022, "On Embeddings for Numerical Features in Tabular Deep Learning", equation 1,
with quantiles as the bins' ends (section 3.2.1). A shift or a scale of the numbers does not change the encoding, so it
is applied to columns that are already z-scored. If a value is so frequent that two quantiles are equal, the empty bin
between them keeps its column, which is always zero, so the number of columns is the same for every seed and site.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.dataset import Dataset, Examples

BINS: Final = 10


def piecewise_linear(dataset: Dataset, columns: Collection[str]) -> Dataset:
    """Return the dataset with each selected column replaced by `BINS` columns, fitted to the training rows.

    Raises:
        ValueError: a column is not in the dataset.
    """
    if strangers := sorted(set(columns) - set(dataset.columns)):
        raise ValueError(f"no such columns: {', '.join(strangers)}")
    quantiles = np.linspace(0.0, 1.0, BINS + 1)
    ends = {
        place: np.quantile(dataset.training.features[:, place].astype(np.float64), quantiles)
        for place, name in enumerate(dataset.columns)
        if name in columns
    }
    names = tuple(
        new
        for place, name in enumerate(dataset.columns)
        for new in ([f"{name} in bin {i + 1} of {BINS}" for i in range(BINS)] if place in ends else [name])
    )
    parts = {name: _encoded(getattr(dataset, name), ends) for name in ("training", "validation", "test")}
    return replace(dataset, columns=names, **parts)


def _encoded(part: Examples, ends: dict[int, npt.NDArray[np.float64]]) -> Examples:
    pieces = [
        _shares_of_bins(column.astype(np.float64), ends[place]) if place in ends else column[:, None]
        for place, column in enumerate(part.features.T)
    ]
    return replace(part, features=np.ascontiguousarray(np.concatenate(pieces, axis=1), dtype=np.float32))


def _shares_of_bins(values: npt.NDArray[np.float64], ends: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return how much of each bin a value covers, (rows, bins). The outer open bins go on below 0 and above 1."""
    low, width = ends[:-1], np.diff(ends)
    is_open = width > 0
    share = (values[:, None] - low) / np.where(is_open, width, 1.0)
    floor, ceiling = np.zeros(len(width)), np.ones(len(width))
    if is_open.any():
        floor[np.flatnonzero(is_open)[0]], ceiling[np.flatnonzero(is_open)[-1]] = -np.inf, np.inf
    return np.where(is_open, np.clip(share, floor, ceiling), 0.0)
