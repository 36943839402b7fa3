"""Beside the rounds, over real TLS: logs with witnesses, and certificates that renew themselves."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from audit import recording_budget
from audit.own_log import AuditLog
from audit.reading.log_commands import Desk
from audit.reading.log_verification import KnownKeys
from coordinator.network.enrolment_calls import Membership
from coordinator.network.service import enrolment_server
from deploy.quickstart.ports import free_port
from pki.names import Address
from pki.register import Register
from protos.errors import RefusedError, UnavailableError
from protos.wire.codec import decode_enrolment, encode_enrolment
from protos.wire.log_checkpoints import COORDINATOR
from protos.wire.messages import (
    PROTOCOL_VERSION,
    Announcement,
    CoordinatorMessage,
    CoordinatorReason,
    Farewell,
    Hello,
    MalformedMessage,
)
from protos.wire.upkeep_messages import (
    UPKEEP_VERSION,
    LogCosignature,
    LogGrowth,
    LogStanding,
    RenewalAnswered,
    RenewalAsked,
    Upkeep,
)
from site_agent.gate import site_upkeep
from site_agent.gate.certificate_renewal import install_renewed, renewal_of
from site_agent.gate.site_certificates import SiteCertificates
from site_agent.gate.site_upkeep import SiteUpkeep
from tests.hostile.log_floods import InventedLog
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Caller, Office, Running, as_channel, calling, serving, utc_now
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
        audit = AuditLog(folder / "audit.log", site=name, now=utc_now, identity_key=keys.identity_key())
        certificates = certificates_in_process(keys)
        upkeep = SiteUpkeep(
            site=name,
            identity_key=keys.identity_key(),
            certificates=certificates,
            audit=audit,
            witness=folder / "witness",
            now=utc_now,
        )
        return cls(keys, audit, upkeep)

    async def talk(self, office: Office, address: str, name: str, until: int) -> list[CoordinatorMessage | Upkeep]:
        """Open a stream and answer until so many messages outside the rounds have come, or it ends."""
        heard: list[CoordinatorMessage | Upkeep] = []
        async with Connection(address, office.credentials(name)) as connection:
            await connection.send(Hello(PROTOCOL_VERSION, "test", UPKEEP_VERSION))
            self.upkeep.begin()
            while sum(isinstance(message, Upkeep) for message in heard) < until:
                message = await connection.receive()
                heard.append(message)
                if isinstance(message, Farewell):
                    break
                if isinstance(message, Upkeep):
                    await self.upkeep.take(message, connection.send)
        return heard


def long_founded(folder: Path) -> Office:
    """A federation that was founded months ago, with a coordinator's certificate of today."""
    office = Office.found(folder, now=utc_now() - timedelta(days=120))
    office.authority.renew_coordinator(utc_now())
    return office


@pytest.fixture
def office(tmp_path: Path) -> Office:
    """A federation with three enrolled sites."""
    office = Office.found(tmp_path / "office")
    assert office.identities
    return office


