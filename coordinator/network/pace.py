"""How many messages one stream may bring in a second; pure, its clock is handed in.

Whoever brings more is read more slowly: what it has sent waits in its own buffers, since gRPC takes no more
from a stream than this program has asked for. Nothing is dropped and nobody is sent away for being fast.
"""

from __future__ import annotations

from typing import Final

from protos.wire.messages import Done, Join, Refusal, SiteMessage
from protos.wire.upkeep_messages import Upkeep

# A round of one batch brings a handful, so a hundred such rounds in a second are far below; chunks at this rate
# are a gigabyte in a second.
BURST: Final = 4000.0
EACH_SECOND: Final = 2000.0
# What stands in an audit log or a journal afterwards is synced before anything else is heard. An honest site joins once
# on a stream; heads of logs come after twenty records each. At 5 ms a sync, a site takes a third of the time at most.
RECORDED_BURST: Final = 200.0
RECORDED_EACH_SECOND: Final = 10.0
UPKEEP_BURST: Final = 500.0
UPKEEP_EACH_SECOND: Final = 50.0
# A stream that ends while it waits leaves its message counted. What is counted so may delay the same site's next
# stream, which can be an honest one, for no longer than this.
LONGEST_WAIT_SECONDS: Final = 5.0


class Pace:
    """What is left to one stream, or to one site."""

    def __init__(self, burst: float = BURST, each_second: float = EACH_SECOND) -> None:
        self._burst, self._each_second = burst, each_second
        self._left, self._since = burst, 0.0

    def wait_seconds(self, now_seconds: float) -> float:
        """How long to wait before the next message is read; one is counted. The clock never jumps."""
        filled = self._left + self._each_second * max(0.0, now_seconds - self._since)
        least = -LONGEST_WAIT_SECONDS * self._each_second
        self._left, self._since = max(least, min(self._burst, filled) - 1.0), now_seconds
        return max(0.0, -self._left / self._each_second)


class RecordedPace:
    """What is left to one site, on all its streams together, of messages that are written down."""

    def __init__(self) -> None:
        self._recorded = Pace(RECORDED_BURST, RECORDED_EACH_SECOND)
        self._upkeep = Pace(UPKEEP_BURST, UPKEEP_EACH_SECOND)

    def wait_seconds(self, message: SiteMessage | Upkeep, now_seconds: float) -> float:
        """How long to wait before a message takes effect; it is counted. The clock never jumps."""
        if isinstance(message, Upkeep):
            return self._upkeep.wait_seconds(now_seconds)
        return self._recorded.wait_seconds(now_seconds) if isinstance(message, Join | Refusal | Done) else 0.0
