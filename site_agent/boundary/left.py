"""What has left this site, counted from the audit log without changing it.

The log is read forward from where the last reading ended, so asking often costs nothing. It is not
verified here: `site-agent audit verify` does that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_HANDED_OVER: Final = "contribution_handed_over"
COUNTERSIGNED: Final = "head_countersigned"


@dataclass(frozen=True)
class Left:
    """What the audit log says.

    Attributes:
        contributions: uploads that were handed over whole; a repeated upload counts again.
        handed_bytes: their sum, in bytes.
        records: lines of the log.
        not_countersigned: lines after the last countersignature of the coordinator.
    """

    contributions: int = 0
    handed_bytes: int = 0
    records: int = 0
    not_countersigned: int = 0

    def after(self, event: str, byte_count: int) -> Left:
        """With one record more."""
        is_handed = event == _HANDED_OVER
        return Left(
            self.contributions + is_handed,
            self.handed_bytes + (byte_count if is_handed else 0),
            self.records + 1,
            0 if event == COUNTERSIGNED else self.not_countersigned + 1,
        )


class LeftCount:
    """Counts one log as it grows."""

    def __init__(self, path: Path) -> None:
        self._path, self._size, self._left = path, 0, Left()

    def now(self) -> Left:
        """What the log says at this moment; nothing where there is none yet."""
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._size:  # another file has taken its place
                    self._size, self._left = 0, Left()
                file.seek(self._size)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._take(line)
        except FileNotFoundError:
            pass
        return self._left

    def _take(self, line: bytes) -> None:
        self._size += len(line)
        try:
            facts = json.loads(line)["facts"]
            self._left = self._left.after(str(facts["event"]), int(facts.get("bytes", 0)))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._left = self._left.after("", 0)  # damaged; the verification says so
