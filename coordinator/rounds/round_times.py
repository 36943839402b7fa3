"""How long rounds take, measured so that no interruption is taken for work.

A round's time runs from the offer of the attempt that closes it. What a program measured before it ended is read back
from the journal. The rules:

* a repeated attempt is measured from its own offer;
* a round that was disturbed (a site left, the coordinator ended, the run went back) is not measured.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final

# So many of the newest rounds say how fast the next ones are.
NEWEST: Final = 20
_DISTURBS: Final = frozenset({"started", "back", "left", "void", "restored", "announced", "over"})


class RoundTimes:
    """The times of the newest rounds of a run under way."""

    def __init__(self, clock: Callable[[], float], newest: Iterable[float] = ()) -> None:
        """`clock` gives monotonic seconds; `newest` are the times of rounds that were closed before."""
        self._clock, self._seconds = clock, deque(newest, NEWEST)
        self._attempt: tuple[int, int] | None = None
        self._began: float | None = None

    @property
    def newest(self) -> tuple[float, ...]:
        """Seconds of the newest rounds, the latest last."""
        return tuple(self._seconds)

    @property
    def median(self) -> float | None:
        """How long a round takes; None before the first one."""
        return statistics.median(self._seconds) if self._seconds else None

    @property
    def under_way(self) -> float:
        """For how long the run has worked on the present attempt; 0 if it was disturbed, and between rounds."""
        return 0.0 if self._began is None else self._clock() - self._began

    def offered(self, number: int, attempt: int) -> None:
        """An attempt at a round is offered, perhaps again to a site that came back."""
        if self._attempt != (number, attempt):
            self._attempt, self._began = (number, attempt), self._clock()

    def disturbed(self) -> None:
        """A site is away: what this attempt takes is not what a round takes."""
        self._began = None

    def closed(self) -> None:
        """The round under way is closed."""
        if self._began is not None:
            self._seconds.append(self.under_way)
        self._attempt = self._began = None


class JournalTimes:
    """The times of rounds by the entries of a journal, read in their order."""

    def __init__(self) -> None:
        self.newest: deque[float] = deque(maxlen=NEWEST)
        self._offered: dict[int, datetime] = {}

    def take(self, entry: Mapping[str, Any]) -> float | None:  # Any: whatever JSON holds
        """The seconds of the round that this entry closes; None where it closes none, or one that was disturbed."""
        kind, seconds = entry["kind"], None
        if kind == "offered":
            self._offered[entry["round"]] = datetime.fromisoformat(entry["time"])
        elif kind in _DISTURBS:
            self._offered.clear()
        elif kind == "closed" and (began := self._offered.pop(entry["round"], None)) is not None:
            seconds = (datetime.fromisoformat(entry["time"]) - began).total_seconds()
            if seconds >= 0:  # a clock that was set back measures nothing
                self.newest.append(seconds)
                return seconds
        return None
