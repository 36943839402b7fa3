"""Refusals in the audit log, so many in a minute and no more: strangers cannot fill the disk with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MOST_REFUSALS: Final = 20  # recorded one by one between two ends of the watch's minute
TICKS: Final = 120  # of half a second each


class Refusals:
    """What was refused in this minute."""

    def __init__(self, record: Callable[..., None]) -> None:
        """`record` writes an event with its facts into the audit log."""
        self._record = record
        self._refusals = self._ticks = 0

    def note(self, event: str, **facts: object) -> None:
        """Record a refusal, or count it where there were many already."""
        self._refusals += 1
        if self._refusals <= MOST_REFUSALS:
            self._record(event, **facts)

    def tick(self) -> None:
        """Called twice a second; at the end of a minute one record says how many others there were."""
        self._ticks = (self._ticks + 1) % TICKS
        if self._ticks:
            return
        others, self._refusals = self._refusals - MOST_REFUSALS, 0
        if others > 0:
            self._record("refusals_counted", count=others)
