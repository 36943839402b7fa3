"""A federation in one process: a real authority, real certificates, real TLS on loopback."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # refused handshakes are what is tested here

import grpc
import grpc.aio

from coordinator.network.coordinator_upkeep import SiteUpkeep
from coordinator.network.enrolment_calls import Membership
from coordinator.network.service import FederationService, federation_server
from coordinator.rounds.engine import Engine
from coordinator.storage.history import store_path
from deploy.quickstart.ports import free_port
from host.audit_log import AuditLog
from pki.authority import Authority, FederationRecord
from pki.enrolment_decisions import Issued, enrolment_request, handle_request, invite_site
from pki.names import Address, FederationName, SiteName
from pki.register import Register
from protos.plan.plan import Plan
from protos.wire.codec import decode_coordinator_message, encode_site_message
from protos.wire.messages import PARTICIPATE, PROTOCOL_VERSION, CoordinatorMessage, Hello, SiteMessage
from site_agent.agent.connection import Credentials
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.relayed_stream import Connection
from tests.rehearsal.study import SITES, BehavingSite

ENOUGH_SECONDS = 60.0  # more than a busy machine needs; only a failure waits so long


def utc_now() -> datetime:
    """The time, aware."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Office:
    """A federation office: its authority, its register, and the keys of the sites it has enrolled."""

    folder: Path
    authority: Authority

    @classmethod
    def found(cls, folder: Path, federation: str = "heart", *, now: datetime | None = None) -> Office:
        """Make an authority for a coordinator on localhost."""
        address = Address("localhost", 8443)
        record = FederationRecord(federation=FederationName(federation), coordinator=address, enrolment=address)
        authority = Authority.create(
            folder / "authority", record, passphrase="correct horse battery", now=now or utc_now()
        )
        return cls(folder, authority)

    @cached_property
    def identities(self) -> dict[str, str]:
        """Enrol the three sites; the fingerprints of their identity keys."""
        return {site: self.enrol(site).identity_fingerprint() for site in SITES}

    def keys(self, site: str) -> SiteKeys:
        """The keys of an enrolled site."""
        return SiteKeys.load(self.folder / site)

    def enrol(self, site: str, *, now: datetime | None = None) -> SiteKeys:
        """Invite a site, approve it at once, and let it fetch its certificate."""
        at = now or utc_now()
        with Register(self.authority.register_path) as register:
            invitation = invite_site(
                self.authority, register, SiteName(site), valid_for=timedelta(hours=1), is_pre_approved=True, now=at
            )
            keys = SiteKeys.create(self.folder / site)
            request = enrolment_request(invitation, keys.signing_request(), keys.identity_key())
            answer = handle_request(self.authority, register, request, at)
        assert isinstance(answer, Issued)
        keys.install(
            answer.chain_pem, self.authority.root_pem(), site=SiteName(site), federation=invitation.federation, now=at
        )
        return keys

    def revoke(self, site: str) -> None:
        """Take a site out, as `pki revoke` does."""
        with Register(self.authority.register_path) as register:
            register.revoke(SiteName(site), utc_now())

    def credentials(self, site: str) -> Credentials:
        """The credentials that an enrolled site shows, and those that it trusts."""
        keys = self.keys(site)
        return Credentials(
            key=keys.tls_key_path.read_bytes(),
            chain=keys.certificate_path.read_bytes(),
            root=keys.root_certificate_path.read_bytes(),
        )


@dataclass(frozen=True)
class Running:
    """A coordinator that serves on loopback."""

    address: str
    engine: Engine
    service: FederationService
    log: AuditLog
    upkeep: SiteUpkeep


@asynccontextmanager
async def serving(office: Office, plan: Plan, state: Path) -> AsyncIterator[Running]:
    """A coordinator's engine and service, as `coordinator start` puts them together."""
    with Register(office.authority.register_path) as register:
        log = AuditLog(store_path(state), site=None, now=utc_now)
        membership = Membership(office.authority, register, utc_now, log.write)
        engine = Engine(
            plans=[plan], log=log, identity_of=membership.identity_of, clock=time.monotonic, revoked=membership.revoked
        )
        upkeep = SiteUpkeep(log, renew=membership.renew, confirm=membership.confirm)
        service = FederationService(
            engine, identify=membership.identify, is_accepted=membership.is_accepted, upkeep=upkeep
        )
        address = f"localhost:{free_port()}"
        server = federation_server(service, membership.credentials, address)
        await server.start()
        engine.start()
        try:
            yield Running(address, engine, service, log, upkeep)
        finally:
            engine.stop()
            await server.stop(0.2)
            log.close()


async def take_part(address: str, credentials: Credentials, site: BehavingSite) -> None:
    """Act honestly over the real connection until the coordinator closes the stream; a broken stream is an error."""
    async with Connection(address, credentials) as connection:
        await connection.send(Hello(PROTOCOL_VERSION, "test"))
        while site.farewell is None:
            for answer in site.answer(await connection.receive()):
                await connection.send(answer)


class Caller:
    """Whoever calls the coordinator's port: sends any bytes, and reads until the stream ends."""

    def __init__(self, stream: grpc.aio.StreamStreamCall[bytes, bytes]) -> None:
        self._stream = stream

    async def send(self, message: SiteMessage | bytes) -> None:
        """Send a message or raw bytes; a stream that has ended swallows them."""
        raw = message if isinstance(message, bytes) else encode_site_message(message)
        try:
            await self._stream.write(raw)
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            return

    async def receive(self) -> CoordinatorMessage | None:
        """The next message, or None when the stream has ended."""
        try:
            raw = await asyncio.wait_for(self._stream.read(), ENOUGH_SECONDS)
        except grpc.RpcError:
            return None
        return decode_coordinator_message(raw) if isinstance(raw, bytes) else None

    async def rest(self) -> list[CoordinatorMessage]:
        """Everything until the stream ends."""
        messages = []
        while (message := await self.receive()) is not None:
            messages.append(message)
        return messages

    async def status(self) -> grpc.StatusCode:
        """Return how the stream ended."""
        return await asyncio.wait_for(self._stream.code(), ENOUGH_SECONDS)


@asynccontextmanager
async def calling(address: str, credentials: grpc.ChannelCredentials) -> AsyncIterator[Caller]:
    """A stream to the coordinator, opened with these credentials and without any limit of its own."""
    options = [("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0)]
    async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
        yield Caller(channel.stream_stream(PARTICIPATE)())


def as_channel(credentials: Credentials) -> grpc.ChannelCredentials:
    """Credentials as gRPC wants them."""
    return grpc.ssl_channel_credentials(credentials.root, credentials.key, credentials.chain)


async def eventually(is_so: Callable[[], bool]) -> None:
    """Let the other side run until a condition is true.

    Raises:
        TimeoutError: it never became so.
    """
    async with asyncio.timeout(ENOUGH_SECONDS):
        while not is_so():
            await asyncio.sleep(0.005)
