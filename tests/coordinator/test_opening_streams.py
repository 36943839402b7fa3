"""A stream that is just opening: what happens to the register meanwhile counts for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc

from coordinator.network.outgoing import Caller
from coordinator.network.service import FederationService
from coordinator.rounds.engine import Engine
from protos.wire.codec import decode_coordinator_message, encode_site_message
from protos.wire.messages import PROTOCOL_VERSION, CoordinatorReason, Farewell, Hello
from tests.coordinator.greetings import WITHOUT_UPKEEP
from tests.coordinator.in_memory import coordinator_log


class Opening:
    """A call whose first answer takes as long as the scene says, from a site that then says hello."""

    def __init__(self, meanwhile: Callable[[], Awaitable[None]]) -> None:
        self._meanwhile = meanwhile
        self.written: list[bytes] = []

    def auth_context(self) -> dict[str, list[bytes]]:
        """One certificate, over TLS 1.3."""
        return {"x509_pem_cert": [b"certificate"], "ssl_tls_version": [b"TLSv1.3"]}

    async def send_initial_metadata(self, _: object) -> None:
        """The first message to the site."""
        await self._meanwhile()

    async def read(self) -> bytes:
        """The greeting."""
        return encode_site_message(Hello(PROTOCOL_VERSION, "test"))

    async def write(self, message: bytes) -> None:
        """Take a message."""
        self.written.append(message)

    async def abort(self, code: grpc.StatusCode, _: str) -> None:
        """End the call, as gRPC does."""
        raise ConnectionAbortedError(code.name)


class Door:
    """The service with a register that the scene changes; everybody is site a."""

    def __init__(self, state: Path) -> None:
        self.is_accepted = True
        self.engine = Engine(plans=(), log=coordinator_log(state), identity_of=lambda _: None, clock=time.monotonic)
        self.service = FederationService(
            self.engine,
            identify=lambda *_: Caller("a", "0" * 64),
            is_accepted=lambda _: self.is_accepted,
            upkeep=WITHOUT_UPKEEP,
        )

    async def open(self, meanwhile: Callable[[], Awaitable[None]]) -> list[bytes]:
        """Open a stream; what was written on it."""
        call: Any = Opening(meanwhile)
        await self.service.participate(None, call)
        return call.written


def test_a_revocation_ends_a_stream_that_is_just_opening(tmp_path: Path) -> None:
    """Revoked between the check and the first answer, a site is sent away and never among those connected."""

    async def scene() -> None:
        door = Door(tmp_path)

        async def revoked() -> None:
            door.is_accepted = False
            door.service.recheck()

        async with asyncio.timeout(3):
            (farewell,) = map(decode_coordinator_message, await door.open(revoked))

        assert isinstance(farewell, Farewell)
        assert farewell.reason is CoordinatorReason.NOT_ACCEPTED

    asyncio.run(scene())


def test_streams_that_are_just_opening_count_towards_a_sites_limit(tmp_path: Path) -> None:
    """When many streams open at one moment, four are accepted, and those that fail free their place."""

    async def scene() -> list[str]:
        door, gate = Door(tmp_path), asyncio.Event()

        async def failing() -> None:
            await gate.wait()
            raise ConnectionResetError

        async def ended() -> str:
            try:
                await door.open(failing)
            except ConnectionError as cause:
                return type(cause).__name__
            return "open"

        async def round_of(number: int) -> list[str]:
            tasks = [asyncio.create_task(ended()) for _ in range(number)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            gate.set()
            return await asyncio.gather(*tasks)

        first = await round_of(6)
        return first + await round_of(1)

    ends = asyncio.run(scene())

    assert ends == ["ConnectionResetError"] * 4 + ["ConnectionAbortedError"] * 2 + ["ConnectionResetError"]
