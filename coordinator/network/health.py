"""Serves gRPC's standard health check for local monitoring, on loopback or a Unix socket, without TLS.

The public port has no health check: a stranger learns nothing there, and an accepted site does not need it. The only
reply is that this program serves. The check uses HTTP/2 without TLS, which no browser supports, so no web page can
reach it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

# As in service.py: gRPC reads this variable when it is imported, and this module may be imported first.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"

import grpc
import grpc.aio

from protos.errors import ConfigurationError
from protos.wire.messages import HEALTH

_SERVING: Final = b"\x08\x01"  # grpc.health.v1.HealthCheckResponse with status SERVING
_LARGEST_REQUEST_BYTES: Final = 4096


@asynccontextmanager
async def health_server(listen: str | None) -> AsyncIterator[None]:
    """Serve health checks on a local address until the block ends. Without a configured address, serve nothing.

    Raises:
        ConfigurationError: the coordinator cannot listen on the address.
    """
    if listen is None:
        yield
        return

    async def check(_: bytes, __: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return _SERVING

    service, method = HEALTH.strip("/").split("/")
    handler: Any = grpc.unary_unary_rpc_method_handler(check)
    options = [("grpc.max_receive_message_length", _LARGEST_REQUEST_BYTES), ("grpc.so_reuseport", 0)]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    try:
        server.add_insecure_port(listen)
    except RuntimeError as cause:
        raise ConfigurationError(
            what=f"The coordinator cannot listen on {listen}, the address in health_listen.",
            consequence="The coordinator did not start. No site was contacted.",
            remedy="Choose another address in coordinator.yaml, or stop the program that already uses this address.",
            code="E028",
        ) from cause
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)
