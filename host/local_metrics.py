"""Serves a program's metrics to monitoring software on the same computer, on loopback or a Unix socket.

The rules:

* metrics are collected on the program's event loop, so no figure changes while it is read;
* a request that names another computer as its host is refused, because any web page can make its name point here;
* one request is answered at a time, for at most a few seconds.
"""

from __future__ import annotations

import asyncio
import socket
import socketserver
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Metric, make_wsgi_app
from prometheus_client.registry import Collector

from protos.errors import ConfigurationError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_PATIENCE_SECONDS: Final = 5.0


class _OnLoop(Collector):
    """Collects metrics on the program's event loop, for the thread that answers."""

    def __init__(self, collector: Collector) -> None:
        self._collector, self._loop = collector, asyncio.get_running_loop()

    def collect(self) -> Iterator[Metric]:
        async def collected() -> list[Metric]:
            return list(self._collector.collect())

        yield from asyncio.run_coroutine_threadsafe(collected(), self._loop).result(_PATIENCE_SECONDS)


class _Handler(WSGIRequestHandler):
    timeout = _PATIENCE_SECONDS

    def log_message(self, *_: object) -> None:
        """Write nothing: who reads metrics is no event."""


class _Server(WSGIServer):
    """An HTTP server on HOST:PORT of loopback or unix:/path. It replaces a socket of an earlier process."""

    def __init__(self, listen: str) -> None:
        host, _, port = listen.rpartition(":")
        address: Any = (host.strip("[]"), int(port)) if host != "unix" else port
        if host == "unix":
            self.address_family = socket.AF_UNIX
            if Path(address).is_socket():
                Path(address).unlink()
        elif host.startswith("["):
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """Bind without a search for this computer's name, which may ask another computer."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "localhost", 0
        self.setup_environ()

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        """Return the next connection. A Unix socket has no address of its other end."""
        return super().get_request()[0], ("", 0)


@asynccontextmanager
async def serving_metrics(
    listen: str | None, collector: Collector, *, consequence: str, file: str
) -> AsyncIterator[None]:
    """Serve metrics until the block ends, if an address is configured.

    Args:
        listen: HOST:PORT of loopback or unix:/path, as `metrics_listen` names it; None for none.
        consequence: the second sentence of the error.
        file: where the address is written.

    Raises:
        ConfigurationError: the program cannot listen on the address.
    """
    if listen is None:
        yield
        return
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_OnLoop(collector))
    metrics = make_wsgi_app(registry)

    def application(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if is_local_host(environ.get("HTTP_HOST")):
            answer: Iterable[bytes] = metrics(environ, start)
            return answer
        start("421 Misdirected Request", [("Content-Length", "0")])
        return []

    try:
        server = _Server(listen)
    except OSError as cause:
        raise ConfigurationError(
            what=f"The program cannot listen on {listen}, the address in metrics_listen: {cause.strerror}.",
            consequence=consequence,
            remedy=f"Choose another address in {file}, or stop the program that already uses this address.",
            code="E028",
        ) from cause
    server.set_app(application)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()


def is_local_host(host: str | None) -> bool:
    """Return whether a Host header names this computer. Monitoring software may omit it, a browser does not."""
    name = (host or "localhost").lower()
    return (name if name.endswith("]") else name.rpartition(":")[0] or name) in ("localhost", "127.0.0.1", "[::1]")
