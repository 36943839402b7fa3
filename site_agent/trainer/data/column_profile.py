"""Summarises each column of the training rows. The summary is stored with a model, to detect unusual new rows.

A profile has shares and rounded limits, and no rows. It stays at the site with the model. An export has only the
limits. They lie beyond the lowest and the highest value, so an export has neither of these values. Predictions abstain
outside of the limits, and monitoring compares new rows with the shares. The rules:

* only training rows are read;
* everything is counted before preprocessing, as the contract reads a cell. So a profile does not depend on an encoding.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from protos.plan.documents import Document
from site_agent.trainer.data.cells import Numbers
from site_agent.trainer.data.columns import CategoricalFeature
from site_agent.trainer.data.contract import Contract
from site_agent.trainer.data.dataset import Dataset, SplitRows, prepare_rows
from site_agent.trainer.data.preprocessing import Preprocessing, Rows
from site_agent.trainer.data.tables import Table

BINS: Final = 10


class ColumnProfile(Document):
    """A summary of one feature in the training rows.

    Attributes:
        kind: a number, or a position among declared codes.
        low, high: a number's limits, from `rounded_outward`; None for codes, and if no row has a value.
        edges: the rising edges of a number's bins. Bin i has values above edges[i - 1] up to edges[i]. A code has no
            edges: its bins are the positions of the declared codes.
        shares: the share of each bin among the rows that have a value.
        missing: the share of rows without a value, or with an unknown code.
    """

    name: str
    kind: Literal["number", "code"]
    low: float | None
    high: float | None
    edges: tuple[float, ...]
    shares: tuple[float, ...]
    missing: float

    def bins(self, values: Numbers) -> npt.NDArray[np.float64]:
        """Return the fraction of the values in each bin (group): float64 of shape (bins,). Missing values are skipped.

        The shares are zeros if there are no present values.
        """
        is_code = self.kind == "code"
        there = present(values, is_code=is_code)
        places = there.astype(np.int64) if is_code else np.searchsorted(self.edges, there, side="left")
        return np.bincount(places, minlength=len(self.shares)).astype(np.float64) / max(1, len(places))

    def is_outside(self, values: Numbers) -> npt.NDArray[np.bool_]:
        """Return for each row whether its value is outside the limits, bool (rows,). False for a missing value."""
        if self.low is None or self.high is None:
            return np.zeros(len(values), dtype=bool)
        return np.asarray((values < self.low) | (values > self.high))


class Profile(Document):
    """Summaries of all features in the training rows, in declared order.

    `patients` is how many patients have these rows, or the number of rows if the table does not identify patients.
    """

    rows: int
    patients: int
    columns: tuple[ColumnProfile, ...]


def prepare_with_profile(table: Table, rows: SplitRows) -> tuple[Dataset, Preprocessing]:
    """Encode a split table as `prepare_rows` does, and add the summary (profile) of its training rows."""
    dataset, preprocessing = prepare_rows(table, rows)
    profile = profile_of(table.contract, table, rows.training, dataset.training_patients)
    return replace(dataset, profile=profile), preprocessing


def profile_in(dataset: Dataset) -> Profile | None:
    """Return the summary of the training rows that `prepare_with_profile` added to a data set, or None."""
    return dataset.profile if isinstance(dataset.profile, Profile) else None


def profile_of(
    contract: Contract, table: Table, training_rows: Rows, patients: npt.NDArray[np.int64] | None = None
) -> Profile:
    """Summarise the training rows of a table. Other rows are not read.

    Args:
        training_rows: int64 of shape (training rows,).
        patients: int64 of shape (training rows,), equal for rows of one patient; None without a patient column.
    """
    columns = []
    for feature in contract.features:
        values = table.features[feature.name][training_rows]
        if isinstance(feature, CategoricalFeature):
            columns.append(_coded(feature.name, values, len(feature.codes)))
        else:
            columns.append(_numeric(feature.name, values))
    count = len(training_rows) if patients is None else len(np.unique(patients))
    return Profile(rows=len(training_rows), patients=count, columns=tuple(columns))


def present(values: Numbers, *, is_code: bool) -> Numbers:
    """Return the values that are present: numbers that are not NaN, or positions of known codes."""
    return values[values >= 0] if is_code else values[~np.isnan(values)]


def rounded_outward(low: float, high: float) -> tuple[float, float]:
    """Return rounded limits below `low` and above `high`. The rounding step is a power of ten, at most `high - low`."""
    distance = high - low or abs(high) or 1.0
    return steps_around(low, high, 10.0 ** math.floor(math.log10(distance)))


def steps_around(low: float, high: float, step: float) -> tuple[float, float]:
    """Return the nearest multiples of `step` that are below `low` and above `high`."""
    digits = max(0, 1 - math.floor(math.log10(step)))
    # Without rounding, the quotient 0.07 / 0.01 is just above 7, and the result would be 0.07 itself.
    below, above = math.ceil(round(low / step, 6)) - 1, math.floor(round(high / step, 6)) + 1
    return round(below * step, digits), round(above * step, digits)


def _numeric(name: str, values: Numbers) -> ColumnProfile:
    there = present(values, is_code=False)
    missing = 1.0 - len(there) / len(values)
    if not len(there):
        return ColumnProfile(name=name, kind="number", low=None, high=None, edges=(), shares=(), missing=missing)
    low, high = rounded_outward(float(there.min()), float(there.max()))
    edges = np.unique(np.quantile(there, np.linspace(0.0, 1.0, BINS + 1)[1:-1]))
    counts = np.bincount(np.searchsorted(edges, there, side="left"), minlength=len(edges) + 1)
    shares = tuple(float(count) / len(there) for count in counts)
    return ColumnProfile(
        name=name, kind="number", low=low, high=high, edges=tuple(map(float, edges)), shares=shares, missing=missing
    )


def _coded(name: str, values: Numbers, codes: int) -> ColumnProfile:
    there = present(values, is_code=True)
    counts = np.bincount(there.astype(np.int64), minlength=codes)
    shares = tuple(float(count) / max(1, len(there)) for count in counts)
    return ColumnProfile(
        name=name, kind="code", low=None, high=None, edges=(), shares=shares, missing=1.0 - len(there) / len(values)
    )
