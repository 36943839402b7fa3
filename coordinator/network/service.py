"""Opens the coordinator's public network ports (gRPC over TLS). No other file of the coordinator opens these ports.

There is one stream per site, with TLS 1.3 and certificates on both sides. A peer's identity comes only from its
certificate. The register decides whether the certificate is accepted, at the start of a stream and after every change
of the register.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

# All certificates use ECDSA, so a TLS 1.2 peer cannot agree on this one suite. TLS 1.3 has suites of its own. gRPC has
# no other way to require TLS 1.3. It reads the variable when it is imported.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-RSA-AES256-GCM-SHA384"
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # keeps gRPC's plain lines about failed handshakes out of the JSON log

import grpc
import grpc.aio
import structlog

from coordinator.network.coordinator_upkeep import SiteUpkeep
from coordinator.network.outgoing import Caller, StreamPeer, Vectors
from coordinator.network.pace import STREAMS_OF_A_SITE, WITHOUT_LIMIT, Pace, RateLimit, RecordedPace
from coordinator.rounds.engine import Engine
from host.audit_log import HeadRefused
from protos.errors import ConfigurationError, OperatorError, RefusedError, explained
from protos.wire.codec import decode_site_message
from protos.wire.messages import (
    ACCEPTED,
    ENROL,
    LARGEST_MESSAGE_BYTES,
    PARTICIPATE,
    PROTOCOL_VERSION,
    RENEW,
    CoordinatorReason,
    Hello,
    MalformedMessage,
    SiteMessage,
)
from protos.wire.upkeep_messages import Upkeep

GREETING_SECONDS: Final = 10.0
FAREWELL_SECONDS: Final = 5.0
_TLS_VERSION: Final = b"TLSv1.3"
# An honest site has one stream, and for a moment a second one when it reconnects.
_MOST_STREAMS_OF_A_SITE: Final = 4
# All connections, also of peers that have not yet proved an identity. A hundred sites need only a few more than a
# hundred connections. Together with this program's own files and sockets, they need fewer than the usual 1,024 file
# descriptors of a process.
_MOST_CONNECTIONS: Final = 768
# For the TLS handshake; a peer that opens a connection and sends nothing is then disconnected.
_HANDSHAKE_SECONDS: Final = 10
_IDLE_SECONDS: Final = 5  # for a connection without calls; otherwise gRPC keeps a connection whose last write failed
# The largest numbers of bytes that may be unread: from all sites together, and from one site. Without these limits
# gRPC's memory grew by half a model when three sites sent at once.
_MOST_UNREAD_BYTES: Final = 8 << 20
_UNREAD_BYTES: Final = 1 << 20
_OPTIONS: Final = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.max_frame_size", 1 << 20),  # a chunk needs few frames instead of 33 or 65
    ("grpc.max_receive_message_length", LARGEST_MESSAGE_BYTES),
    ("grpc.max_send_message_length", LARGEST_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 4),
    ("grpc.max_allowed_incoming_connections", _MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", 1000 * _HANDSHAKE_SECONDS),
    ("grpc.max_connection_idle_ms", 1000 * _IDLE_SECONDS),
    ("grpc.max_metadata_size", 8192),
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 300_000),  # a reply waits behind the parameters, on a slow line for minutes
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]


@dataclass(frozen=True)
class Credentials:
    """The certificate that the coordinator presents and the root that it trusts, as PEM."""

    key: bytes = field(repr=False)
    chain: bytes
    root: bytes


class FederationService:
    """Handles the streams of all sites."""

    def __init__(
        self,
        engine: Engine,
        *,
        identify: Callable[[bytes], Caller],
        is_accepted: Callable[[Caller], bool],
        upkeep: SiteUpkeep,
    ) -> None:
        """Store what the service needs.

        Args:
            identify: converts a peer's certificate (PEM) to a caller, or raises RefusedError.
            upkeep: handles messages outside the rounds.
        """
        self._engine, self._identify, self._is_accepted, self._upkeep = engine, identify, is_accepted, upkeep
        self._peers: set[StreamPeer] = set()
        self._vectors = Vectors()
        self._openings = RateLimit(STREAMS_OF_A_SITE, WITHOUT_LIMIT)
        self._recorded: defaultdict[str, RecordedPace] = defaultdict(RecordedPace)  # only for accepted sites
        self._log = structlog.get_logger()

    async def participate(self, _: Any, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """Exchange messages with one site, from the beginning of its stream to the end."""
        try:
            caller = await self._authenticate(context)
        except OperatorError as failure:
            await _unable(context, failure)
        moved = partial(self._engine.sent, caller.site)
        peer = StreamPeer(context, caller, self._vectors, moved)
        # Added before any `await`, because revocation and the limit of streams must include this peer.
        self._peers.add(peer)
        try:
            await context.send_initial_metadata(((ACCEPTED, "yes"),))  # the site learns this at once
        except BaseException:
            self._peers.discard(peer)
            raise
        writing = asyncio.create_task(peer.write())
        reading = asyncio.create_task(self._read(context, peer))
        ending = asyncio.create_task(self._end_in_time(peer))
        fault: OperatorError | None = None
        try:
            await asyncio.wait({writing, reading, ending}, return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and peer.ending.is_set():
                await asyncio.wait({writing, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = (writing, reading, ending)
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                # If a connection breaks during a write, gRPC raises InternalError. This is no defect of the program.
                if isinstance(result, Exception) and not isinstance(result, grpc.RpcError | grpc.aio.InternalError):
                    fault = explained(result)
            if peer.does_not_read:
                self._log.warning("site_does_not_read", site=caller.site)
            self._peers.discard(peer)
            self._upkeep.gone(peer)
            self._engine.disconnected(caller.site, peer)
        if fault is not None:
            await _unable(context, fault)

    def recheck(self) -> None:
        """End the connections of sites that the register of sites no longer accepts."""
        for peer in list(self._peers):
            if not self._is_accepted(peer.caller):
                # The site has renewed its certificate and is connected with the new certificate.
                if self._has_another(peer):
                    peer.end(CoordinatorReason.REPLACED, "this site's newer certificate has taken over")
                    continue
                self._log.warning("site_revoked", site=peer.caller.site)
                self._upkeep.revoked(peer.caller.site)
                peer.end(CoordinatorReason.NOT_ACCEPTED, "this site's certificate is not accepted any more")
                self._engine.removed(peer.caller.site)
                self._engine.disconnected(peer.caller.site, peer)
        self._engine.recheck()

    async def _authenticate(self, context: grpc.aio.ServicerContext[bytes, bytes]) -> Caller:
        facts = context.auth_context()
        certificates, versions = list(facts.get("x509_pem_cert", ())), list(facts.get("ssl_tls_version", ()))
        try:
            if len(certificates) != 1 or versions != [_TLS_VERSION]:
                raise RefusedError(
                    what="A program connected without TLS 1.3, without a certificate or with several certificates.",
                    consequence="The coordinator closed the connection of this program, and sent nothing to it.",
                    remedy="If the program belongs to a site, install the current version of the site agent there.",
                )
            caller = self._identify(certificates[0])
        except RefusedError as refusal:
            self._note_refusal("", refusal.what)
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the certificate was refused")
        if not self._is_accepted(caller):
            self._note_refusal(caller.site, "its certificate is not in the register")
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the certificate is not accepted")
        if sum(peer.caller.site == caller.site for peer in self._peers) >= _MOST_STREAMS_OF_A_SITE:
            self._note_refusal(caller.site, "it has too many streams already")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams of this site; come again later")
        if not self._openings.allows(caller.site, time.monotonic()):
            self._note_refusal(caller.site, "it has opened too many streams in this day")
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams of this site; come again later")
        self._upkeep.accepted(caller.site, caller.certificate_sha256)
        return caller

    def _has_another(self, peer: StreamPeer) -> bool:
        others = (other for other in self._peers if other is not peer and other.caller.site == peer.caller.site)
        return any(self._is_accepted(other.caller) for other in others)

    def _note_refusal(self, site: str, reason: str) -> None:
        self._log.warning("peer_refused", site=site, reason=reason)
        self._upkeep.refused(reason, site)

    async def _read(self, context: grpc.aio.ServicerContext[bytes, bytes], peer: StreamPeer) -> None:
        site, pace, clock = peer.caller.site, Pace(), asyncio.get_running_loop().time
        try:
            greeting = await asyncio.wait_for(self._next(context), GREETING_SECONDS)
            # The peer disconnected, as `site-agent doctor` does, or is refused.
            if greeting is None or peer.ending.is_set():
                return
            if not isinstance(greeting, Hello):
                raise MalformedMessage("no greeting")
            if (refusal := refuse_hello(greeting)) is not None:
                peer.end(CoordinatorReason.NOT_ACCEPTED, refusal)
                return
            peer.reads_together, peer.reads_sums = greeting.together, greeting.sums
            self._upkeep.greeted(peer, site)
            self._engine.saw(site)
            self._engine.connected(site, peer)
            goes_on = True
            while goes_on and not peer.ending.is_set():
                if wait := pace.wait_seconds(clock()):
                    await asyncio.sleep(wait)
                goes_on = await self._hear_one(context, peer)
        except TimeoutError:
            self._log.warning("greeting_missed", site=site, seconds=GREETING_SECONDS)
            peer.end(CoordinatorReason.REPLACED, "no first message arrived in time; connect again")
        except HeadRefused as refused:
            why = f"an audit log was cut, or an older state was copied back: {refused}"
            peer.end(CoordinatorReason.NOT_ACCEPTED, why)
            self._engine.disconnected(site, peer)
        except MalformedMessage as malformed:
            self._log.warning("message_refused", site=site, reason=str(malformed))
            peer.end(CoordinatorReason.PROTOCOL_VIOLATED, f"a message was refused: {malformed}")
            self._engine.disconnected(site, peer)

    async def _hear_one(self, context: grpc.aio.ServicerContext[bytes, bytes], peer: StreamPeer) -> bool:
        """Read and handle one message. Return whether there was one. It is freed here, before the next one is read."""
        message = await self._next(context)
        if message is None:
            return False
        self._engine.saw(peer.caller.site)
        if wait := self._recorded[peer.caller.site].wait_seconds(message, time.monotonic()):
            await asyncio.sleep(wait)
        if isinstance(message, Upkeep):
            self._upkeep.received(peer, peer.caller.site, message)
        elif not peer.ending.is_set():
            self._engine.received(peer.caller.site, message)
            if peer.has_waiting:
                await asyncio.sleep(0)  # the replies to all sites leave before the next message is requested
        return True

    @staticmethod
    async def _next(context: grpc.aio.ServicerContext[bytes, bytes]) -> SiteMessage | Upkeep | None:
        raw = await context.read()
        return decode_site_message(raw) if isinstance(raw, bytes) else None  # otherwise the stream has ended

    @staticmethod
    async def _end_in_time(peer: StreamPeer) -> None:
        await peer.ending.wait()
        await asyncio.sleep(FAREWELL_SECONDS)


async def _unable(context: grpc.aio.ServicerContext[bytes, bytes], failure: OperatorError) -> NoReturn:
    """Log what this program cannot do, usually because its disk is full. End the call in words without blame."""
    structlog.get_logger().error("call_failed", what=failure.what, remedy=failure.remedy)
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the coordinator cannot work; come again later")
    raise AssertionError


def refuse_hello(hello: Hello) -> str | None:
    """Return why the coordinator refuses a site's connection, or None if it accepts the connection."""
    if hello.protocol != PROTOCOL_VERSION:
        return (
            f"the coordinator uses version {PROTOCOL_VERSION} of the protocol, and the site uses version "
            f"{hello.protocol}. Install the same version of the program on both sides, or finish the run with the "
            f"earlier version on both sides"
        )
    return None


