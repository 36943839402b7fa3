"""Compares each column of new rows with the training rows, and reports differences that chance does not explain.

The population stability index is never 0: two samples of the same patients differ, and small samples differ more. So
the report shows with every index the value that chance exceeds in 1 of 100 tables without drift, over all columns
together. Five kinds of alarm share the 5 of 100 (Bonferroni): the index, missing values, values beyond the limits,
the model's metrics, and the model's mean prediction. The rules:

* both sample sizes are used, that of the new rows and that of the training rows;
* several rows of one patient are not as many patients, so a sample is counted by its effective rows
  (`effective_rows`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.column_profile import ColumnProfile, Profile, effective_rows
from site_agent.desk.use.new_rows import NewRows

# Limits of the stability index (Siddiqi 2006): below SOME a column has hardly changed; at MUCH or above it has drifted.
SOME: Final = 0.1
MUCH: Final = 0.25
MISSING: Final = 0.05
OUTSIDE: Final = 0.01
_SEED: Final = 20_261_122
LEVEL: Final = 0.05 / 5  # probability of a false alarm of one type, over all columns, metrics or outcomes together
_SMALLEST: Final = 1e-4
# If at least this many rows are expected in every bin of both samples, a formula replaces drawn samples.
_ENOUGH: Final = 20.0
_MOST_DRAWS: Final = 20_000
_FEWEST_DRAWS: Final = 2_000
_BEYOND: Final = 10  # a quantile must be exceeded by at least this many draws

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
        has_more_missing: whether the share of missing values differs by MISSING or more, and by more than chance.
        is_outside: whether the share beyond the limits is OUTSIDE or more, and more than by chance.
    """

    name: str
    stability_index: float | None
    by_chance: float | None
    missing: float
    missing_in_training: float
    outside: float
    outside_contract: float
    has_more_missing: bool
    is_outside: bool

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings about this column, one sentence each. A person should check each warning."""
        found, index = [], self.stability_index
        if index is not None and self.by_chance is not None and index > max(SOME, self.by_chance):
            how = "has changed much" if index >= MUCH else "has changed somewhat"
            chance = f"by chance at most {self.by_chance:.2f}"
            found.append(f"{self.name} {how}: its population stability index is {index:.2f}, {chance}.")
        if self.has_more_missing:
            before, now = 100 * self.missing_in_training, 100 * self.missing
            found.append(
                f"{self.name} is missing in {now:.0f}% of the new rows and in {before:.0f}% of the training rows."
            )
        if self.outside_contract:
            share = _percent(self.outside_contract)
            found.append(f"{self.name} has a value that the contract does not allow in {share} of the new rows.")
        if self.is_outside:
            share = _percent(self.outside)
            found.append(f"{self.name} is outside the range of the training rows in {share} of the new rows.")
        return tuple(found)


def watch(profile: Profile, new: NewRows) -> tuple[Watched, ...]:
    """Compare each column of new rows with the stored summary (profile) of the training rows.

    Args:
        new: the new rows. Rows of one patient are combined if the table identifies patients.
    """
    generator, level = np.random.default_rng(_SEED), LEVEL / max(1, len(profile.columns))
    patients = None if new.table.patients is None else np.unique(new.table.patients, return_inverse=True)[1]
    return tuple(_watched(column, profile.rows, new, patients, level, generator) for column in profile.columns)


def _watched(
    column: ColumnProfile,
    training_rows: int,
    new: NewRows,
    patients: npt.NDArray[np.int64] | None,
    level: float,
    generator: np.random.Generator,
) -> Watched:
    values, is_code = new.table.features[column.name], column.kind == "code"
    beyond = new.off_contract(column.name)
    # A value that the contract does not allow is NaN in the table, but it is not counted as missing.
    absent = (np.isnan(values) | (values < 0) if is_code else np.isnan(values)) & ~beyond
    is_there = ~(absent | beyond)
    outside = column.is_outside(values)
    there = None if patients is None else patients[is_there]
    before = training_rows / column.effect
    index, by_chance = None, None
    if is_there.any() and column.shares:
        expected, found = np.array(column.shares), column.bins(values[is_there])
        sizes = (max(1.0, before * (1 - column.missing)), effective_rows(column.places(values[is_there]), there))
        index, by_chance = (
            stability_index(expected, found),
            stability_by_chance(expected, found, sizes, level, generator),
        )
    missing = (column.missing, float(absent.mean()))
    beyond_limits = (0.0, float(outside.mean()))
    return Watched(
        name=column.name,
        stability_index=index,
        by_chance=by_chance,
        missing=missing[1],
        missing_in_training=missing[0],
        outside=beyond_limits[1],
        outside_contract=float(beyond.mean()),
        has_more_missing=_differs(missing, before, absent, patients, MISSING, level),
        is_outside=_differs(beyond_limits, before, outside, patients, OUTSIDE, level),
    )


def _differs(
    shares: tuple[float, float],
    before: float,
    is_so: npt.NDArray[np.bool_],
    patients: npt.NDArray[np.int64] | None,
    least: float,
    level: float,
) -> bool:
    """Return whether a fraction has changed by at least `least`, and by more than chance explains."""
    now = effective_rows(is_so.astype(np.int64), patients)
    return abs(shares[1] - shares[0]) >= least and share_differs(shares, (before, now), level)


def _percent(share: float) -> str:
    return "less than 1%" if share < 0.005 else f"{100 * share:.0f}%"


def stability_index(expected: Shares, found: Shares) -> float:
    """Return the population stability index of shares of shape (bins,): Σ (found - expected)·ln(found / expected).

    A share is set to at least 1e-4, so that an empty bin does not make the sum infinite.
    """
    return float(_indices(expected[None], found[None])[0])


def stability_by_chance(
    expected: Shares, found: Shares, rows: tuple[float, float], level: float, generator: np.random.Generator
) -> float:
    """Return the stability index that chance alone exceeds with probability `level`, if nothing has changed.

    Source: Yurdakul and Naranjo 2020, "Statistical properties of the population stability index": without drift the
    index is (1/n + 1/m) times a chi-square with bins - 1 degrees of freedom. One difference: if a bin is expected to
    have fewer than 20 rows, empty bins have more effect. Then the quantile is that of drawn samples. For a level that
    is too rare for the number of draws, it is at least the largest draw and the quantile of a chi-square with their
    mean and variance.

    Args:
        expected, found: shares of the bins in the training rows and in the new ones, each of shape (bins,).
        rows: effective rows with a value, of training and new ones.
        level: between 0 and 1.
    """
    before, now = (max(1, round(size)) for size in rows)
    pooled = (before * expected + now * found) / (before + now)
    pooled = pooled[pooled > 0]
    if len(pooled) < 2:
        return 0.0
    if min(before, now) * pooled.min() >= _ENOUGH:
        return (1 / before + 1 / now) * _chi_square(len(pooled) - 1.0, 1 - level)
    can_tell = level * _MOST_DRAWS >= _BEYOND
    draws = min(_MOST_DRAWS, math.ceil(2 * _BEYOND / level)) if can_tell else _FEWEST_DRAWS
    drawn = _indices(
        generator.multinomial(before, pooled, draws) / before, generator.multinomial(now, pooled, draws) / now
    )
    if can_tell:
        return float(np.quantile(drawn, 1 - level))
    mean, variance = float(drawn.mean()), float(drawn.var())
    scaled = variance / (2 * mean) * _chi_square(2 * mean**2 / variance, 1 - level) if variance else mean
    return max(scaled, float(drawn.max()))


def share_differs(shares: tuple[float, float], rows: tuple[float, float], level: float) -> bool:
    """Return whether the shares of training rows and new rows differ more than by chance. `rows` are effective rows.

    Source: Anscombe 1948, whose arcsine gives shares the same variance, also near 0 and 1 and with few rows. `level`
    is of the two-sided test.
    """
    before, now = (
        math.asin(math.sqrt((share * size + 0.375) / (size + 0.75))) for share, size in zip(shares, rows, strict=True)
    )
    deviation = 0.5 * math.sqrt(1 / (rows[0] + 0.5) + 1 / (rows[1] + 0.5))
    return abs(now - before) > NormalDist().inv_cdf(1 - level / 2) * deviation


def _indices(expected: Shares, found: Shares) -> Shares:
    """Return the stability index of each pair of samples; both arguments have shape (pairs, bins)."""
    before, after = expected.clip(_SMALLEST), found.clip(_SMALLEST)
    return np.asarray(((after - before) * np.log(after / before)).sum(axis=1))


def _chi_square(freedom: float, probability: float) -> float:
    """Return a quantile of the chi-square distribution with an error below 1%. Source: Wilson and Hilferty 1931."""
    part = 2 / (9 * freedom)
    return float(freedom * max(0.0, 1 - part + NormalDist().inv_cdf(probability) * math.sqrt(part)) ** 3)
