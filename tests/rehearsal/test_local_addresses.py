"""The Unix sockets on which both programs answer their own computer's monitoring."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from coordinator.monitoring import local_server
from protos.errors import ConfigurationError
from protos.monitoring import Page
from site_agent.boundary.monitoring import monitored

Server = Callable[[str | None, Mapping[str, Callable[[], Page]]], AbstractAsyncContextManager[None]]


@pytest.mark.parametrize("server", [local_server, monitored])
def test_a_file_that_is_no_socket_stays_where_metrics_listen_names_it(tmp_path: Path, server: Server) -> None:
    """A mistyped address that is a file refuses the start and leaves the file; a socket left behind is replaced."""
    log, left = tmp_path / "audit.log", tmp_path / "left.socket"
    log.write_bytes(b"what happened")
    with socket.socket(socket.AF_UNIX) as earlier:
        earlier.bind(str(left))

    async def scene() -> None:
        with pytest.raises(ConfigurationError, match="cannot be listened on"):
            async with server(f"unix:{log}", {}):
                pass
        async with server(f"unix:{left}", {}):
            _, writer = await asyncio.open_unix_connection(left)
            writer.close()

    asyncio.run(scene())

    assert log.read_bytes() == b"what happened"
