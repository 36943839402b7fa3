"""The line in the middle: frames are passed on late, or lost, and counted. For kernels without `netem`.

One thread takes frames from both ends and sends each when its time has come. A seed and the order of the frames decide
which frames are lost.
"""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.chaos.network.namespaces import Line

_EVERY_PROTOCOL = 0x0003
_OUTGOING = 4
_ETHERNET = 14
_TCP = 6

Waiting = tuple[float, int, bytes, socket.socket]  # when it is due, its number, the frame, where to


@dataclass
class Wire:
    """The faults of a line, and the frames that it has carried from the site.

    Attributes:
        delay_seconds: one way.
        loss: the share of frames that are lost, in either direction.
        uploaded: bytes of TCP payload that came from the site away, repetitions included.
        frames: how many have passed, and `lost` how many have not.
    """

    delay_seconds: float = 0.0
    loss: float = 0.0
    uploaded: int = 0
    frames: int = 0
    lost: int = 0
    _luck: random.Random = field(default_factory=lambda: random.Random(0), repr=False)

    def run(self, hub: socket.socket, away: socket.socket, ending: threading.Event) -> None:
        """Pass frames on until told to end."""
        waiting: list[Waiting] = []
        with selectors.DefaultSelector() as selector:
            selector.register(hub, selectors.EVENT_READ, away)
            selector.register(away, selectors.EVENT_READ, hub)
            while not ending.is_set():
                pause = min(0.05, max(0.0, waiting[0][0] - time.monotonic())) if waiting else 0.05
                for key, _ in selector.select(pause):
                    assert isinstance(key.fileobj, socket.socket)
                    self._take(key.fileobj, key.data, waiting, is_upload=key.fileobj is away)
                while waiting and waiting[0][0] <= time.monotonic():
                    _, _, frame, onwards = heapq.heappop(waiting)
                    with suppress(OSError):  # the cable is pulled
                        onwards.send(frame)

    def _take(self, source: socket.socket, onwards: socket.socket, waiting: list[Waiting], *, is_upload: bool) -> None:
        for _ in range(64):
            try:
                frame, (_, _, kind, *_) = source.recvfrom(65_536, socket.MSG_DONTWAIT)
            except OSError:
                return
            if kind == _OUTGOING:  # what this thread has sent itself
                continue
            self.uploaded += _payload(frame) if is_upload else 0
            self.frames += 1
            if self._luck.random() < self.loss:
                self.lost += 1
                continue
            heapq.heappush(waiting, (time.monotonic() + self.delay_seconds, self.frames, frame, onwards))


def _payload(frame: bytes) -> int:
    """Bytes of TCP payload in an Ethernet frame, 0 where it holds none."""
    if len(frame) < _ETHERNET + 40 or frame[12:14] != b"\x08\x00" or frame[_ETHERNET + 9] != _TCP:
        return 0
    header = 4 * (frame[_ETHERNET] & 0x0F)
    (total,) = struct.unpack_from(">H", frame, _ETHERNET + 2)
    return int(total - header - 4 * (frame[_ETHERNET + header + 12] >> 4))


@contextmanager
def wired(line: Line, *, delay_seconds: float = 0.0, loss: float = 0.0) -> Iterator[Wire]:
    """Join the two cables of a line."""
    wire, ending = Wire(delay_seconds, loss), threading.Event()
    with _end(line.hub_end) as hub, _end(line.away_end) as away:
        thread = threading.Thread(target=wire.run, args=(hub, away, ending), daemon=True)
        thread.start()
        try:
            yield wire
        finally:
            ending.set()
            thread.join(10)


def _end(device: str) -> socket.socket:
    end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_EVERY_PROTOCOL))
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    end.bind((device, 0))
    return end
