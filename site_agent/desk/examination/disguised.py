"""Finds numbers that probably mean "not known": a cholesterol of 0, a weight of 999.

A number is reported if people use it as a marker and it is far from all other numbers. A person then states its
meaning in the contract.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from site_agent.trainer.data.cells import Numbers

CANDIDATES: Final = (
    *(-1.0, -2.0, -3.0, -7.0, -8.0, -9.0, -77.0, -88.0, -99.0, -777.0, -888.0, -999.0, -9999.0, -99999.0),
    *(0.0, 77.0, 88.0, 99.0, 777.0, 888.0, 999.0, 7777.0, 8888.0, 9999.0, 99999.0, 999999.0),
)
TEXT_MARKERS: Final = frozenset(
    {"?", "na", "n/a", "#n/a", "nan", "null", "none", "nil", ".", "-", "--", "unknown", "missing", "not known", "nd"}
)
_FEWEST_OTHERS: Final = 5
_FAR: Final = 10.0


def disguised_numbers(values: Numbers) -> tuple[float, ...]:
    """Return the float64 numbers of a column that probably mean "not known", in rising order.

    A candidate is reported if it is far from the other values: by ten times the usual step between neighbouring
    values and a fifth of their span. Zero is reported only if the other values are far above it, by such steps or by
    their span. A column whose values are all one candidate is reported too.
    """
    present = np.unique(values[~np.isnan(values)])
    candidates = present[np.isin(present, CANDIDATES)]
    others = present[~np.isin(present, CANDIDATES)]
    if not len(others):
        return (float(present[0]),) if len(present) == 1 and len(candidates) else ()
    if len(others) < _FEWEST_OTHERS or not len(candidates):
        return ()
    low, high = float(others[0]), float(others[-1])
    step = float(np.median(np.diff(others)))
    far = max(_FAR * step, 0.2 * (high - low))
    found = []
    for value in map(float, candidates):
        if value > 0:
            is_found = value > high + far
        elif value < 0:
            is_found = low >= 0 and (low - value > far or value <= -7)
        else:
            is_found = low >= 0.2 * float(np.median(others)) and low >= min(_FAR * step, high - low)
        if is_found:
            found.append(value)
    return tuple(found)
