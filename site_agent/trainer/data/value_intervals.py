"""Converts dates to the time between two days, such as an age or a duration."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Final

import numpy as np

from site_agent.trainer.data.cell_rules import MISSING, IntervalRule
from site_agent.trainer.data.cells import Parsed
from site_agent.trainer.data.contract_columns import DateFeature

DAYS_PER_YEAR: Final = 365.25


def interval_rule(feature: DateFeature) -> IntervalRule:
    """Return the rule for the time between two days: how to count, and what is allowed."""
    return IntervalRule(
        feature.range or (None, None),
        sign=1 if feature.since is not None else -1,
        divisor=DAYS_PER_YEAR if feature.unit == "years" else 1.0,
        unit=feature.unit,
        refuses_missing=feature.missing == "refuse",
    )


def interval_of(feature: DateFeature, own: Parsed, days: Mapping[str, Parsed]) -> Parsed:
    """Convert a block of a date feature to its unit.

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
    rule = interval_rule(feature)
    values = rule.length(own.values, other_days)
    flaws = {words: list(places) for words, places in own.flaws.items()}
    known = np.zeros(len(values), dtype=bool)
    for parsed in (own, other) if other is not None else (own,):
        for places in parsed.flaws.values():
            known[list(places)] = True
    outside = np.flatnonzero(rule.is_outside(values))
    if outside.size:
        flaws[rule.outside.words] = outside.tolist()
        values[outside] = np.nan
        known[outside] = True
    if rule.refuses_missing:
        absent = np.flatnonzero(np.isnan(values) & ~known)
        if absent.size:
            flaws[MISSING.words] = absent.tolist()
    return Parsed(values=values, flaws=flaws)
