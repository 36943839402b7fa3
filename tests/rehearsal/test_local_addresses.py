"""The Unix sockets on which both programs answer their own computer's monitoring."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from host.local_metrics import serving_metrics
from protos.errors import ConfigurationError


def serving(listen: str) -> AbstractAsyncContextManager[None]:
    """As either program does."""
    return serving_metrics(listen, CollectorRegistry(), consequence="Nothing was started.", file="hospital.yaml")


def test_a_file_that_is_no_socket_stays_where_metrics_listen_names_it(tmp_path: Path) -> None:
    """A mistyped address that is a file refuses the start and leaves the file; a socket left behind is replaced."""
    log, left = tmp_path / "audit.log", tmp_path / "left.socket"
    log.write_bytes(b"what happened")
    with socket.socket(socket.AF_UNIX) as earlier:
        earlier.bind(str(left))

    async def scene() -> None:
        with pytest.raises(ConfigurationError):
            async with serving(f"unix:{log}"):
                pass
        async with serving(f"unix:{left}"):
            _, writer = await asyncio.open_unix_connection(left)
            writer.close()

    asyncio.run(scene())

    assert log.read_bytes() == b"what happened"
