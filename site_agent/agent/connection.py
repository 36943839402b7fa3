"""Opens the network connections to the coordinator (gRPC, TLS). No other file of a site opens a network connection.

A site opens one stream outwards and listens on no port. The coordinator must present a certificate of this federation's
authority in the coordinator's name. The site presents its own certificate. This file handles messages as bytes. The
gate encodes and decodes them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

# As at the coordinator. With ECDSA certificates a TLS 1.2 peer finds no common cipher.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
# This program logs a refused handshake itself. gRPC would write plain text between the JSON lines of the log.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# gRPC would send connections past the proxy of hospital.yaml if no_proxy exempts the coordinator. This variable comes
# before no_proxy, and empty it exempts nothing.
os.environ["no_grpc_proxy"] = ""  # noqa: SIM112  # as gRPC spells it

import grpc
import grpc.aio

from pki.names import Address
from protos.wire.messages import ACCEPTED, LARGEST_MESSAGE_BYTES, PARTICIPATE
from site_agent.gate_socket import LOGIN_REFUSED

CONNECT_SECONDS: Final = 20.0
PARTING_SECONDS: Final = 3.0
_OF_TEXTS: Final = {
    "certificate has expired": "certificate_expired",
    "certificate is not yet valid": "certificate_not_yet_valid",
    "CERTIFICATE_VERIFY_FAILED": "certificate_unproven",
    "HTTP proxy returned response code 407": LOGIN_REFUSED,
    "HTTP proxy returned response code 403": "proxy_403",
    "HTTP proxy returned response code": "proxy_fails",
    "Connection refused": "connection_refused",
    "errors resolving": "name_unknown",
    "Hostname Verification Check failed": "name_differs",
}
_OPTIONS: Final = [
    ("grpc.max_receive_message_length", LARGEST_MESSAGE_BYTES),
    ("grpc.max_send_message_length", LARGEST_MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", 1 << 20),  # a chunk needs few frames instead of 33 or 65
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 300_000),  # a reply waits behind the parameters, on a slow line for minutes
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.enable_retries", 0),
]


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy that receives a CONNECT request, and its login USER:PASSWORD (Basic) if it has one."""

    address: Address
    login: str = field(default="", repr=False)


def _options(proxy: Proxy | None) -> list[tuple[str, int | str]]:
    """Return gRPC's options. Its own search for a proxy in environment variables is off."""
    if proxy is None:
        return [*_OPTIONS, ("grpc.enable_http_proxy", 0)]
    login = f"{quote(proxy.login, safe=':')}@" if proxy.login else ""
    return [*_OPTIONS, ("grpc.http_proxy", f"http://{login}{proxy.address}")]


@dataclass(frozen=True)
class Credentials:
    """The certificate that this site presents and the roots that it trusts, as PEM."""

    key: bytes = field(repr=False)
    chain: bytes
    root: bytes


class CallEnded(Exception):  # a stream can end without an error of this program; the caller explains the end
    """Raised when a stream or a call has ended. `status` is one of gate_socket.STATUSES."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class Connection:
    """One stream to the coordinator, as an asynchronous context manager."""

    def __init__(
        self,
        address: str,
        credentials: Credentials,
        accepted: Callable[[], None] = lambda: None,
        proxy: Proxy | None = None,
    ) -> None:
        """Prepare the stream. `accepted` is called once, after the coordinator has accepted the stream."""
        self._accepted = accepted
        self._greeting: asyncio.Task[None] | None = None
        secrets = grpc.ssl_channel_credentials(credentials.root, credentials.key, credentials.chain)
        self._channel = grpc.aio.secure_channel(address, secrets, options=_options(proxy))
        self._writing = asyncio.Lock()  # gRPC accepts one write at a time
        self._stream: grpc.aio.StreamStreamCall[bytes, bytes] | None = None

    async def __aenter__(self) -> Connection:
        self._stream = self._channel.stream_stream(PARTICIPATE)(wait_for_ready=False)
        self._greeting = asyncio.create_task(self._await_acceptance())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
        if self._stream is not None:
            self._stream.cancel()
        await self._channel.close()
        self._stream = None  # gRPC closes the connection when no variable refers to the stream

    async def send(self, raw: bytes) -> None:
        """Send the bytes of one message. Wait if the coordinator reads too slowly. Can raise CallEnded."""
        assert self._stream is not None
        try:
            async with self._writing:
                await self._stream.write(raw)
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as cause:
            raise _ended(cause) from cause

    async def receive(self) -> bytes:
        """Return the bytes of the coordinator's next message, unchanged. Raises CallEnded if the stream has ended."""
        assert self._stream is not None
        assert self._greeting is not None
        if not self._greeting.done():  # acceptance is reported before every message and every end
            await asyncio.wait({self._greeting})
        try:
            raw = await self._stream.read()
        except grpc.RpcError as cause:
            raise _ended(cause) from cause
        if not isinstance(raw, bytes):  # the stream has ended
            raise CallEnded("ended")
        return raw

    async def part(self) -> None:
        """Send no more messages, and wait a short time until the coordinator ends the stream.

        gRPC cancels a stream that is closed at once. It then drops data that the other side has not read, also the
        reason for leaving.
        """
        assert self._stream is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(PARTING_SECONDS):
                async with self._writing:
                    await self._stream.done_writing()
                await self._stream.code()

    async def _await_acceptance(self) -> None:
        assert self._stream is not None
        metadata = dict(await self._stream.initial_metadata() or ())
        # A stream that will be refused also has metadata for a moment before it ends, but never this word.
        if ACCEPTED in metadata and not self._stream.done():
            self._accepted()


async def call(name: str, address: str, root: bytes, request: bytes, proxy: Proxy | None = None) -> bytes:
    """Send a request to the enrolment port, where only the coordinator must show a certificate. Can raise CallEnded."""
    secrets = grpc.ssl_channel_credentials(root)
    async with grpc.aio.secure_channel(address, secrets, options=_options(proxy)) as channel:
        sent: Callable[..., grpc.aio.UnaryUnaryCall[bytes, bytes]] = channel.unary_unary(name)
        try:
            return await sent(request, timeout=CONNECT_SECONDS)
        except grpc.aio.AioRpcError as cause:
            raise _ended(cause) from cause


def _ended(cause: BaseException) -> CallEnded:
    if not isinstance(cause, grpc.aio.AioRpcError):
        return CallEnded("ended")
    # The texts of BoringSSL about the coordinator's certificate, and of gRPC about a proxy. gRPC has no code for them.
    told = cause.details() or ""
    found = [status for words, status in _OF_TEXTS.items() if words in told]
    return CallEnded(found[0] if found else cause.code().name.lower())
