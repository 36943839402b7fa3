"""Measures how long rounds take, and how fast the bytes of the current round move on each site's line.

What was queued on a stream arrives before everything that is queued later. So a site has all parameters that were
queued on its stream, until the stream breaks. Then the site reports which chunks it has.

A round's time is measured from the offer of the attempt that closes the round. A round that was disturbed is not
measured: a site disconnected, or the run returned to an earlier round. A restarted program measures again.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from protos.numbers.chunk_layout import CHUNK_PARAMETERS
from protos.wire.messages import Join

# The pace is estimated from this number of newest rounds.
NEWEST: Final = 20


class RoundTimes:
    """Measures the newest rounds of an active run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without a round. `clock` returns monotonic seconds."""
        self._clock, self._seconds = clock, deque[float](maxlen=NEWEST)
        self._attempt: tuple[int, int] | None = None
        self._began: float | None = None

    @property
    def newest(self) -> tuple[float, ...]:
        """Return how many seconds each of the newest rounds lasted, in the order of the rounds."""
        return tuple(self._seconds)

    @property
    def median(self) -> float | None:
        """Return the median duration of a round in seconds, or None before the first round."""
        return statistics.median(self._seconds) if self._seconds else None

    @property
    def under_way(self) -> float:
        """Return the seconds since the current attempt began; 0 after an interruption and between rounds."""
        return 0.0 if self._began is None else self._clock() - self._began

    def offered(self, number: int, attempt: int) -> None:
        """Start to measure the time of an attempt. A repeated offer of the same attempt does not restart this."""
        if self._attempt != (number, attempt):
            self._attempt, self._began = (number, attempt), self._clock()

    def disturbed(self) -> None:
        """Mark the current attempt at a round as interrupted, so that its time is not used."""
        self._began = None

    def closed(self) -> None:
        if self._began is not None:
            self._seconds.append(self.under_way)
        self._attempt = self._began = None


_SLOWEST_BYTES_PER_SECOND: Final = 16_000  # a line of 128 kbit/s is fast enough for every plan
_IN_FLIGHT_BYTES: Final = 4 << 20  # of parameters, in buffers of gRPC and of both kernels


def unseen_seconds(parameters: int) -> float:
    """Return the time that bytes move on the slowest line while the coordinator sees no progress.

    These are the parameters in buffers, which count as sent, and the first chunk of a contribution.
    """
    size = 4 * parameters
    return (min(size, _IN_FLIGHT_BYTES) + min(size, 4 * CHUNK_PARAMETERS)) / _SLOWEST_BYTES_PER_SECOND


@dataclass
class _Transfer:
    """Bytes that move on one line in one direction.

    Attributes:
        way: `down` for parameters, `up` for a contribution.
        before: the bytes that had arrived when the measurement began.
    """

    way: str
    began: float
    before: int
    arrived: int
    of: int


class Transfers:
    """Follows the lines of all sites during a run."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start without a site. `clock` returns monotonic seconds."""
        self._clock = clock
        self._received: dict[str, tuple[bytes, int]] = {}
        self._under_way: dict[str, _Transfer] = {}
        # By position the numbers of chunks: of the newest parameters and their sum, and of those before.
        self._newest, self._before = dict[bytes, int](), dict[bytes, int]()

    def joined(self, site: str, join: Join) -> None:
        """Record what a site has received on its earlier streams."""
        self._received[site] = join.received, join.received_chunks
        self._under_way.pop(site, None)

    def queue(self, site: str, position: bytes, chunks: int) -> int:
        """Return the first chunk of these parameters that a site lacks. All of them are queued on its stream now."""
        known, arrived = self._received.get(site, (b"", 0))
        self._received[site] = position, chunks
        return min(arrived, chunks) if known == position else 0

    def announce(self, chunks: dict[bytes, int]) -> None:
        """Record by position the numbers of chunks of new parameters, and of the sum that leads to them."""
        if self._newest.keys() != chunks.keys():
            self._newest, self._before = chunks, self._newest

    def has_base(self, site: str, of_sum: bytes) -> bool:
        """Return whether a site has all parameters before the newest ones, so that the sum suffices."""
        known, arrived = self._received.get(site, (b"", 0))
        return known == of_sum or self._before.get(known) == arrived

    def moved(self, site: str, way: str, arrived: int, of: int) -> None:
        """Record that so many bytes of a transfer have arrived, or were taken by the line."""
        known = self._under_way.get(site)
        if known is None or (known.way, known.of) != (way, of) or arrived < known.arrived:
            self._under_way[site] = _Transfer(way, self._clock(), arrived, arrived, of)
        else:
            known.arrived = arrived

    def facts(self, site: str) -> dict[str, Any] | None:
        """Return how far an unfinished transfer of a site is and how fast, as values for JSON. Return None if none."""
        known = self._under_way.get(site)
        if known is None or known.arrived >= known.of:
            return None
        seconds = self._clock() - known.began
        rate = (known.arrived - known.before) / seconds if seconds > 0 else 0.0
        left = round((known.of - known.arrived) / rate, 1) if rate else None
        return {
            "way": known.way,
            "bytes": known.arrived,
            "of_bytes": known.of,
            "kilobits_per_second": round(rate * 8 / 1000, 1),
            "seconds_left": left,
        }
