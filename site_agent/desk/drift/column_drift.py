"""Compares each column of new rows with the profile of the training rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.desk.drift.drift_chance import LEVEL, share_differs, stability_by_chance, stability_index
from site_agent.desk.use.new_rows import NewRows
from site_agent.trainer.checkpoints import Json
from site_agent.trainer.data.column_profile import ColumnProfile, Profile, effective_rows

# Limits of the stability index (Siddiqi 2006): below SOME a column has hardly changed; at MUCH or above it has drifted.
SOME: Final = 0.1
MUCH: Final = 0.25
MISSING: Final = 0.05
OUTSIDE: Final = 0.01
_SEED: Final = 20_261_122


@dataclass(frozen=True, kw_only=True)
class Watched:
    """How one column of the new rows differs from the training rows. All fractions are fractions of all new rows.

    Attributes:
        name: as declared.
        stability_index: see drift_chance.py; None if no row has an allowed value.
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
        """The warnings about this column for a person to check, one sentence each."""
        found, index = [], self.stability_index
        if index is not None and self.by_chance is not None and index > max(SOME, self.by_chance):
            how = "has drifted" if index >= MUCH else "has changed somewhat"
            found.append(f"{self.name} {how}: population stability index {index:.2f}, by chance {self.by_chance:.2f}.")
        if self.has_more_missing:
            before, now = 100 * self.missing_in_training, 100 * self.missing
            found.append(f"{self.name} is missing in {now:.0f}% of the rows, in training in {before:.0f}%.")
        if self.outside_contract:
            share = _percent(self.outside_contract)
            found.append(f"{self.name} has a value that the contract does not allow in {share} of the rows.")
        if self.is_outside:
            share = _percent(self.outside)
            found.append(f"{self.name} lies beyond the limits of the training rows in {share} of the rows.")
        return tuple(found)

    def to_json(self) -> dict[str, Json]:
        """Return plain values for `json.dumps`."""
        return asdict(self)


def watch(profile: Profile, new: NewRows) -> tuple[Watched, ...]:
    """Compare each column of new rows with the profile of the training rows.

    Args:
        profile: of the model's training rows.
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
