"""Limits how many bytes one other program can add in a day to this program's audit log.

A checkpoint of another log is a record here, and so is each cosignature of the own log. A member that sends checkpoints
without end would fill the disk. So each member has a budget, which refills steadily. Above it the next checkpoint
waits. Nothing is signed without its record, and the next checkpoint covers all earlier ones.

The budget survives a restart. It is taken from its file in small blocks before they are used. So a restart never gives
a member more, and few records need a second write.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from audit import checkpoint_memory

EACH_DAY_BYTES: Final = 2_000_000  # about 2,700 checkpoints of another log, or one each half a minute
_DAY_SECONDS: Final = 86_400.0
_BLOCK_BYTES: Final = 20_000.0
_LEAST_BYTES: Final = 2_000.0  # more than one record has


class RecordingBudget:
    """Counts how many bytes each member can still make this program add to its audit log."""

    def __init__(self, folder: Path, now: Callable[[], datetime], told: Callable[[str], None] = lambda _: None) -> None:
        """Start with the budgets in a folder. `now` returns aware times.

        `told` receives the owner of a log when its budget is used up, at most once a day.
        """
        self._folder, self._now, self._told = folder, now, told
        self._in_hand: dict[str, float] = {}  # taken from the file and not used yet
        self._kept: dict[str, tuple[float, float]] = {}  # as in the file: bytes left, and the time of writing
        self._last_told: dict[str, float] = {}

    def allows(self, owner: str) -> bool:
        """Return whether this member may cause one more record now. Return False if the disk cannot be written."""
        if self._in_hand.get(owner, 0.0) > 0.0:
            return True
        now = self._now().timestamp()
        try:
            left, since = self._kept.get(owner) or self._read(owner)
        except OSError:
            return False
        left = min(EACH_DAY_BYTES, left + EACH_DAY_BYTES / _DAY_SECONDS * max(0.0, now - since))
        if left < _LEAST_BYTES:
            self._kept[owner] = left, now
            self._tell(owner, now)
            return False
        block = min(_BLOCK_BYTES, left)
        try:
            checkpoint_memory.keep_budget(self._folder, owner, {"bytes": left - block, "time": now})
        except OSError:
            return False
        self._kept[owner] = left - block, now
        self._in_hand[owner] = self._in_hand.get(owner, 0.0) + block
        return True

    def spend(self, owner: str, byte_count: int) -> None:
        """Subtract the bytes of a record from the daily limit of the member that caused the record."""
        self._in_hand[owner] = self._in_hand.get(owner, 0.0) - byte_count

    def _read(self, owner: str) -> tuple[float, float]:
        return _level(checkpoint_memory.kept_budget(self._folder, owner))

    def _tell(self, owner: str, now: float) -> None:
        if abs(now - self._last_told.get(owner, -math.inf)) >= _DAY_SECONDS:
            self._last_told[owner] = now
            self._told(owner)


def _level(facts: dict[str, Any] | None) -> tuple[float, float]:
    """Return the stored budget: bytes left, and the time of writing. A damaged file counts as 0 bytes, which refill."""
    if facts is None:
        return float(EACH_DAY_BYTES), math.inf
    try:
        left, since = float(facts["bytes"]), float(facts["time"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return 0.0, math.inf
    is_whole = math.isfinite(left) and math.isfinite(since) and left >= 0  # a budget below zero would hardly refill
    return (min(left, EACH_DAY_BYTES), since) if is_whole else (0.0, math.inf)
