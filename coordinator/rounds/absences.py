"""Stores the announced absences of sites, and computes how long the coordinator waits for absent sites.

A site reports its absence whenever it connects. The wall clock is read one time, on arrival. After that a clock that
never jumps is used. An absence has a largest length and begins at most that long after its announcement. So no site can
delay a study for ever by announcing one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from coordinator.rounds.phases import Sites, Terms

LONGEST_SECONDS: Final = 14 * 86_400


@dataclass
class Windows:
    """The announced absences of all sites. `clock` returns monotonic seconds, `now` aware UTC times."""

    clock: Callable[[], float]
    now: Callable[[], datetime]
    _heard: dict[str, tuple[int, int]] = field(default_factory=dict)
    _told: dict[str, tuple[int, int]] = field(default_factory=dict)
    _on_clock: dict[str, tuple[float, float]] = field(default_factory=dict)

    def take(self, site: str, begins: int, ends: int) -> bool:
        """Store a site's announced absence, in seconds since 1970; 0 and 0 remove it. Return whether it is new."""
        if self._heard.get(site, (0, 0)) == (begins, ends):
            return False  # removed also if the wall clock has jumped in the meantime
        self._heard[site] = (begins, ends)
        present = self.now().timestamp()
        # The longest absence is measured from its beginning, so that repeated announcements do not make it longer.
        ends = min(ends, begins + LONGEST_SECONDS)
        is_near = begins - present < LONGEST_SECONDS
        told = (begins, ends) if is_near and max(begins, present) < ends else (0, 0)
        if told == self._told.get(site, (0, 0)):
            return False
        self._told[site] = told
        shift = self.clock() - present
        self._on_clock[site] = (told[0] + shift, told[1] + shift)
        return True

    def on_clock(self) -> Mapping[str, tuple[float, float]]:
        """Return the beginning and the end of each site's announced absence, in seconds of a monotonic clock."""
        return {site: window for site, window in self._on_clock.items() if self._told[site] != (0, 0)}

    def facts(self, site: str) -> dict[str, str] | None:
        """Return a site's current or future announced absence for output as JSON. Return None if there is none."""
        begins, ends = self._told.get(site, (0, 0))
        if not ends or self._on_clock[site][1] <= self.clock():
            return None
        return {"from": _text(begins), "until": _text(ends)}


def excused_until(terms: Terms, absent: Sites, now: float) -> float | None:
    """Return the end of these sites' announced absences plus the grace period. Return None if no absence is current."""
    windows = [terms.away[site] for site in absent if site in terms.away]
    ends = [end for begin, end in windows if begin <= now < end]
    return max(ends) + terms.deadlines.grace_seconds if ends else None


def _text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="minutes")
