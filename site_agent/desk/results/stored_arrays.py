"""Converts forests and baseline models to arrays that a file can store, and back.

Only numbers are stored, so a saved model is read without unpickling. Every array has a fixed type. Other arrays are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from site_agent.trainer.baselines import Baseline
from site_agent.trainer.data.contract import Task
from site_agent.trainer.forest import Forest, Lines

Arrays: TypeAlias = Mapping[str, npt.NDArray[np.generic]]
# The type in a file of each array of a forest.
FOREST_ARRAYS: Final = {"roots": "<i4", "columns": "<i4", "children": "<i4", "thresholds": "<f8", "values": "<f8"}
_BASELINE: Final = {"coefficients": "<f8", "intercepts": "<f8", "share": "<f8", **FOREST_ARRAYS}


def has_types(arrays: Arrays, types: Mapping[str, str]) -> bool:
    """Return whether a mapping has exactly the named arrays, each with the required type."""
    return {name: array.dtype.str for name, array in arrays.items()} == types


def forest_arrays(forest: Forest) -> dict[str, npt.NDArray[np.generic]]:
    """Return the arrays of a forest by name. `forest_from` builds the forest again from these arrays."""
    return {name: np.asarray(getattr(forest, name)) for name in FOREST_ARRAYS}


def forest_from(arrays: Arrays) -> Forest:
    """Build a forest from its arrays, and ignore further ones. Raise ValueError if they do not form a forest."""
    whole = {name: np.asarray(arrays[name], dtype=np.int32) for name in ("roots", "columns", "children")}
    thresholds, values = (np.asarray(arrays[name], dtype=np.float64) for name in ("thresholds", "values"))
    return Forest(**whole, thresholds=thresholds, values=values)


def baseline_arrays(baseline: Baseline) -> dict[str, npt.NDArray[np.generic]]:
    """Return the baseline's arrays by name, without its task, in the form that `baseline_of` reads."""
    lines, share = baseline.lines, np.array([baseline.forest_share])
    linear = {"coefficients": lines.slopes, "intercepts": lines.starts, "share": share}
    return {**linear, **forest_arrays(baseline.forest)}


def baseline_of(task: Task, arrays: Arrays) -> Baseline:
    """Build a baseline from its arrays, which another process can have written.

    Raises:
        ValueError: the arrays are not those of a baseline.
    """
    if not has_types(arrays, _BASELINE):
        raise ValueError("other arrays than a baseline's")
    names = ("coefficients", "intercepts", "share")
    slopes, starts, share = (np.asarray(arrays[name], dtype=np.float64) for name in names)
    lines = Lines(slopes=slopes, starts=starts)
    return Baseline(task=task, lines=lines, forest=forest_from(arrays), forest_share=float(share.item()))
