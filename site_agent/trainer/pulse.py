"""Reports regularly to the service manager (systemd) that the trainer is still working: the watchdog signal.

The signal is sent between requests, after every batch, and after every block of predictions. So a training that hangs
sends no signal, and a training that only takes long does. Reading a table or fitting a forest has no such loop. It is
announced as long work. Without WatchdogSec= in the unit no signal is sent.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import sdnotify

LONG_SECONDS: Final = 6 * 3600


class Pulse:
    """Sends the watchdog signals of one process to the service manager."""

    def __init__(self, notify: Callable[[str], None], clock: Callable[[], float], watchdog_seconds: float) -> None:
        """Store how to send text to the service manager, a monotonic clock, and the watchdog's seconds, 0 for none."""
        self._notify, self._clock, self._watchdog = notify, clock, watchdog_seconds
        self._next = 0.0

    def beat(self) -> None:
        """Report that this process is working. Frequent calls report at most four times in the watchdog's time."""
        if self._watchdog and self._clock() >= self._next:
            self._next = self._clock() + self._watchdog / 4
            self._notify("WATCHDOG=1")

    @contextmanager
    def long_work(self) -> Iterator[None]:
        """Extend the watchdog's time to `LONG_SECONDS` inside the `with` block."""
        if not self._watchdog:
            yield
            return
        self._notify(f"WATCHDOG_USEC={LONG_SECONDS * 1_000_000}\nWATCHDOG=1")
        try:
            yield
        finally:
            self._notify(f"WATCHDOG_USEC={round(self._watchdog * 1e6)}\nWATCHDOG=1")


PULSE: Final = Pulse(
    sdnotify.SystemdNotifier().notify, time.monotonic, int(os.environ.get("WATCHDOG_USEC") or 0) / 1_000_000
)
