"""Dates to the time between two days: an age, or how long something lasted."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Final

import numpy as np

from site_agent.trainer.data.cells import MISSING, Parsed
from site_agent.trainer.data.contract_columns import DateFeature

DAYS_PER_YEAR: Final = 365.25


def interval_of(feature: DateFeature, own: Parsed, days: Mapping[str, Parsed]) -> Parsed:
    """A block of a date feature in its unit.

    Args:
        feature: the declaration.
        own: its dates in days, NaN where missing or flawed.
        days: the same of every date column, by name.

    Returns:
        values: float64 of shape (rows,); flaws: those of the dates, of the interval's range, and missing ones where
        those are refused. A row that is flawed already is not told again as missing.
    """
    other = days.get(feature.other)
    other_days = other.values if other is not None else float(date.fromisoformat(feature.other).toordinal())
    values = own.values - other_days if feature.since is not None else other_days - own.values
    values = values / DAYS_PER_YEAR if feature.unit == "years" else values
    flaws = {words: list(places) for words, places in own.flaws.items()}
    known = np.zeros(len(values), dtype=bool)
    for parsed in (own, other) if other is not None else (own,):
        for places in parsed.flaws.values():
            known[list(places)] = True
    if feature.range is not None:
        low, high = feature.range
        outside = np.flatnonzero((values < low) | (values > high))
        if outside.size:
            flaws[f"an interval outside the declared range {low:g} to {high:g} {feature.unit}"] = outside.tolist()
            values[outside] = np.nan
            known[outside] = True
    if feature.missing == "refuse":
        absent = np.flatnonzero(np.isnan(values) & ~known)
        if absent.size:
            flaws[MISSING.words] = absent.tolist()
    return Parsed(values=values, flaws=flaws)
