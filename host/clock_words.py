"""Describes times and clock differences in words, for messages about expired certificates.

A program cannot distinguish an expired certificate from a wrong clock. So each message names the certificate's times,
the time of this clock and the difference, and a person compares the clock with a watch.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

# Below two of a unit the next smaller unit is used, so that every number has a plural.
_UNITS: Final = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))
SET_CLOCK: Final = "Set this computer's clock."
COMPARE_CLOCK: Final = "Compare this computer's clock with a watch first."


def at(time: datetime) -> str:
    """Format a time to the minute. `time` is in UTC and has its time zone."""
    return f"{time:%Y-%m-%d %H:%M} UTC"


def spelled(seconds: float) -> str:
    """Describe the time between two times, such as `10 days`, `36 hours`, `5 minutes` or `90 seconds`."""
    for size, unit in _UNITS:
        if abs(seconds) >= 2 * size:
            return f"{abs(seconds) / size:.0f} {unit}"
    return f"{abs(seconds):.0f} seconds"


def outside(start: datetime, end: datetime, now: datetime) -> str:
    """Describe in two sentences how far a time is outside an interval. Return an empty text for a time inside."""
    if now < start:
        apart = f"{spelled((start - now).total_seconds())} before the start"
    elif now >= end:
        apart = f"{spelled((now - end).total_seconds())} after the end"
    else:
        return ""
    return f"It is valid from {at(start)} to {at(end)}. This computer's clock shows {at(now)}, {apart}."
