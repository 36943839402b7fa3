"""Reads the time of follow-up in a table, which makes a binary outcome a time to an event.

The time is a number, or the time from another date to a date. The outcome says whether it ends with the event. The
rules:

* a time below 0, dates in the wrong order, and a day after the administrative end are mistakes, with their rows;
* a time of 0 is a mistake unless the contract keeps it.
"""

from __future__ import annotations

import math
from datetime import date
from typing import Final

import numpy as np

from site_agent.trainer.data.cell_rules import MISSING, Flaw
from site_agent.trainer.data.cells import DAYS_PER_YEAR, BlockParser, Parsed, date_parser, feature_parser, with_flaws
from site_agent.trainer.data.columns import DayColumn, FollowUpColumn, NumericFeature
from site_agent.trainer.data.contract import Contract

NEGATIVE: Final = Flaw("a time of follow-up below 0")
REVERSED: Final = Flaw("an end of follow-up before its start; are the two dates in the right columns?")
ZERO: Final = Flaw(
    "a time of follow-up of 0; correct it, or declare `zero: keep` if follow-up can end on the first day"
)
AFTER_END: Final = Flaw(
    "a day after the administrative end; write that day, with the code of a patient without the event, or correct `end`"
)


def follow_up_parser(column: FollowUpColumn, contract: Contract, today: date) -> BlockParser:
    """Return a function that reads a block of cells as numbers, or as days since the year 1."""
    common = {"name": column.name, "missing_markers": column.missing_markers}
    if column.pattern is None:
        number = {"role": "feature", "type": "numeric", "missing": "median"}
        return feature_parser(NumericFeature.model_validate(common | number), contract)
    return date_parser(DayColumn.model_validate(common | {"role": "date", "pattern": column.pattern}), contract, today)


def times_of(column: FollowUpColumn, own: Parsed, start: Parsed | None) -> Parsed:
    """Return the times of a block in the column's unit, float64 (rows,), NaN if missing or flawed.

    Args:
        own: what `follow_up_parser` read.
        start: the days of the column `since`, for dates.
    """
    values = own.values.copy()
    is_after = values > (math.inf if column.end is None else column.end.toordinal())
    if start is not None:
        values = (values - start.values) / (DAYS_PER_YEAR if column.unit == "years" else 1.0)
    wrong = [
        (AFTER_END, is_after),
        (NEGATIVE if start is None else REVERSED, values < 0.0),
        (ZERO, (values == 0.0) & (column.zero == "refuse")),
    ]
    if column.longest is not None:
        wrong.append((Flaw(f"a time longer than {column.longest:g} {column.unit}"), values > column.longest))
    wrong.append((MISSING, np.isnan(values) & (column.missing == "refuse")))
    return with_flaws(values, own, start, wrong)
