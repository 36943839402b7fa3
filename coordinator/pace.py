"""How many messages one stream may bring in a second; pure, its clock is handed in.

Whoever brings more is read more slowly: what it has sent waits in its own buffers, since gRPC takes no more
from a stream than this program has asked for. Nothing is dropped and nobody is sent away for being fast.
"""

from __future__ import annotations

from typing import Final

# A round of one batch brings a handful, so a hundred such rounds in a second are far below; chunks at this rate
# are a gigabyte in a second.
BURST: Final = 4000.0
EACH_SECOND: Final = 2000.0


class Pace:
    """What is left to one stream."""

    def __init__(self, burst: float = BURST, each_second: float = EACH_SECOND) -> None:
        self._burst, self._each_second = burst, each_second
        self._left, self._since = burst, 0.0

    def wait_seconds(self, now_seconds: float) -> float:
        """How long to wait before the next message is read; one is counted. The clock never jumps."""
        filled = self._left + self._each_second * max(0.0, now_seconds - self._since)
        self._left, self._since = min(self._burst, filled) - 1.0, now_seconds
        return max(0.0, -self._left / self._each_second)
