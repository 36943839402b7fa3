"""A relay between a site and its coordinator that breaks the connection in the middle of an upload."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class Relay:
    """What passed. The line is cut each time so many more bytes have gone upwards, `cuts` times."""

    target: int
    cut_after: int
    cuts: int
    port: int = 0
    made: int = 0
    upwards: int = 0
    connections: int = 0
    _since: int = field(default=0, repr=False)

    async def accept(self, site: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """Join one connection to the coordinator until either side, or the relay, ends it."""
        self.connections += 1
        coordinator, onwards = await asyncio.open_connection("127.0.0.1", self.target)
        ways = [
            asyncio.create_task(self._pass_on(site, onwards, is_upwards=True)),
            asyncio.create_task(self._pass_on(coordinator, back, is_upwards=False)),
        ]
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for writer in (back, onwards):
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_upwards: bool) -> None:
        while data := await reader.read(1 << 16):
            if is_upwards:
                self.upwards += len(data)
                self._since += len(data)
                if self.made < self.cuts and self._since >= self.cut_after:
                    self.made, self._since = self.made + 1, 0
                    return
            writer.write(data)
            await writer.drain()


@contextmanager
def relayed(target: int, *, cut_after: int, cuts: int) -> Iterator[Relay]:
    """A relay on loopback, in a thread of its own, to a port on loopback."""
    relay, loop, is_up, ending = (
        Relay(target, cut_after, cuts),
        asyncio.new_event_loop(),
        threading.Event(),
        asyncio.Event(),
    )

    async def serve() -> None:
        server = await asyncio.start_server(relay.accept, "127.0.0.1", 0)
        relay.port = server.sockets[0].getsockname()[1]
        is_up.set()
        async with server:
            await ending.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    is_up.wait(10)
    try:
        yield relay
    finally:
        loop.call_soon_threadsafe(ending.set)
        thread.join(10)
