"""gRPC and TLS; the only file of the coordinator that knows a network exists.

One stream per site, TLS 1.3 with certificates on both sides. Who a peer is comes from its
certificate alone; whether it is still accepted is asked of the register when a stream begins and
again whenever the register changes.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

# Certificates here are ECDSA, so this one suite leaves a TLS 1.2 peer nothing to agree on, while
# TLS 1.3 has suites of its own. gRPC has no other way to demand 1.3, and reads it when imported.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"

import grpc
import grpc.aio
import numpy as np
import numpy.typing as npt
import structlog

from coordinator.admission import refuse_hello
from coordinator.engine import Engine
from protos.errors import ConfigurationError, RefusedError, explained
from protos.messages import (
    LARGEST_MESSAGE_BYTES,
    Chunk,
    CoordinatorMessage,
    CoordinatorReason,
    Farewell,
    Hello,
    MalformedMessage,
    SiteMessage,
)
from protos.parameters import down_chunks, down_slice
from protos.service import COORDINATOR_TIME, ENROL, PARTICIPATE
from protos.wire import decode_site_message, encode_coordinator_message

GREETING_SECONDS: Final = 10.0
FAREWELL_SECONDS: Final = 5.0
_TLS_VERSION: Final = b"TLSv1.3"
_LONGEST_QUEUE: Final = 1024
# What a site may send before this program has read it. gRPC would let it grow with the line's speed,
# and by half a model in all when three sites sent at once; a fixed one bounds memory for any number.
_UNREAD_BYTES: Final = 1 << 20
_OPTIONS: Final = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", _UNREAD_BYTES),
    ("grpc.http2.max_frame_size", _UNREAD_BYTES),
    ("grpc.max_receive_message_length", LARGEST_MESSAGE_BYTES),
    ("grpc.max_send_message_length", LARGEST_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.max_metadata_size", 8192),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who opened a stream, as the certificate proves it."""

    site: str
    certificate_sha256: str


@dataclass(frozen=True)
class Credentials:
    """What the coordinator shows and trusts, as PEM."""

    key: bytes = field(repr=False)
    chain: bytes
    root: bytes


class _Vector:
    """Parameters waiting to be sent; they are cut into chunks only as the peer takes them."""

    def __init__(self, parameters: npt.NDArray[np.float32], round_number: int, attempt: int) -> None:
        self._parameters, self._round, self._attempt = parameters, round_number, attempt

    def messages(self) -> Iterator[bytes]:
        for index in range(down_chunks(self._parameters.size)):
            body = self._parameters[down_slice(index)].view(np.uint8).data
            yield encode_coordinator_message(Chunk(self._round, self._attempt, index, body))


class StreamPeer:
    """One site's stream: what is queued here is written in order, as fast as the peer reads."""

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes], caller: Caller) -> None:
        self.caller = caller
        self._context = context
        self._queue: asyncio.Queue[bytes | _Vector | None] = asyncio.Queue(_LONGEST_QUEUE)
        self.ending = asyncio.Event()

    def send(self, message: CoordinatorMessage) -> None:
        """Queue a message."""
        self._put(encode_coordinator_message(message))

    def send_parameters(self, parameters: npt.NDArray[np.float32], round_number: int, attempt: int) -> None:
        """Queue a vector, float32 of shape (parameters,), as chunks; it is read when they are sent."""
        self._put(_Vector(parameters, round_number, attempt))

    def end(self, reason: CoordinatorReason, detail: str) -> None:
        """Say why and end the stream."""
        self._put(encode_coordinator_message(Farewell(reason, detail)))
        self._put(None)
        self.ending.set()

    def _put(self, item: bytes | _Vector | None) -> None:
        try:
            self._queue.put_nowait(item)
        except asyncio.QueueFull:  # a peer that has not read a thousand messages is gone
            self.ending.set()

    async def write(self) -> None:
        """Write what is queued until the stream ends."""
        while (item := await self._queue.get()) is not None:
            if isinstance(item, bytes):
                await self._context.write(item)
                continue
            for message in item.messages():
                await self._context.write(message)


