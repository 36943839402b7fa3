"""A proxy on loopback between one site and the coordinator, with the faults of real proxies. It passes bytes on in both
directions and counts those that go up, by connection. It can cut an idle connection, cut a connection after a number of
bytes, or become silent: then connections stay open on both sides and no byte passes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Proxy:
    """What passes, and what is done to it.

    Attributes:
        target: the coordinator's port on loopback.
        idle_seconds: a connection that carries nothing for so long is cut.
        cut_after: a connection is cut each time after this many bytes were uploaded in it, at most `cuts` times.
        silent_after: the connection that has sent this many bytes falls silent, once.
        uploaded: bytes that went up, one number for each connection.
    """

    target: int
    idle_seconds: float | None = None
    cut_after: int = 0
    cuts: int = 0
    silent_after: int | None = None
    port: int = 0
    uploaded: list[int] = field(default_factory=list)
    idle_cuts: int = 0
    has_fallen_silent: bool = False

    async def accept(self, site: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """Join one connection to the coordinator until somebody ends it."""
        connection = _Connection(len(self.uploaded))
        self.uploaded.append(0)
        coordinator, onwards = await asyncio.open_connection("127.0.0.1", self.target)
        ways = [
            asyncio.create_task(self._pass_on(connection, site, onwards, is_upload=True)),
            asyncio.create_task(self._pass_on(connection, coordinator, back, is_upload=False)),
            asyncio.create_task(self._watch(connection)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for writer in (back, onwards):
            writer.transport.abort()

    async def _pass_on(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_upload: bool
    ) -> None:
        while data := await reader.read(1 << 16):
            connection.moved.set()
            if is_upload:
                self.uploaded[connection.number] += len(data)
                if self.cuts and self.uploaded[connection.number] >= self.cut_after:
                    self.cuts -= 1
                    return
                if self.silent_after is not None and self.uploaded[connection.number] >= self.silent_after:
                    self.silent_after, self.has_fallen_silent = None, True
                    connection.is_silent = True
            if connection.is_silent:
                await asyncio.Event().wait()
            writer.write(data)
            await writer.drain()

    async def _watch(self, connection: _Connection) -> None:
        """Return when nothing has moved for too long."""
        while True:
            connection.moved.clear()
            try:
                await asyncio.wait_for(connection.moved.wait(), self.idle_seconds)
            except TimeoutError:
                self.idle_cuts += 1
                return


@dataclass
class _Connection:
    """One of them: which, whether anything has moved lately, whether it carries anything still."""

    number: int
    moved: asyncio.Event = field(default_factory=asyncio.Event)
    is_silent: bool = False


@contextmanager
def proxied(proxy: Proxy) -> Iterator[Proxy]:
    """The proxy at work, in a thread of its own."""
    loop, is_up, ending = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
        proxy.port = server.sockets[0].getsockname()[1]
        is_up.set()
        async with server:
            await ending.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    is_up.wait(10)
    try:
        yield proxy
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(10)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
