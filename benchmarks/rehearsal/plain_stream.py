"""Opens the stream of a site with gRPC and the wire's codec, in the process of the site itself."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from protos.wire.codec import decode_coordinator_message, encode_site_message, taken_apart
from protos.wire.messages import CoordinatorMessage, SiteMessage
from protos.wire.upkeep_messages import Upkeep
from site_agent.agent.connection import CallEnded, Connection, Credentials
from site_agent.gate.mishaps import stream_ended


class PlainStream:
    """A site's stream to the coordinator, as an asynchronous context manager."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._address, self._connection = address, Connection(address, credentials)
        self._parts = deque[bytes | memoryview]()

    async def __aenter__(self) -> PlainStream:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.__aexit__()

    async def send(self, message: SiteMessage | Upkeep, check: Callable[[], None] | None = None) -> None:
        """Send one message, after this check."""
        if check is not None:
            check()
        try:
            # A stopped upload is cancelled, and gRPC treats a cancelled write as the end of the stream.
            await asyncio.shield(self._connection.send(encode_site_message(message)))
        except CallEnded as ended:
            raise stream_ended(self._address, ended.status) from ended

    def require(self) -> None:
        """Raise nothing: the next `receive` reports that the stream has ended."""

    async def receive(self) -> CoordinatorMessage:
        """Return the next message of the coordinator, without those about logs: a light site keeps no heads."""
        while True:
            try:
                while not self._parts:
                    self._parts.extend(taken_apart(await self._connection.receive()))
            except CallEnded as ended:
                raise stream_ended(self._address, ended.status) from ended
            message = decode_coordinator_message(self._parts.popleft())
            if not isinstance(message, Upkeep):
                return message

    async def part(self) -> None:
        """Stop sending, and wait briefly for the coordinator to end the stream."""
        await self._connection.part()
