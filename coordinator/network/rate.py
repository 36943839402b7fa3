"""How often a stranger may ask on the enrolment port, and a site open a stream; pure, its clock is handed in.

A token of 192 bits cannot be guessed at any rate; the limit keeps strangers from costing the coordinator its
time, and its log its size. Whoever is over it is told to come again later, which an honest site does by itself.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

_MOST_ADDRESSES: Final = 4096


@dataclass(frozen=True)
class Allowance:
    """So many requests at once, and so many more in each second."""

    burst: float
    each_second: float


# A site that waits for approval asks every two seconds.
FOR_ONE: Final = Allowance(burst=30.0, each_second=1.0)
FOR_ALL: Final = Allowance(burst=300.0, each_second=50.0)
# Streams that one site opens. Each stands in the audit log for ten years, with 400 bytes, so that a site which opened
# them as fast as it can would fill a disk: it has 40 MB, and as much again in each day.
STREAMS_OF_A_SITE: Final = Allowance(burst=100_000.0, each_second=1.0)
WITHOUT_LIMIT: Final = Allowance(burst=math.inf, each_second=0.0)


class RateLimit:
    """What is left to each address, and to all together."""

    def __init__(self, for_one: Allowance = FOR_ONE, for_all: Allowance = FOR_ALL) -> None:
        self._for_one, self._for_all = for_one, for_all
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._left_for_all = (for_all.burst, 0.0)

    def allows(self, address: str, now_seconds: float) -> bool:
        """Whether an address may ask once more at this moment of a clock that never jumps."""
        own = _filled(self._left.pop(address, (self._for_one.burst, now_seconds)), self._for_one, now_seconds)
        every = _filled(self._left_for_all, self._for_all, now_seconds)
        is_allowed = own >= 1.0 and every >= 1.0
        spent = 1.0 if is_allowed else 0.0
        self._left[address] = (own - spent, now_seconds)
        self._left_for_all = (every - spent, now_seconds)
        while len(self._left) > _MOST_ADDRESSES:
            self._left.popitem(last=False)  # whoever has not asked for longest; it is full again at best
        return is_allowed


def _filled(left: tuple[float, float], allowance: Allowance, now_seconds: float) -> float:
    amount, since = left
    return min(allowance.burst, amount + allowance.each_second * max(0.0, now_seconds - since))
