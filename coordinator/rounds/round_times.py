"""Measures how long rounds take. Interrupted rounds are not measured.

A round's time is measured from the offer of the attempt that closes the round. A round that was disturbed is not
measured: a site disconnected, or the run returned to an earlier round. A restarted program measures again.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from typing import Final

# The pace is estimated from this number of newest rounds.
NEWEST: Final = 20


class RoundTimes:
    """Measures the newest rounds of an active run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without a round. `clock` returns monotonic seconds."""
        self._clock, self._seconds = clock, deque[float](maxlen=NEWEST)
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
        if self._began is not None:
            self._seconds.append(self.under_way)
        self._attempt = self._began = None
