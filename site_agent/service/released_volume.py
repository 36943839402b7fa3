"""Counts from the audit log how much data this site has sent.

Each reading continues at the end of the previous one, so frequent requests cost little. The log is not verified here:
`site-agent audit verify` does that.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from audit.log_files import all_files

_PRIVACY_SPENT: Final = "privacy_spent"
_HANDED_OVER: Final = "contribution_handed_over"
COSIGNED: Final = "checkpoint_cosigned"


@dataclass(frozen=True)
class Left:
    """The totals of sent data and of records, from the audit log.

    Attributes:
        contributions: complete uploads; a repeated upload counts again.
        handed_bytes: their sum, in bytes.
        records: lines of the log.
        not_cosigned: lines after the last cosignature of the coordinator.
        epsilons: the epsilon of each payment from the patients' privacy budget.
    """

    contributions: int = 0
    handed_bytes: int = 0
    records: int = 0
    not_cosigned: int = 0
    epsilons: tuple[float, ...] = ()

    def after(self, event: str, byte_count: int, epsilon: float = 0.0) -> Left:
        """Return the totals of sent data after one more record of the audit log was counted."""
        is_handed = event == _HANDED_OVER
        return Left(
            self.contributions + is_handed,
            self.handed_bytes + (byte_count if is_handed else 0),
            self.records + 1,
            0 if event == COSIGNED else self.not_cosigned + 1,
            (*self.epsilons, epsilon) if event == _PRIVACY_SPENT else self.epsilons,
        )


class GrowingLog:
    """Reads each line of a log once, in all files of the log, including rotated files. The log is not verified."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # By the number of the inode, because a file keeps this number when it is renamed.
        self._sizes: dict[int, int] = {}

    def read(self, take: Callable[[bytes], None], begin: Callable[[], None]) -> None:
        """Pass each new line of the log to `take`. If another log has replaced this log, call `begin` first."""
        for path in all_files(self._path):
            with suppress(FileNotFoundError), path.open("rb") as file:  # a renamed file is found at the next reading
                found = os.fstat(file.fileno())
                if found.st_size < self._sizes.get(found.st_ino, 0):
                    self._sizes.clear()
                    begin()
                    self.read(take, begin)  # also the files before this one
                    return
                file.seek(self._sizes.get(found.st_ino, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    self._sizes[found.st_ino] = self._sizes.get(found.st_ino, 0) + len(line)
                    take(line)


class LeftCount:
    """Counts the records of an audit log. Later calls read only the new lines."""

    def __init__(self, path: Path) -> None:
        self._log, self._left = GrowingLog(path), Left()

    def now(self) -> Left:
        """Return how much data this site has sent until now according to the audit log. Without a log, all are zero."""
        self._log.read(self._take, self._begin)
        return self._left

    def _begin(self) -> None:
        self._left = Left()

    def _take(self, line: bytes) -> None:
        try:
            facts = json.loads(line)["facts"]
            numbers = int(facts.get("bytes", 0)), float(facts.get("epsilon", 0.0))
            self._left = self._left.after(str(facts["event"]), *numbers)
        except (ValueError, KeyError, TypeError, AttributeError):
            self._left = self._left.after("", 0)  # a damaged line, which the verification reports
