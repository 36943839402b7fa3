"""Beside the rounds, over real TLS: heads of logs, and certificates that renew themselves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from coordinator.network.enrolment_calls import Membership
from coordinator.network.pace import RateLimit
from coordinator.network.service import enrolment_server
from coordinator.storage.history import store_path
from deploy.quickstart.ports import free_port
from host.audit_log import AuditLog
from pki.names import Address
from pki.register import Register
from protos.errors import RefusedError, UnavailableError
from protos.wire.codec import decode_enrolment, encode_enrolment
from protos.wire.messages import PROTOCOL_VERSION, CoordinatorMessage, Farewell, Hello, MalformedMessage
from protos.wire.upkeep_messages import LogHeads, RenewalAnswered, RenewalAsked, Upkeep
from site_agent.gate.site_certificates import SiteCertificates, install_renewed, renewal_of
from site_agent.gate.site_upkeep import SiteUpkeep
from site_agent.service.enrolling import POLL_SECONDS
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Office, as_channel, calling, serving, utc_now
from tests.rehearsal.gates import nothing
from tests.rehearsal.relayed_stream import Connection, certificates_in_process
from tests.rehearsal.study import plan_with

DER = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


@dataclass
class Site:
    """A site's agent without a trainer: its keys, its log, and its work outside the rounds."""

    keys: SiteKeys
    audit: AuditLog
    upkeep: SiteUpkeep

    @classmethod
    def of(cls, office: Office, name: str, folder: Path) -> Site:
        """The agent of an enrolled site."""
        keys = office.keys(name)
        audit = AuditLog(folder / "audit.log", site=name, now=utc_now)
        certificates = certificates_in_process(keys)
        upkeep = SiteUpkeep(
            site=name, identity_key=keys.identity_key(), certificates=certificates, audit=audit, now=utc_now
        )
        return cls(keys, audit, upkeep)

    async def talk(self, office: Office, address: str, name: str, until: int) -> list[CoordinatorMessage | Upkeep]:
        """Open a stream and answer until so many messages outside the rounds have come, or it ends."""
        heard: list[CoordinatorMessage | Upkeep] = []
        async with Connection(address, office.credentials(name)) as connection:
            await connection.send(Hello(PROTOCOL_VERSION, "test"))
            self.upkeep.begin()
            while sum(isinstance(message, Upkeep) for message in heard) < until:
                message = await connection.receive()
                heard.append(message)
                if isinstance(message, Farewell):
                    break
                if isinstance(message, Upkeep):
                    await self.upkeep.take(message, connection.send)
        return heard


def _long_founded(folder: Path) -> Office:
    office = Office.found(folder, now=utc_now() - timedelta(days=120))
    office.authority.renew_coordinator(utc_now())
    return office


@pytest.fixture
def office(tmp_path: Path) -> Office:
    """A federation with three enrolled sites."""
    office = Office.found(tmp_path / "office")
    assert office.identities
    return office


def test_both_sides_keep_the_head_of_the_others_log(tmp_path: Path, office: Office) -> None:
    """After one connection each side knows where the other's log stood."""
    site = Site.of(office, "a", tmp_path / "a")
    site.audit.write("plan_approved", by="A. Jones")

    async def scene() -> None:
        async with serving(office, plan_with(office.identities), tmp_path / "state") as running:
            await site.talk(office, running.address, "a", until=2)
            assert running.log.kept_head("a") == site.audit.own_head
            assert 0 < site.audit.kept_head("coordinator").count <= running.log.head.count

    asyncio.run(scene())
    site.audit.close()


