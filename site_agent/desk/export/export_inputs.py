"""Defines the inputs of an exported model: features, and other dates that features use.

A number is the table's, NaN if missing. A code is its position among the declared codes, -1 if unknown. A date is the
days since 1970-01-01, NaN if missing. The graph computes intervals from dates, as `site_agent.trainer.data.cells` does.
The inputs of an image are its intensities, channel by channel, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Final

import numpy as np
import numpy.typing as npt

from site_agent.trainer.data.cells import Numbers, Parsed, interval_of, interval_rule
from site_agent.trainer.data.column_profile import Profile
from site_agent.trainer.data.columns import CategoricalFeature, DateFeature, DayColumn
from site_agent.trainer.data.contract import Contract

FIRST_DAY: Final = date(1970, 1, 1).toordinal()
_MADE_UP_DAY: Final = date(2020, 1, 1).toordinal() - FIRST_DAY


def other_days(contract: Contract) -> tuple[DayColumn, ...]:
    """Return the date columns that are used only to compute times for other features, in the contract's order."""
    needed = {feature.other for feature in contract.features if isinstance(feature, DateFeature)}
    days = [column for column in contract.columns if isinstance(column, DayColumn)]
    return tuple(column for column in days if column.name in needed)


def input_names(contract: Contract) -> tuple[str, ...]:
    """Return the names of the inputs, in order: the features, then `other_days`."""
    return (*(feature.name for feature in contract.features), *(column.name for column in other_days(contract)))


def other_day(contract: Contract, feature: DateFeature) -> tuple[int | None, float]:
    """Return the day from which a date is counted: its position in the inputs, and its number of days since 1970-01-01.

    The position is None if the day is the same for all rows. Otherwise the day is 0.
    """
    names = input_names(contract)
    if feature.other in names:
        return names.index(feature.other), 0.0
    return None, float(date.fromisoformat(feature.other).toordinal() - FIRST_DAY)


def features_of(contract: Contract, values: Numbers) -> dict[str, Numbers]:
    """Return the values of each feature by name, computed from an export's inputs, (rows, inputs)."""
    found = {name: values[:, place] for place, name in enumerate(input_names(contract))}
    days = {name: Parsed(values=found[name] + FIRST_DAY, flaws={}) for name in found if name in contract.dates}
    return {
        feature.name: (
            interval_of(feature, days[feature.name], days).values
            if isinstance(feature, DateFeature)
            else found[feature.name]
        )
        for feature in contract.features
    }


def made_up_values(contract: Contract, profile: Profile, rows: int, seed: int) -> npt.NDArray[np.float64]:
    """Return made-up rows (rows, inputs) whose values are within the limits of the training rows.

    In the first row every feature is missing if the contract permits it. Every code occurs if there are enough rows.
    Intervals of dates are within the limits; of two dates that are counted from each other the first decides.
    """
    generator = np.random.default_rng(seed)
    if contract.image is not None:
        column = contract.image
        edges = (0.0, float(column.highest)) if column.files is None else column.limits
        drawn_images = generator.uniform(*edges, (rows, column.image.numbers))
        return np.rint(drawn_images) if column.files is None else drawn_images
    limits = {one.name: (one.low, one.high) for one in profile.columns}
    days = [_MADE_UP_DAY + generator.integers(0, 1000, rows).astype(np.float64) for _ in other_days(contract)]
    columns: list[Numbers] = []
    for feature in contract.features:
        if isinstance(feature, CategoricalFeature):
            first = 0 if feature.missing == "refuse" else -1
            columns.append((np.arange(rows) % (len(feature.codes) - first) + first).astype(np.float64))
            generator.shuffle(columns[-1])
            continue
        low, high = limits.get(feature.name, feature.range or (-1.0, 1.0))
        drawn = generator.uniform(low, high, rows)
        if isinstance(feature, DateFeature):
            drawn = _dated(contract, feature, drawn, columns, days)
        is_missing = (generator.random(rows) < 0.1) & (feature.missing != "refuse")
        is_missing[0] = feature.missing != "refuse"
        columns.append(np.where(is_missing, np.nan, drawn))
    return np.ascontiguousarray(np.reshape([*columns, *days], (-1, rows)).T)


def _dated(
    contract: Contract, feature: DateFeature, drawn: Numbers, before: Sequence[Numbers], days: Sequence[Numbers]
) -> Numbers:
    """Return made-up dates, in days since 1970-01-01. Their intervals from the other day are close to `drawn`."""
    other: Numbers | float
    (column, other), features, rule = other_day(contract, feature), len(contract.features), interval_rule(feature)
    if column is not None and column >= features:
        other = days[column - features]
    elif column is not None:
        # A later feature is not made up yet. The interval of the other date is made up when the loop reaches this date.
        other = before[column] if column < len(before) else float(_MADE_UP_DAY)
    return np.rint(np.nan_to_num(other, nan=_MADE_UP_DAY) + rule.sign * drawn * rule.divisor)