def test_the_log_is_synced_once_a_second_also_without_a_checkpoint(
    tmp_path: Path, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of what was sent is on disk a second later, also if no message about audit logs is due."""
    site, synced = Site.of(office, "a", tmp_path / "a"), list[str]()
    site.audit.write_after("contribution_handed_over", round=1)
    assert site_upkeep.PULSE_SECONDS == 1.0
    monkeypatch.setattr(site_upkeep, "PULSE_SECONDS", 0.0)
    monkeypatch.setattr(os, "fdatasync", lambda file: synced.append(Path(f"/proc/self/fd/{file}").readlink().name))

    async def nobody(message: Upkeep) -> None:
        raise AssertionError(message)

    async def scene() -> None:
        working = asyncio.create_task(site.upkeep.keep_up(nobody))
        await asyncio.sleep(0.02)
        working.cancel()
        await asyncio.wait({working})

    asyncio.run(scene())

    assert synced == ["audit.log"]


def test_logs_are_witnessed_over_the_stream(tmp_path: Path, office: Office) -> None:
    """The coordinator cosigns what the site has done, and the site what the coordinator has decided."""
    site = Site.of(office, "a", tmp_path / "a")
    site.audit.write("plan_approved", by="A. Jones")

    async def scene() -> None:
        async with serving(office, plan_with(office.identities), tmp_path / "state") as running:
            heard = await site.talk(office, running.address, "a", until=3)
            kinds = {type(message) for message in heard}
            assert {LogStanding, LogGrowth, LogCosignature, Announcement} == kinds

    asyncio.run(scene())

    identity = site.keys.identity_key().public_key().public_bytes_raw()
    key = office.authority.identity_key().public_key().public_bytes_raw()
    found = Desk(
        tmp_path / "a" / "audit.log", "site/a", KnownKeys({"site/a": identity, COORDINATOR: key})
    ).verification()
    assert (found.witnesses, found.unchecked) == ((COORDINATOR,), ())
    assert found.cosigned >= 1
    site.audit.close()


def test_a_site_of_an_earlier_version_hears_nothing_of_upkeep(tmp_path: Path, office: Office) -> None:
    """To a greeting without it, the coordinator sends what it has always sent."""

    async def scene() -> None:
        async with (
            serving(office, plan_with(office.identities), tmp_path / "state") as running,
            calling(running.address, as_channel(office.credentials("a"))) as caller,
        ):
            await caller.send(Hello(PROTOCOL_VERSION, "0.0.9"))
            assert isinstance(await caller.receive(), Announcement)
            running.upkeep.tick()
            running.engine.stop()
            assert [type(message) for message in await caller.rest()] == [Farewell]

    asyncio.run(scene())


def test_a_forked_log_ends_the_stream_and_both_sides_have_it_on_record(tmp_path: Path, office: Office) -> None:
    """A site whose log differs from the cosigned one is disconnected, and a second try ends in the same way."""
    site = Site.of(office, "a", tmp_path / "a")
    site.audit.write("plan_approved", by="A. Jones")

    async def scene() -> None:
        async with serving(office, plan_with(office.identities), tmp_path / "state") as running:
            await site.talk(office, running.address, "a", until=3)
            shutil.rmtree(tmp_path / "a" / "witness")
            (tmp_path / "a" / "audit.log").unlink()
            forked = Site.of(office, "a", tmp_path / "a")
            for number in range(30):
                forked.audit.write("something_else", number=number)
            for _ in range(2):
                with pytest.raises(RefusedError, match="differs from its signed checkpoint") as refused:
                    await forked.talk(office, running.address, "a", until=3)
                assert "move this folder away. Then restore the newest backup" in refused.value.remedy
                assert "privacy budget of a year counts as spent" in refused.value.remedy
            assert [facts["owner"] for facts in forked.audit.records("log_refused")] == ["site/a"] * 2
            forked.audit.close()

    asyncio.run(scene())
    site.audit.close()


def test_a_site_that_lost_its_identity_key_with_its_host_is_witnessed_again(tmp_path: Path, office: Office) -> None:
    """Revoked and invited again it begins a new log; what was confirmed of the old one is kept aside, and on record."""
    lost = Site.of(office, "a", tmp_path / "a")
    lost.audit.write("plan_approved", by="A. Jones")

    async def scene(site: Site, size: int) -> None:
        async with serving(office, plan_with(office.identities), tmp_path / "state") as running:
            heard = await site.talk(office, running.address, "a", until=3)
            assert not any(isinstance(message, Farewell) for message in heard)
            assert [facts["size"] for facts in running.log.records("identity_replaced")] == [size] * (size > 0)

    asyncio.run(scene(lost, 0))
    size = json.loads((tmp_path / "state" / "witness" / "kept-site-a.json").read_text())["size"]
    lost.audit.close()
    office.revoke("a")
    (office.folder / "a").rename(tmp_path / "dead host")
    office.identities["a"] = office.enrol("a").identity_fingerprint()
    found = Site.of(office, "a", tmp_path / "another computer")
    found.audit.write("enrolled")
    asyncio.run(scene(found, size))

    (former,) = (tmp_path / "state" / "witness").glob("former-site-a-*.json")
    assert json.loads(former.read_text())["size"] == size
    assert not list(found.audit.records("log_refused"))
    found.audit.close()


def test_a_site_above_its_budget_waits_over_a_restart_and_keeps_its_stream(
    tmp_path: Path, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over TLS: a site that floods the coordinator's log is answered later and not sent away, and others are heard."""
    monkeypatch.setattr(recording_budget, "EACH_DAY_BYTES", 20_000)
    flooding = InventedLog("site/a", office.keys("a").identity_key())
    state, plan = tmp_path / "state", plan_with(office.identities)

    async def flood(running: Running, caller: Caller) -> int:
        """Send checkpoints until one waits; how many were answered."""
        answered, reading = 0, asyncio.create_task(caller.receive())
        await caller.send(flooding.growth())
        while not any(session._waiting for session in running.upkeep._sessions.values()):
            await asyncio.wait({reading}, timeout=0.05)
            if not reading.done():
                continue
            message = reading.result()
            assert not isinstance(message, Farewell | None)
            reading = asyncio.create_task(caller.receive())
            if isinstance(message, LogCosignature):
                answered += 1
                await caller.send(flooding.growth())
        reading.cancel()
        return answered

    async def scene() -> list[int]:
        found = []
        for _ in range(2):
            async with serving(office, plan, state) as running:
                async with calling(running.address, as_channel(office.credentials("a"))) as caller:
                    await caller.send(Hello(PROTOCOL_VERSION, "test", UPKEEP_VERSION))
                    while not isinstance(standing := await caller.receive(), LogStanding):
                        pass
                    if standing.checkpoint is not None:
                        flooding.position = standing.checkpoint.position
                    found.append(await flood(running, caller))
                async with calling(running.address, as_channel(office.credentials("b"))) as other:
                    await other.send(Hello(PROTOCOL_VERSION, "test", UPKEEP_VERSION))
                    assert isinstance(await other.receive(), Announcement | LogStanding)
        return found

    before, after = asyncio.run(scene())

    assert 20 < before < 40
    assert after <= 3


def test_a_second_refusal_of_one_request_is_no_second_record(tmp_path: Path, office: Office) -> None:
    """The coordinator's answer to a renewal is a record, so it counts once."""
    site = Site.of(office, "a", tmp_path / "a")
    asyncio.run(site.upkeep._certificates.look())
    site.upkeep._asked = RenewalAsked("a", b"x", bytes(64))
    refusal = RenewalAnswered(b"", "not now")

    asyncio.run(site.upkeep.heard(refusal))
    with pytest.raises(MalformedMessage, match="not asked for"):
        asyncio.run(site.upkeep.heard(refusal))

    assert len(list(site.audit.records("renewal_refused"))) == 1
    site.audit.close()


def test_a_growth_that_does_not_follow_ends_the_stream_at_the_coordinator(tmp_path: Path, office: Office) -> None:
    """A site that shows other leaves than those of its log is disconnected with the reason, and the record has it."""
    site = Site.of(office, "a", tmp_path / "a")
    site.audit.write("plan_approved", by="A. Jones")

    async def scene() -> None:
        async with (
            serving(office, plan_with(office.identities), tmp_path / "state") as running,
            calling(running.address, as_channel(office.credentials("a"))) as caller,
        ):
            await caller.send(Hello(PROTOCOL_VERSION, "test", UPKEEP_VERSION))
            while not isinstance(await caller.receive(), LogStanding):
                pass
            checkpoint = site.audit.signed(1, site.audit.position)
            await caller.send(LogGrowth(checkpoint, 0, (bytes(32),)))
            farewell = (await caller.rest())[-1]
            assert isinstance(farewell, Farewell)
            assert farewell.reason is CoordinatorReason.NOT_ACCEPTED
            assert "differs from its earlier content" in farewell.detail
            (facts,) = running.log.records("log_refused")
            assert facts["owner"] == "site/a"

    asyncio.run(scene())
    site.audit.close()


def test_a_certificate_renews_itself_over_the_stream_and_the_old_one_stays_until_the_new_one_works(
    tmp_path: Path,
) -> None:
    """From day 30 on there is a new key and a new certificate; once that has connected, the old one is refused."""
    office = long_founded(tmp_path / "office")
    keys = {name: office.enrol(name, now=utc_now() - timedelta(days=31 * (name == "a"))) for name in "abc"}
    old = office.credentials("a")
    site = Site.of(office, "a", tmp_path / "a")
    plan = plan_with({name: one.identity_fingerprint() for name, one in keys.items()})

    async def scene() -> None:
        async with serving(office, plan, tmp_path / "state") as running:
            with pytest.raises(UnavailableError, match="received its next certificate"):
                await site.talk(office, running.address, "a", until=9)
            new = office.credentials("a")
            assert new.key != old.key
            assert site.keys.has_previous()
            async with calling(running.address, as_channel(old)) as still:
                await still.send(Hello(PROTOCOL_VERSION, "test"))
                assert isinstance(await still.receive(), Announcement)
            await site.talk(office, running.address, "a", until=1)
            await site.upkeep.accepted()
            assert not site.keys.has_previous()
            async with calling(running.address, as_channel(old)) as refused:
                await refused.send(Hello(PROTOCOL_VERSION, "test"))
                assert await refused.rest() == []
                assert await refused.status() is grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(scene())

    assert [len(list(site.audit.records(event))) for event in ("certificate_renewed", "certificate_in_use")] == [1, 1]
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
    office = long_founded(tmp_path / "office")
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
