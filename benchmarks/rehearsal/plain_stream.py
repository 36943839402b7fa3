"""A stream with many sites in one process: gRPC and the wire's codec, with no second process between them."""

from __future__ import annotations

from collections import deque

from protos.wire.codec import decode_coordinator_message, encode_site_message, taken_apart
from protos.wire.messages import CoordinatorMessage, SiteMessage
from protos.wire.upkeep_messages import Upkeep
from site_agent.agent.connection import CallEnded, Connection, Credentials
from site_agent.gate.agent_link import ending


class PlainStream:
    """A site's stream to the coordinator, to be used as an asynchronous context."""

    def __init__(self, address: str, credentials: Credentials) -> None:
        self._address, self._connection = address, Connection(address, credentials)
        self._parts = deque[bytes | memoryview]()

    async def __aenter__(self) -> PlainStream:
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.__aexit__()

    async def send(self, message: SiteMessage | Upkeep) -> None:
        """Send one message."""
        try:
            await self._connection.send(encode_site_message(message))
        except CallEnded as ended:
            raise ending(self._address, ended.status) from ended

    async def receive(self) -> CoordinatorMessage | Upkeep:
        """The next message."""
        try:
            while not self._parts:
                self._parts.extend(taken_apart(await self._connection.receive()))
            return decode_coordinator_message(self._parts.popleft())
        except CallEnded as ended:
            raise ending(self._address, ended.status) from ended

    async def part(self) -> None:
        """Send nothing more, and wait a moment for the coordinator."""
        await self._connection.part()