def test_a_site_with_an_older_log_is_refused_until_a_person_declares_the_restore(
    tmp_path: Path, office: Office
) -> None:
    """The site's own program stops it, and after the declaration it takes part again."""
    site = Site.of(office, "a", tmp_path / "a")
    for number in range(3):
        site.audit.write("plan_approved", number=number)

    async def scene() -> None:
        async with serving(office, plan_with(office.identities), tmp_path / "state") as running:
            await site.talk(office, running.address, "a", until=1)
            while running.log.kept_head("a").count == 0:
                await asyncio.sleep(0.01)
            older = Site.of(office, "a", tmp_path / "older")
            with pytest.raises(RefusedError):
                await older.talk(office, running.address, "a", until=1)
            older.audit.declare_restored(by="A. Jones", because="disk", account="root")
            await older.talk(office, running.address, "a", until=1)
            while not running.log.records("restore_accepted"):
                await asyncio.sleep(0.01)
            older.audit.close()

    asyncio.run(scene())
    site.audit.close()


def test_a_coordinator_with_an_older_log_is_refused_until_a_person_declares_the_restore(
    tmp_path: Path, office: Office
) -> None:
    """Each site keeps the head of the coordinator's log."""
    site = Site.of(office, "a", tmp_path / "a")

    async def scene(state: Path) -> None:
        async with serving(office, plan_with(office.identities), state) as running:
            await site.talk(office, running.address, "a", until=2)

    asyncio.run(scene(tmp_path / "state"))
    with pytest.raises(RefusedError):
        asyncio.run(scene(tmp_path / "new"))
    with closing(AuditLog(store_path(tmp_path / "new"), site=None, now=utc_now)) as log:
        log.declare_restored(by="A. Jones", because="disk", account="root")
    asyncio.run(scene(tmp_path / "new"))
    site.audit.close()


def test_a_coordinator_whose_log_was_rewritten_is_refused_at_each_connection(tmp_path: Path, office: Office) -> None:
    """Also if the other log has grown longer. A site keeps no head of a log that lacks the head that it keeps."""
    site = Site.of(office, "a", tmp_path / "a")

    async def scene(state: Path) -> CoordinatorMessage | Upkeep:
        async with serving(office, plan_with(office.identities), state) as running:
            return (await site.talk(office, running.address, "a", until=2))[-1]

    assert isinstance(asyncio.run(scene(tmp_path / "state")), LogHeads)
    with closing(AuditLog(store_path(tmp_path / "new"), site=None, now=utc_now)) as rewritten:
        rewritten.write_all([{"event": "invented"}] * 100)
    for _ in range(2):
        assert isinstance(asyncio.run(scene(tmp_path / "new")), Farewell)
    site.audit.close()


def test_a_second_refusal_of_one_request_is_no_second_record(tmp_path: Path, office: Office) -> None:
    """The coordinator's answer to a renewal is a record, so it counts once."""
    site = Site.of(office, "a", tmp_path / "a")
    asyncio.run(site.upkeep._certificates.look())
    site.upkeep._asked = RenewalAsked("a", b"x", bytes(64))
    refusal = RenewalAnswered(b"", "not now")

    asyncio.run(site.upkeep.take(refusal, nothing))
    with pytest.raises(MalformedMessage):
        asyncio.run(site.upkeep.take(refusal, nothing))

    assert len(list(site.audit.records("renewal_refused"))) == 1
    site.audit.close()


def test_a_certificate_renews_itself_over_the_stream_and_the_old_one_stays_until_the_new_one_works(
    tmp_path: Path,
) -> None:
    """From day 30 on there is a new key and a new certificate; once that has connected, the old one is refused."""
    office = _long_founded(tmp_path / "office")
    keys = {name: office.enrol(name, now=utc_now() - timedelta(days=31 * (name == "a"))) for name in "abc"}
    old = office.credentials("a")
    site = Site.of(office, "a", tmp_path / "a")
    plan = plan_with({name: one.identity_fingerprint() for name, one in keys.items()})

    async def scene() -> None:
        async with serving(office, plan, tmp_path / "state") as running:
            with pytest.raises(UnavailableError):
                await site.talk(office, running.address, "a", until=9)
            new = office.credentials("a")
            assert new.key != old.key
            async with calling(running.address, as_channel(old)) as still:
                await still.send(Hello(PROTOCOL_VERSION, "test"))
                assert isinstance(await still.receive(), LogHeads)
            await site.talk(office, running.address, "a", until=1)
            async with calling(running.address, as_channel(old)) as refused:
                await refused.send(Hello(PROTOCOL_VERSION, "test"))
                assert await refused.rest() == []
                assert await refused.status() is grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(scene())

    assert len(site.audit.records("certificate_renewed")) == 1
    site.audit.close()