class FederationService:
    """The streams of all sites."""

    def __init__(
        self,
        engine: Engine,
        *,
        identify: Callable[[bytes], Caller],
        is_accepted: Callable[[Caller], bool],
    ) -> None:
        """`identify` turns a PEM certificate into a caller or raises RefusedError."""
        self._engine, self._identify, self._is_accepted = engine, identify, is_accepted
        self._peers: set[StreamPeer] = set()
        self._log = structlog.get_logger()

    async def participate(self, _: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """One site's stream, from its greeting to its end."""
        caller = await self._authenticate(context)
        # Tells an accepted site at once that it is, and how far its clock differs.
        await context.send_initial_metadata(((COORDINATOR_TIME, f"{time.time():.3f}"),))
        peer = StreamPeer(context, caller)
        self._peers.add(peer)
        writing = asyncio.create_task(peer.write())
        reading = asyncio.create_task(self._read(context, peer))
        ending = asyncio.create_task(self._end_in_time(peer))
        try:
            await asyncio.wait({writing, reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and peer.ending.is_set():
                await asyncio.wait({writing, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = (writing, reading, ending)
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception) and not isinstance(result, grpc.RpcError):
                    self._log.error("stream_failed", site=caller.site, what=explained(result).what)
            self._peers.discard(peer)
            self._engine.disconnected(caller.site, peer)

    def recheck(self) -> None:
        """The register has changed: end the streams of those who are no longer accepted."""
        for peer in list(self._peers):
            if not self._is_accepted(peer.caller):
                self._log.warning("site_revoked", site=peer.caller.site)
                peer.end(CoordinatorReason.NOT_ACCEPTED, "this site's certificate is not accepted any more")
                self._engine.removed(peer.caller.site)
                self._engine.disconnected(peer.caller.site, peer)

    async def _authenticate(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> Caller:
        facts = context.auth_context()
        certificates, versions = list(facts.get("x509_pem_cert", ())), list(facts.get("ssl_tls_version", ()))
        try:
            if len(certificates) != 1 or versions != [_TLS_VERSION]:
                raise RefusedError(
                    what="A peer came without exactly one certificate, or without TLS 1.3.",
                    consequence="Its stream was ended and nothing was sent to it.",
                    remedy="If it is a site, let it connect with the site agent of this version.",
                )
            caller = self._identify(certificates[0])
        except RefusedError as refusal:
            self._log.warning("peer_refused", reason=refusal.what)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the certificate was refused")
        if not self._is_accepted(caller):
            self._log.warning("peer_refused", site=caller.site, reason="its certificate is not in the register")
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate is not accepted")
        return caller

    async def _read(self, context: grpc.aio.ServicerContext[bytes, bytes], peer: StreamPeer) -> None:
        site = peer.caller.site
        try:
            greeting = await asyncio.wait_for(self._next(context), GREETING_SECONDS)
            if not isinstance(greeting, Hello):
                raise MalformedMessage("no greeting")
            refusal = refuse_hello(greeting)
            if refusal is not None:
                peer.end(CoordinatorReason.NOT_ACCEPTED, refusal)
                return
            self._engine.connected(site, peer)
            while not peer.ending.is_set():
                message = await self._next(context)
                if message is None:
                    return
                if not peer.ending.is_set():
                    self._engine.received(site, message)
        except TimeoutError:
            self._log.warning("greeting_missed", site=site, seconds=GREETING_SECONDS)
            peer.end(CoordinatorReason.REPLACED, "no greeting came in time; connect again")
        except MalformedMessage as malformed:
            self._log.warning("message_refused", site=site, reason=str(malformed))
            peer.end(CoordinatorReason.PROTOCOL_VIOLATED, f"a message was refused: {malformed}")
            self._engine.disconnected(site, peer)

    @staticmethod
    async def _next(context: grpc.aio.ServicerContext[bytes, bytes]) -> SiteMessage | None:
        raw = await context.read()
        return decode_site_message(raw) if isinstance(raw, bytes) else None  # else the stream has ended

    @staticmethod
    async def _end_in_time(peer: StreamPeer) -> None:
        """A peer that does not read its farewell is cut off all the same."""
        await peer.ending.wait()
        await asyncio.sleep(FAREWELL_SECONDS)


def federation_server(service: FederationService, credentials: Credentials, listen: str) -> grpc.aio.Server:
    """A server for sites with certificates; not yet started.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """
    handler: Any = grpc.stream_stream_rpc_method_handler(service.participate)
    secrets = grpc.ssl_server_credentials(
        [(credentials.key, credentials.chain)], root_certificates=credentials.root, require_client_auth=True
    )
    return _server(PARTICIPATE, handler, secrets, listen)


def enrolment_server(enrol: Callable[[bytes], bytes], credentials: Credentials, listen: str) -> grpc.aio.Server:
    """A server for sites without certificates: one call, request and reply as bytes."""

    async def answer(raw: bytes, _: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return enrol(raw)

    handler: Any = grpc.unary_unary_rpc_method_handler(answer)
    secrets = grpc.ssl_server_credentials([(credentials.key, credentials.chain)])
    return _server(ENROL, handler, secrets, listen)


def _server(call: str, handler: Any, secrets: grpc.ServerCredentials, listen: str) -> grpc.aio.Server:
    service, method = call.strip("/").split("/")
    server = grpc.aio.server(options=_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    try:
        server.add_secure_port(listen, secrets)
    except RuntimeError as cause:
        raise ConfigurationError(
            what=f"The address {listen} cannot be listened on.",
            consequence="The coordinator did not start; no site was contacted.",
            remedy="Choose another address in coordinator.yaml, or end the program that uses this one.",
        ) from cause
    return server
