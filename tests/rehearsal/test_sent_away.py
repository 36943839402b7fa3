"""A site that is disconnected while it writes: gRPC's client notices late, and nothing of the stream remains."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from pathlib import Path

from protos.errors import UnavailableError
from protos.wire.messages import PROTOCOL_VERSION, Announcement, Chunk, CoordinatorMessage, Farewell, Hello
from protos.wire.upkeep_messages import LogHeads
from tests.rehearsal.federation import Office, eventually, serving
from tests.rehearsal.relayed_stream import Connection
from tests.rehearsal.study import plan_with

TIMES = 6  # more than the four streams that a connection may have


def sockets() -> int:
    """How many sockets this process has open."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that the list itself was read from
            found += str(entry.readlink()).startswith("socket:")
    return found


async def _sent_away(connection: Connection) -> list[CoordinatorMessage]:
    heard: list[CoordinatorMessage] = []

    async def hear() -> None:
        while True:
            message = await connection.receive()
            assert isinstance(message, LogHeads | Announcement | Farewell)
            heard.append(message)

    await connection.send(Hello(PROTOCOL_VERSION, "test"))
    hearing = asyncio.create_task(hear())
    with suppress(UnavailableError):
        while True:
            await connection.send(Chunk(0, 7, 0, b"body"))
    hearing.cancel()
    await asyncio.gather(hearing, return_exceptions=True)
    return heard


def test_a_site_that_is_sent_away_in_mid_write_is_served_again_at_once(tmp_path: Path) -> None:
    """However often a stream ends in mid-write, the next one is answered, and no connection is left behind."""
    office = Office.found(tmp_path / "office")
    plan = plan_with(office.identities)
    secrets = office.credentials("a")

    async def scene() -> None:
        async with serving(office, plan, tmp_path / "state") as running:
            before = sockets()
            farewells = 0
            for _ in range(TIMES):
                async with Connection(running.address, secrets) as connection:
                    farewells += any(isinstance(message, Farewell) for message in await _sent_away(connection))

            async with Connection(running.address, secrets) as connection, asyncio.timeout(10):
                await connection.send(Hello(PROTOCOL_VERSION, "test"))
                assert isinstance(await connection.receive(), LogHeads)
            assert farewells > 0
            gc.collect()  # gRPC hangs up once nothing refers to a stream, and an exception's frames may
            async with asyncio.timeout(10):  # gRPC may keep the two ends of the last one for a while
                await eventually(lambda: sockets() <= before + 2)

    asyncio.run(scene())
