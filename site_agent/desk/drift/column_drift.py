"""Compares each column of new rows with the training rows, and reports differences that chance does not explain.

The measure is the population stability index (Siddiqi 2006). Two samples of the same patients differ, and small samples
differ more, so the index is shown with the value that chance exceeds in 1 of 100 tables without drift, over all columns
together. Several rows of one patient count as one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.use.new_rows import NewRows
from site_agent.trainer.data.column_profile import ColumnProfile, Profile

# Limits of the stability index: below SOME a column has hardly changed; at MUCH or above it has drifted.
SOME: Final = 0.1
MUCH: Final = 0.25
_MISSING: Final = 0.05
_OUTSIDE: Final = 0.01
LEVEL: Final = 0.01  # probability of a false alarm of one type, over all columns or metrics together
_SMALLEST: Final = 1e-4
_FEWEST: Final = 12.0  # patients that are expected in a bin; bins with fewer are joined with the next ones

Shares = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """How one column of the new rows differs from the training rows. All fractions are fractions of all new rows.

    Attributes:
        name: as declared.
        stability_index: see `stability_index`; None if no row has an allowed value.
        by_chance: the index that chance alone exceeds, in any column, in 1 of 100 tables without drift.
        missing, missing_in_training: shares of rows without a value.
        outside: the share of rows beyond the limits of the training rows.
        outside_contract: the share of rows with a value that the contract does not allow.
        warnings: one sentence for each difference that a person should check.
    """

    name: str
    stability_index: float | None
    by_chance: float | None
    missing: float
    missing_in_training: float
    outside: float
    outside_contract: float
    warnings: tuple[str, ...]


def watch(profile: Profile, new: NewRows) -> tuple[Watched, ...]:
    """Compare each column of new rows with the stored summary (profile) of the training rows."""
    level = LEVEL / max(1, len(profile.columns))
    return tuple(_watched(column, profile.patients, new, level) for column in profile.columns)


def _watched(column: ColumnProfile, before: int, new: NewRows, level: float) -> Watched:
    values, beyond, who = new.table.features[column.name], new.off_contract(column.name), new.table.patients
    now = new.table.rows if who is None else len(set(who))
    # A value that the contract does not allow is NaN in the table, but it is not counted as missing.
    absent = (np.isnan(values) | (values < 0) if column.kind == "code" else np.isnan(values)) & ~beyond
    missing, outside = float(absent.mean()), float(column.is_outside(values).mean())
    there = values[~(absent | beyond)]
    index, by_chance = None, None
    if len(there) and column.shares:
        sizes = (before * (1 - column.missing), now * len(there) / new.table.rows)
        index, by_chance = compared_bins(np.array(column.shares), column.bins(there), sizes, level)
    warnings = []
    if index is not None and by_chance is not None and index > max(SOME, by_chance):
        how = "has changed much" if index >= MUCH else "has changed somewhat"
        warnings.append(
            f"{column.name} {how}: its population stability index is {index:.2f}, by chance at most {by_chance:.2f}."
        )
    if abs(missing - column.missing) >= _MISSING and share_differs((column.missing, missing), (before, now), level):
        before_it, now_it = 100 * column.missing, 100 * missing
        warnings.append(
            f"{column.name} is missing in {now_it:.0f}% of the new rows and in {before_it:.0f}% of the training rows."
        )
    if beyond.any():
        share = _percent(float(beyond.mean()))
        warnings.append(f"{column.name} has a value that the contract does not allow in {share} of the new rows.")
    if outside >= _OUTSIDE and share_differs((0.0, outside), (before, now), level):
        share = _percent(outside)
        warnings.append(f"{column.name} is outside the range of the training rows in {share} of the new rows.")
    return Watched(
        name=column.name,
        stability_index=index,
        by_chance=by_chance,
        missing=missing,
        missing_in_training=column.missing,
        outside=outside,
        outside_contract=float(beyond.mean()),
        warnings=tuple(warnings),
    )


def _percent(share: float) -> str:
    return "less than 1%" if share < 0.005 else f"{100 * share:.0f}%"


def stability_index(expected: Shares, found: Shares) -> float:
    """Return the population stability index of shares of shape (bins,): Σ (found - expected)·ln(found / expected).

    A share is set to at least 1e-4, so that an empty bin does not make the sum infinite.
    """
    before, after = expected.clip(_SMALLEST), found.clip(_SMALLEST)
    return float(((after - before) * np.log(after / before)).sum())


def compared_bins(expected: Shares, found: Shares, sizes: tuple[float, float], level: float) -> tuple[float, float]:
    """Return the stability index, and the index that chance alone exceeds with probability `level`.

    Source: Yurdakul and Naranjo 2020, "Statistical properties of the population stability index": without drift the
    index is (1/n + 1/m) times a chi-square with bins - 1 degrees of freedom. Neighbouring bins with few expected
    patients are joined first, because an empty bin has a large index.

    Args:
        expected, found: shares of the bins in the training rows and in the new ones, each of shape (bins,).
        sizes: patients with a value, in the training rows and in the new ones.
    """
    from scipy.stats import chi2

    before, after = (max(1.0, size) for size in sizes)
    pooled = (before * expected + after * found) / (before + after) * min(before, after)
    # The number of the joined bin of each bin: a new one begins when the last one has enough patients.
    joined, there, number = [], 0.0, 0
    for patients in pooled:
        if there >= _FEWEST:
            number, there = number + 1, 0.0
        joined.append(number)
        there += patients
    if there < _FEWEST and number:
        joined = [min(one, number - 1) for one in joined]
    expected, found = (np.bincount(joined, weights=one).astype(np.float64) for one in (expected, found))
    limit = (1 / before + 1 / after) * chi2.ppf(1 - level, max(1, len(expected) - 1))
    return stability_index(expected, found), float(limit)


def share_differs(shares: tuple[float, float], sizes: tuple[float, float], level: float) -> bool:
    """Return whether the shares of training rows and new rows differ more than by chance (Fisher's exact test)."""
    from scipy.stats import fisher_exact

    table = [[round(share * size), round(size - share * size)] for share, size in zip(shares, sizes, strict=True)]
    return bool(fisher_exact(table).pvalue < level)
