"""Limits how many messages, requests of unknown programs and new connections the coordinator accepts per second.

A stream that sends more than its limit is read more slowly. Its messages wait in the sender's own buffers, because gRPC
accepts no more from a stream than this program has requested. Nothing is dropped, and no site is disconnected for being
fast. A request above the limit of the enrolment port is refused, and an honest site repeats it. The limit protects the
coordinator's time and its log.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from protos.wire.messages import Done, Join, Refusal, SiteMessage
from protos.wire.upkeep_messages import Upkeep


@dataclass(frozen=True)
class Allowance:
    """A rate limit: a number of messages or requests at once, and a number of further ones in each second."""

    burst: float
    each_second: float

    def filled(self, left: float, since_seconds: float, now_seconds: float) -> float:
        """Return how many messages are allowed now, if `left` messages were allowed at `since_seconds`."""
        return min(self.burst, left + self.each_second * max(0.0, now_seconds - since_seconds))


# A round of one batch has a few messages, so a hundred such rounds in a second are far below this limit. Chunks at this
# rate are two gigabytes in a second.
MESSAGES: Final = Allowance(burst=4000.0, each_second=2000.0)
# A message that is recorded in an audit log is synced before the next message is read. An honest site
# joins once on a stream, and reports the head of its log once in a second. If a sync takes 5 ms, the syncs for one site
# take at most a third of the time.
RECORDED: Final = Allowance(burst=200.0, each_second=10.0)
UPKEEP: Final = Allowance(burst=500.0, each_second=50.0)
# If a stream ends while it waits, its message remains counted. This count can delay the next stream of the same site,
# which may be honest, by at most this time.
LONGEST_WAIT_SECONDS: Final = 5.0


class Pace:
    """Counts how many more messages one stream or one site may send without waiting."""

    def __init__(self, allowance: Allowance = MESSAGES) -> None:
        self._allowance, self._left, self._since = allowance, allowance.burst, 0.0

    def wait_seconds(self, now_seconds: float) -> float:
        """Count a message. Return how many seconds to wait before reading the next. `now_seconds` is monotonic."""
        burst, each_second = self._allowance.burst, self._allowance.each_second
        # As Allowance.filled, without the call: this runs for each message of a round.
        left = min(burst, self._left + each_second * max(0.0, now_seconds - self._since)) - 1.0
        self._left, self._since = max(-LONGEST_WAIT_SECONDS * each_second, left), now_seconds
        return max(0.0, -self._left / each_second)


class RecordedPace:
    """Limits the messages of one site that the coordinator must record, counted over all streams of the site."""

    def __init__(self) -> None:
        self._recorded, self._upkeep = Pace(RECORDED), Pace(UPKEEP)

    def wait_seconds(self, message: SiteMessage | Upkeep, now_seconds: float) -> float:
        """Count a message. Return how many seconds to wait before it takes effect. `now_seconds` is monotonic."""
        if isinstance(message, Upkeep):
            return self._upkeep.wait_seconds(now_seconds)
        return self._recorded.wait_seconds(now_seconds) if isinstance(message, Join | Refusal | Done) else 0.0


_MOST_ADDRESSES: Final = 4096
# A site that waits for approval sends a request after two seconds, then more seldom, at last every ten.
FOR_ONE: Final = Allowance(burst=30.0, each_second=1.0)
FOR_ALL: Final = Allowance(burst=300.0, each_second=50.0)
# Each stream that a site opens stays in the audit log for ten years, with 400 bytes. The limit is 40 MB at once and 40
# MB in each further day, so that a site cannot fill the disk.
STREAMS_OF_A_SITE: Final = Allowance(burst=100_000.0, each_second=1.0)
WITHOUT_LIMIT: Final = Allowance(burst=math.inf, each_second=0.0)


class RateLimit:
    """Limits the requests of each address, and of all addresses together."""

    def __init__(self, for_one: Allowance = FOR_ONE, for_all: Allowance = FOR_ALL) -> None:
        self._for_one, self._for_all = for_one, for_all
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._left_for_all = (for_all.burst, 0.0)

    def allows(self, address: str, now_seconds: float) -> bool:
        """Count a request. Return whether this address may make the request. `now_seconds` is a monotonic time."""
        own = self._for_one.filled(*self._left.pop(address, (self._for_one.burst, now_seconds)), now_seconds)
        every = self._for_all.filled(*self._left_for_all, now_seconds)
        is_allowed = own >= 1.0 and every >= 1.0
        spent = 1.0 if is_allowed else 0.0
        self._left[address] = (own - spent, now_seconds)
        self._left_for_all = (every - spent, now_seconds)
        while len(self._left) > _MOST_ADDRESSES:
            self._left.popitem(last=False)  # removes the address with the oldest request
        return is_allowed


MOST_REFUSALS: Final = 20  # recorded one by one in a minute
TICKS: Final = 120  # of half a second each


class Refusals:
    """Limits how many refusals are recorded in a minute, so that a peer cannot fill the log."""

    def __init__(self, record: Callable[..., None]) -> None:
        """Start with no refusals. `record` writes an event with its facts into the audit log."""
        self._record = record
        self._refusals = self._ticks = 0

    def note(self, event: str, **facts: object) -> bool:
        """Record a refused request; after MOST_REFUSALS in one minute only count it. Return if it was recorded."""
        self._refusals += 1
        if is_recorded := self._refusals <= MOST_REFUSALS:
            self._record(event, **facts)
        return is_recorded

    def tick(self) -> None:
        """At the end of each minute, record how many refused requests were only counted. Called twice a second."""
        self._ticks = (self._ticks + 1) % TICKS
        if self._ticks:
            return
        others, self._refusals = self._refusals - MOST_REFUSALS, 0
        if others > 0:
            self._record("refusals_counted", count=others)
