"""Finds the limits of each number in the training rows. They are stored with a model, to detect unusual new rows.

They are rounded and lie beyond the lowest and the highest value, so an export, which has them, has neither of these
values. Predictions abstain outside of the limits. The rules:

* only training rows are read;
* limits are found before preprocessing, as the contract reads a cell. So they do not depend on an encoding.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from protos.plan.documents import Document
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import CategoricalFeature
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.preprocessing import Rows
from site_agent.trainer.data.tables import Table


class ColumnProfile(Document):
    """The limits of one number in the training rows, from `rounded_outward`."""

    name: str
    low: float
    high: float

    def is_outside(self, values: Numbers) -> npt.NDArray[np.bool_]:
        """Return for each row whether its value is outside the limits, bool (rows,). False for a missing value."""
        return np.asarray((values < self.low) | (values > self.high))


class Profile(Document):
    """The limits of all numbers in the training rows, in declared order. A number without any value has none."""

    columns: tuple[ColumnProfile, ...]


def profile_of(contract: Contract, table: Table, training_rows: Rows) -> Profile:
    """Return the limits of the training rows of a table, int64 of shape (training rows,). Other rows are not read."""
    columns = []
    for feature in contract.features:
        values = table.features[feature.name][training_rows]
        there = values[~np.isnan(values)]
        if len(there) and not isinstance(feature, CategoricalFeature):
            low, high = rounded_outward(float(there.min()), float(there.max()))
            columns.append(ColumnProfile(name=feature.name, low=low, high=high))
    return Profile(columns=tuple(columns))


def rounded_outward(low: float, high: float) -> tuple[float, float]:
    """Return rounded limits below `low` and above `high`. The rounding step is a power of ten, at most `high - low`."""
    return steps_around(low, high, 10.0 ** math.floor(math.log10(high - low or abs(high) or 1.0)))


def steps_around(low: float, high: float, step: float) -> tuple[float, float]:
    """Return the nearest multiples of `step` that are below `low` and above `high`."""
    digits = max(0, 1 - math.floor(math.log10(step)))
    # Without rounding, the quotient 0.07 / 0.01 is just above 7, and the result would be 0.07 itself.
    below, above = math.ceil(round(low / step, 6)) - 1, math.floor(round(high / step, 6)) + 1
    return round(below * step, digits), round(above * step, digits)
