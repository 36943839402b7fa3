"""Emulates the line of one site: a TCP relay on loopback with a rate and a delay in each direction, and with cuts.

Each direction is a token bucket behind which bytes wait for the delay. A direction accepts no more bytes than its line
carries within the delay, besides a queue of some milliseconds as in a router. So a program meets back pressure as on a
real line. TCP's own slow start and losses are not emulated.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

QUEUE_SECONDS = 0.02
_PIECE_BYTES = 1 << 16


@dataclass
class Line:
    """One site's line, which may be changed while it is used.

    Attributes:
        target: the coordinator's port on loopback.
        megabits: the rate of each direction in Mbit/s; 0 for no limit.
        round_trip_seconds: the delay of both directions together.
        cut_seconds: a connection is cut after this time; 0 for never.
        cut_bytes: a connection is cut after so many bytes in both directions together; 0 for never.
        port: where the relay listens.
        passed: bytes that passed up and down, one pair for each connection.
    """

    target: int
    megabits: float = 0.0
    round_trip_seconds: float = 0.0
    cut_seconds: float = 0.0
    cut_bytes: int = 0
    port: int = 0
    passed: list[list[int]] = field(default_factory=list)
    _free_at: list[float] = field(default_factory=lambda: [0.0, 0.0])

    async def accept(self, site: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """Join one connection to the coordinator until one of the two ends it, or the line is cut."""
        passed = [0, 0]
        self.passed.append(passed)
        with _small_buffer() as outwards:
            try:
                await asyncio.get_running_loop().sock_connect(outwards, ("127.0.0.1", self.target))
            except ConnectionError:
                back.transport.abort()
                return
            coordinator, onwards = await asyncio.open_connection(sock=outwards.dup())
        ways = [
            asyncio.create_task(self._pass_on(way, reader, writer, passed))
            for way, reader, writer in ((0, site, onwards), (1, coordinator, back))
        ]
        try:
            await asyncio.wait(ways, timeout=self.cut_seconds or None, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in ways:
                task.cancel()
            for writer in (back, onwards):
                writer.transport.abort()

    async def _pass_on(
        self, way: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passed: list[int]
    ) -> None:
        flying, landed, took_off = deque[tuple[float, bytes]](), asyncio.Event(), asyncio.Event()
        landing = asyncio.create_task(self._land(flying, took_off, landed, writer))
        clock = asyncio.get_running_loop().time
        try:
            while (data := await reader.read(_PIECE_BYTES)) and not landing.done():
                passed[way] += len(data)
                if self.cut_bytes and sum(passed) > self.cut_bytes:
                    return
                rate = self.megabits * 1e6 / 8
                begins = max(clock(), self._free_at[way])
                self._free_at[way] = begins + (len(data) / rate if rate else 0.0)
                flying.append((self._free_at[way] + self.round_trip_seconds / 2, data))
                took_off.set()
                if (wait := self._free_at[way] - clock() - QUEUE_SECONDS) > 0:
                    await asyncio.sleep(wait)
                while len(flying) * _PIECE_BYTES > (1 << 20) + rate * (self.round_trip_seconds + 2 * QUEUE_SECONDS):
                    landed.clear()
                    await landed.wait()  # the receiver does not read
            while flying and not landing.done():
                landed.clear()
                await landed.wait()
        finally:
            landing.cancel()

    @staticmethod
    async def _land(
        flying: deque[tuple[float, bytes]], took_off: asyncio.Event, landed: asyncio.Event, writer: asyncio.StreamWriter
    ) -> None:
        clock = asyncio.get_running_loop().time
        with suppress(ConnectionError):
            while True:
                while not flying:
                    took_off.clear()
                    await took_off.wait()
                if (wait := flying[0][0] - clock()) > 0:
                    await asyncio.sleep(wait)
                writer.write(flying[0][1])
                await writer.drain()
                flying.popleft()
                landed.set()


def _small_buffer() -> socket.socket:
    """Return a socket that takes in little in advance, because what waits is the sender's and not the line's."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _PIECE_BYTES)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.setblocking(False)
    return made


@contextmanager
def relaying(lines: Sequence[Line]) -> Iterator[None]:
    """Let every line listen on a port of its own, in one thread, until the block ends."""
    loop, ending, is_up = asyncio.new_event_loop(), asyncio.Event(), threading.Event()

    async def serve() -> None:
        with ExitStack() as stack:
            servers = []
            for line in lines:
                listener = stack.enter_context(_small_buffer())
                listener.bind(("127.0.0.1", 0))
                line.port = listener.getsockname()[1]
                servers.append(await asyncio.start_server(line.accept, sock=listener))
            is_up.set()
            await ending.wait()
            for server in servers:
                server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    is_up.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(10)
        loop.close()
