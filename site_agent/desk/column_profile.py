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
_MOST_REPEATED: Final = 50_000


class ColumnProfile(Document):
    """A summary of one feature in the training rows.

    Attributes:
        kind: a number, or a position among declared codes.
        low, high: a number's limits, from `rounded_outward`; None for codes, and if no row has a value.
        edges: the rising edges of a number's bins. Bin i has values above edges[i - 1] up to edges[i]. A code has no
            edges: its bins are the positions of the declared codes.
        shares: the share of each bin among the rows that have a value.
        missing: the share of rows without a value, or with an unknown code.
        effect: the number of rows that give as much information as one row of a patient of its own, see
            `effective_rows`. It is 1 if each patient has one row.
    """

    name: str
    kind: Literal["number", "code"]
    low: float | None
    high: float | None
    edges: tuple[float, ...]
    shares: tuple[float, ...]
    missing: float
    effect: float = 1.0

    def places(self, values: Numbers) -> npt.NDArray[np.int64]:
        """Return for each value that is not missing the number of its bin (group), from 0: int64 of shape (values,)."""
        is_code = self.kind == "code"
        there = present(values, is_code=is_code)
        return there.astype(np.int64) if is_code else np.searchsorted(self.edges, there, side="left").astype(np.int64)

    def bins(self, values: Numbers) -> npt.NDArray[np.float64]:
        """Return the fraction of the values in each bin (group): float64 of shape (bins,). Missing values are skipped.

        The shares are zeros if there are no present values.
        """
        places = self.places(values)
        return np.bincount(places, minlength=len(self.shares)).astype(np.float64) / max(1, len(places))

    def is_outside(self, values: Numbers) -> npt.NDArray[np.bool_]:
        """Return for each row whether its value is outside the limits, bool (rows,). False for a missing value."""
        if self.low is None or self.high is None:
            return np.zeros(len(values), dtype=bool)
        return np.asarray((values < self.low) | (values > self.high))


class Profile(Document):
    """Summaries of all features in the training rows, in declared order."""

    rows: int
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
    columns, some, owners = [], *_repeated(patients)
    for feature in contract.features:
        values = table.features[feature.name][training_rows]
        if isinstance(feature, CategoricalFeature):
            made = _coded(feature.name, values, len(feature.codes))
        else:
            made = _numeric(feature.name, values)
        if owners is not None:
            looked = values[some]
            there = looked >= 0 if made.kind == "code" else ~np.isnan(looked)
            effective = effective_rows(made.places(looked), owners[there])
            made = made.model_copy(update={"effect": max(1.0, float(there.sum()) / max(1.0, effective))})
        columns.append(made)
    return Profile(rows=len(training_rows), columns=tuple(columns))


def _repeated(patients: npt.NDArray[np.int64] | None) -> tuple[Rows, npt.NDArray[np.int64] | None]:
    """Return the rows and patient numbers of a sample of patients, with a few thousand rows in all.

    The patient numbers are None if each patient has one row.
    """
    nobody: Rows = np.empty(0, dtype=np.int64)
    if patients is None or not len(patients):
        return nobody, None
    sizes = np.unique(patients, return_counts=True)[1]
    if len(sizes) == len(patients):
        return nobody, None
    # A sample of the patients is enough to estimate how similar the rows of a patient are.
    most = max(2, int(len(sizes) * min(1.0, _MOST_REPEATED / len(patients))))
    few = np.random.default_rng(0).permutation(len(sizes))[:most]
    some = np.flatnonzero(np.isin(np.unique(patients, return_inverse=True)[1], few)).astype(np.int64)
    return some, patients[some]


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


def effective_rows(bins: npt.NDArray[np.int64], patients: npt.NDArray[np.int64] | None) -> float:
    """Return how many independent rows are worth as much as these rows, in which patients can have several rows.

    Source: Rao and Scott 1981, the mean of the design effects over bins, with shares' variances over whole patients.
    The result is at most the number of rows. It is at least the number of patients divided by the most rows of one
    patient.

    Args:
        bins: int64 of shape (rows,): each row's bin, from 0.
        patients: int64 of shape (rows,), equal for rows of one patient; None if every row is a patient.
    """
    rows = len(bins)
    if patients is None or not rows:
        return float(rows)
    owners, sizes = np.unique(patients, return_inverse=True, return_counts=True)[1:]
    count = len(sizes)
    if count == rows or count < 2:
        return float(count)
    shares, places = np.bincount(bins) / rows, np.flatnonzero(np.bincount(bins))
    if len(places) < 2:
        return float(count)
    effect = 0.0
    for place in places:
        residuals = np.bincount(owners, weights=bins == place, minlength=count) - sizes * shares[place]
        effect += float(residuals @ residuals) / shares[place] / (rows * (len(places) - 1))
    return rows / min(max(1.0, effect * count / (count - 1)), float(sizes.max()))
