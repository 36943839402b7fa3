"""Measures how long rounds take. Interrupted rounds are not measured.

A round's time is measured from the offer of the attempt that closes the round. Times that an earlier process measured
are read from the audit log. A round that was disturbed is not measured: a site disconnected, the coordinator ended, or
the run returned to an earlier round.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

# The pace is estimated from this number of newest rounds.
NEWEST: Final = 20
_DISTURBS: Final = frozenset(
    {"run_taken_up", "run_back", "site_left", "round_void", "state_restored", "run_announced", "run_over"}
)


class RoundTimes:
    """Measures the newest rounds of an active run."""

    def __init__(self, clock: Callable[[], float], newest: Iterable[float] = ()) -> None:
        """Start with the times of earlier rounds, in seconds. `clock` returns monotonic seconds."""
        self._clock, self._seconds = clock, deque(newest, NEWEST)
        self._attempt: tuple[int, int] | None = None
        self._began: float | None = None

    @property
    def newest(self) -> tuple[float, ...]:
        """Return how many seconds each of the newest rounds lasted, in the order of the rounds."""
        return tuple(self._seconds)

    @property
    def median(self) -> float | None:
        """Return the median duration of a round in seconds, or None before the first round."""
        return statistics.median(self._seconds) if self._seconds else None

    @property
    def under_way(self) -> float:
        """Return the seconds since the current attempt began; 0 after an interruption and between rounds."""
        return 0.0 if self._began is None else self._clock() - self._began

    def offered(self, number: int, attempt: int) -> None:
        """Start to measure the time of an attempt. A repeated offer of the same attempt does not restart this."""
        if self._attempt != (number, attempt):
            self._attempt, self._began = (number, attempt), self._clock()

    def disturbed(self) -> None:
        """Mark the current attempt at a round as interrupted, so that its time is not used."""
        self._began = None

    def closed(self) -> None:
        """Record that the current round is complete, with its duration."""
        if self._began is not None:
            self._seconds.append(self.under_way)
        self._attempt = self._began = None


class RecordedTimes:
    """Computes the times of rounds from the records of a run."""

    def __init__(self) -> None:
        self.newest: deque[float] = deque(maxlen=NEWEST)
        self._offered: dict[int, datetime] = {}

    def take(self, record: Mapping[str, Any]) -> float | None:  # Any: every type that JSON has
        """Return how many seconds a round lasted if this record ends it. Return None if the round was interrupted."""
        event, seconds = record["event"], None
        if event == "round_offered":
            self._offered[record["round"]] = datetime.fromisoformat(record["time"])
        elif event in _DISTURBS:
            self._offered.clear()
        elif event == "round_closed" and (began := self._offered.pop(record["round"], None)) is not None:
            seconds = (datetime.fromisoformat(record["time"]) - began).total_seconds()
            if seconds >= 0:  # if the clock was set back, the time is unknown
                self.newest.append(seconds)
                return seconds
        return None