def federation_server(
    service: FederationService, fetch: Callable[[], Credentials], listen: str, *, sites: int = 1
) -> grpc.aio.Server:
    """Return a network server for sites that have a certificate. The calling function must start the server.

    `fetch` is called at every handshake, so a renewed certificate is presented at once. `sites` is the number of sites
    in the largest plan that is known so far.

    Raises:
        ConfigurationError: the coordinator cannot listen on the address.
    """
    handler: Any = grpc.stream_stream_rpc_method_handler(service.participate)
    secrets = _secrets(fetch, asks_for_certificate=True)
    unread = min(_UNREAD_BYTES, _MOST_UNREAD_BYTES // max(1, sites))
    server = grpc.aio.server(options=[*_OPTIONS, ("grpc.http2.lookahead_bytes", unread)])
    return _opened(server, {PARTICIPATE: handler}, listen, secrets)


Answer: TypeAlias = Callable[[bytes], bytes]


def enrolment_server(enrol: Answer, renew: Answer, fetch: Callable[[], Credentials], listen: str) -> grpc.aio.Server:
    """Return a network server for sites without a valid certificate. The server limits the number of requests."""
    limit = RateLimit()

    def limited(answered: Answer) -> Any:
        async def answer(raw: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            if not limit.allows(_address_of(context.peer()), time.monotonic()):
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many requests; come again later")
            try:
                return answered(raw)
            except OperatorError as failure:
                await _unable(context, failure)

        return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server(options=[*_OPTIONS, ("grpc.http2.lookahead_bytes", _UNREAD_BYTES)])
    handlers = {ENROL: limited(enrol), RENEW: limited(renew)}
    return _opened(server, handlers, listen, _secrets(fetch, asks_for_certificate=False))


def _secrets(fetch: Callable[[], Credentials], *, asks_for_certificate: bool) -> grpc.ServerCredentials:
    """Return the server's certificate and root certificates. Both are read again at every handshake.

    gRPC receives only changed certificates. Even an equal certificate makes gRPC free memory that simultaneous
    handshakes still use. In tests with a few thousand strangers this sometimes ended the process.
    """
    shown = fetch()

    def configured(credentials: Credentials) -> Any:
        roots = credentials.root if asks_for_certificate else None
        return grpc.ssl_server_certificate_configuration([(credentials.key, credentials.chain)], roots)

    def looked_up() -> Any:
        nonlocal shown
        try:
            found = fetch()
        except OperatorError as wrong:  # the file is being replaced, and the previous certificate is still valid
            structlog.get_logger().error("certificate_unreadable", what=wrong.what)
            return None
        if found == shown:
            return None
        shown = found
        return configured(found)

    return grpc.dynamic_ssl_server_credentials(configured(shown), looked_up, asks_for_certificate)


def _address_of(peer: str) -> str:
    """Return the host in gRPC's name of a peer, ipv4:192.0.2.7:50000. An IPv6 network counts as one host."""
    kind, _, rest = peer.partition(":")
    host = rest.rpartition(":")[0].strip("[]").replace("%5B", "").replace("%5D", "")
    if kind != "ipv6":
        return host
    try:
        return str(ipaddress.ip_network(f"{host}/64", strict=False))
    except ValueError:
        return host


def _opened(
    server: grpc.aio.Server, handlers: dict[str, Any], listen: str, secrets: grpc.ServerCredentials
) -> grpc.aio.Server:
    for call, handler in handlers.items():
        service, method = call.strip("/").split("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    try:
        server.add_secure_port(listen, secrets)
    except RuntimeError as cause:
        raise ConfigurationError(
            what=f"The coordinator cannot listen on the address {listen}.",
            consequence="The coordinator did not start. No site was contacted.",
            remedy="Choose another address in coordinator.yaml, or stop the program that already uses this address.",
            code="E028",
        ) from cause
    return server