async def request_of(keys: SiteKeys, site: str) -> RenewalAsked:
    """A site's request for its next certificate."""
    return await renewal_of(await looked(keys, site), site, keys.identity_key())


async def looked(keys: SiteKeys, site: str) -> SiteCertificates:
    """A site's certificates as its gate sees them."""
    certificates = certificates_in_process(keys)
    await certificates.look()
    return certificates


@asynccontextmanager
async def enrolling(office: Office) -> AsyncIterator[str]:
    """The enrolment port."""
    with Register(office.authority.register_path) as register:
        membership = Membership(office.authority, register, utc_now)
        address = f"localhost:{free_port()}"
        server = enrolment_server(membership.enrol, membership.renew_raw, membership.credentials, address)
        await server.start()
        try:
            yield address
        finally:
            await server.stop(0.2)


def test_an_expired_certificate_renews_on_the_enrolment_port_and_a_revoked_one_does_not(tmp_path: Path) -> None:
    """After a holiday the identity key's signature is enough; after a revocation it is not."""
    office = _long_founded(tmp_path / "office")
    expired, revoked = (office.enrol(name, now=utc_now() - timedelta(days=100)) for name in "ab")
    office.revoke("b")
    stranger = Office.found(tmp_path / "stranger").enrol("a")
    audit = AuditLog(tmp_path / "audit.log", site="a", now=utc_now)

    async def ask(address: str, keys: SiteKeys, name: str) -> str:
        certificates = await looked(keys, name)
        asked = await renewal_of(certificates, name, keys.identity_key())
        port, root = Address.parse(address), office.authority.root_pem()
        raw = await certificates.call("renew", port, root, encode_enrolment(asked))
        answer = decode_enrolment(RenewalAnswered, raw)
        if not answer.refusal:
            await install_renewed(certificates, asked, answer, name, utc_now(), audit)
        return answer.refusal

    async def scene() -> None:
        async with enrolling(office) as address:
            assert await ask(address, expired, "a") == ""
            assert "not a member" in await ask(address, revoked, "b")
            assert "does not match its identity key" in await ask(address, stranger, "a")

    asyncio.run(scene())

    audit.close()
    renewed = x509.load_pem_x509_certificate(expired.certificate_path.read_bytes())
    assert renewed.not_valid_after_utc > utc_now() + timedelta(days=80)


def test_the_enrolment_port_answers_a_stranger_only_so_often(tmp_path: Path) -> None:
    """Of hundreds of requests at once a few dozen are answered, and the rest must come later."""
    office = Office.found(tmp_path / "office")

    async def scene() -> list[grpc.StatusCode]:
        async with (
            enrolling(office) as address,
            grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(office.authority.root_pem())) as channel,
        ):
            call = channel.unary_unary("/global_layers.v1.Enrolment/Enrol")

            async def ask() -> grpc.StatusCode:
                return await call(b"", timeout=60).code()

            return [await ask() for _ in range(90)]

    answered = asyncio.run(scene())

    assert set(answered[:30]) == {grpc.StatusCode.OK}
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in answered
    assert set(answered) == {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_six_hospitals_of_one_computer_that_wait_for_approval_are_always_answered() -> None:
    """A small study on one computer does not reach the limit, however long its office takes to approve."""
    limit, waits = RateLimit(), itertools.chain([0.0], POLL_SECONDS, itertools.repeat(POLL_SECONDS[-1], 999))

    assert all(limit.allows("localhost", time) for time in itertools.accumulate(waits) for _ in range(6))
