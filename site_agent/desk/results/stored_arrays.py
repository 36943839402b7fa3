"""Converts forests to arrays that a file can store, and back.

Only numbers are stored, so a saved model is read without unpickling. Every array has a fixed type. Other arrays are
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from site_agent.trainer.plain_models import Forest

Arrays: TypeAlias = Mapping[str, npt.NDArray[np.generic]]
# The type in a file of each array of a forest.
FOREST_ARRAYS: Final = {"roots": "<i4", "columns": "<i4", "children": "<i4", "thresholds": "<f8", "values": "<f8"}


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
