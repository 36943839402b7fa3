"""Answering this computer's own people over HTTP: on loopback or a Unix socket, one short request at a time.

It stands on the lowest floor that both programs share and that may listen; what is asked and answered is theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

from protos.monitoring import LONGEST_REQUEST_BYTES, PATIENCE_SECONDS


async def serve_locally(address: str, respond: Callable[[bytes], Awaitable[bytes]]) -> asyncio.Server:
    """Listen on an address of this computer: HOST:PORT of loopback, or unix:/path.

    Args:
        address: checked before. A socket that an earlier process left is replaced; any other file stays.
        respond: from a request's head to the whole response. A connection is closed whatever it raises.

    Raises:
        OSError: the address cannot be listened on.
    """

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.LimitOverrunError, asyncio.IncompleteReadError, TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await respond(request))
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await writer.drain()
        finally:
            writer.close()

    if address.startswith("unix:"):
        place = Path(address.removeprefix("unix:"))
        if place.is_socket():
            place.unlink()
        return await asyncio.start_unix_server(answered, place, limit=LONGEST_REQUEST_BYTES)
    host, _, port = address.rpartition(":")
    return await asyncio.start_server(answered, host.strip("[]"), int(port), limit=LONGEST_REQUEST_BYTES)
