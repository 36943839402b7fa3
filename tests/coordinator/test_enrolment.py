"""Enrolment as the coordinator answers it, over its own port and to whatever arrives there."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from coordinator.network.enrolment_calls import Membership
from coordinator.network.service import enrolment_server
from deploy.quickstart.ports import free_port
from host.record_store import StoreError
from pki.authority import Authority
from pki.enrolment_decisions import enrolment_request, invite_site
from pki.invitation import Invitation
from pki.names import SiteName
from pki.register import Register
from protos.wire.codec import decode_enrolment, encode_enrolment
from protos.wire.messages import ENROL
from protos.wire.upkeep_messages import EnrolmentReply, RenewalAsked
from site_agent.agent.connection import CallEnded, call
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Office, utc_now


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """An office whose authority no test changes."""
    return Office.found(tmp_path_factory.mktemp("heart"))


@pytest.fixture
def office(made: Office, tmp_path: Path) -> Office:
    """A copy of it, with a register of its own and no sites."""
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    return Office(tmp_path, Authority.load(tmp_path / "authority"))


@pytest.fixture
def register(office: Office) -> Iterator[Register]:
    """Its register."""
    with Register(office.authority.register_path) as register:
        yield register


@pytest.fixture
def membership(office: Office, register: Register) -> Membership:
    """A running coordinator's view of it."""
    return Membership(office.authority, register, utc_now)


def invited(office: Office, register: Register, *, is_pre_approved: bool = True, hours: float = 1) -> Invitation:
    """An invitation for site a."""
    return invite_site(
        office.authority,
        register,
        SiteName("a"),
        valid_for=timedelta(hours=hours),
        is_pre_approved=is_pre_approved,
        now=utc_now(),
    )


def request(invitation: Invitation, keys: SiteKeys) -> bytes:
    """The enrolment request of a site with these keys."""
    return encode_enrolment(enrolment_request(invitation, keys.signing_request(), keys.identity_key()))


def answered(membership: Membership, raw: bytes) -> EnrolmentReply:
    """The answer to a request."""
    return decode_enrolment(EnrolmentReply, membership.enrol(raw))


def test_a_site_waits_until_a_person_has_compared_its_fingerprint(
    office: Office, register: Register, membership: Membership, tmp_path: Path
) -> None:
    """Without approval the answer is a fingerprint and no certificate. After approval, the same request gets one."""
    keys, invitation = SiteKeys.create(tmp_path / "a"), invited(office, register, is_pre_approved=False)
    raw = request(invitation, keys)

    waiting = answered(membership, raw)
    assert (waiting.chain, waiting.fingerprint, waiting.refusal) == (b"", keys.identity_fingerprint(), "")
    register.approve(SiteName("a"), keys.identity_fingerprint(), utc_now())

    assert answered(membership, raw).chain != b""


def test_a_register_that_cannot_be_written_is_told_as_a_matter_of_waiting(
    office: Office, register: Register, membership: Membership, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A locked or broken register is the coordinator's problem: the site gets a reply, not a dead call."""
    raw = request(invited(office, register), SiteKeys.create(tmp_path / "a"))
    blocker = sqlite3.connect(office.authority.register_path, isolation_level=None)
    register._store.read("PRAGMA busy_timeout = 10")
    blocker.execute("BEGIN EXCLUSIVE")
    try:
        reply = answered(membership, raw)
    finally:
        blocker.execute("ROLLBACK")
        blocker.close()

    assert reply == EnrolmentReply(b"", "", "The coordinator cannot enrol at the moment.")
    assert answered(membership, raw).chain != b""


def test_the_enrolment_port_proves_whose_it_is(
    office: Office, register: Register, membership: Membership, tmp_path: Path
) -> None:
    """A site sends its token only to the coordinator of its invitation's authority."""
    raw = request(invited(office, register), SiteKeys.create(tmp_path / "a"))
    stranger = Office.found(tmp_path / "stranger")
    heard: list[bytes] = []

    def listen(request: bytes) -> bytes:
        heard.append(request)
        return membership.enrol(request)

    async def scene() -> None:
        address = f"localhost:{free_port()}"
        server = enrolment_server(listen, membership.renew_raw, membership.credentials, address)
        await server.start()
        try:
            with pytest.raises(CallEnded):
                await call(ENROL, address, stranger.authority.root_pem(), raw)
            assert heard == []
            reply = decode_enrolment(EnrolmentReply, await call(ENROL, address, office.authority.root_pem(), raw))
            assert reply.chain != b""
        finally:
            await server.stop(0)

    asyncio.run(scene())


def test_a_change_of_the_register_is_noticed_once(office: Office, register: Register, membership: Membership) -> None:
    """The watch sees each change made by any process, and is quiet in between."""
    assert not membership.has_changed()
    office.enrol("a")

    assert membership.has_changed()
    assert not membership.has_changed()


@pytest.mark.parametrize("name", ["", "A", "../x", "zebra", "a" * 300, "a\n"])
def test_an_unknown_name_has_no_identity(membership: Membership, name: str) -> None:
    """No identity is found for a name that does not or cannot exist."""
    assert membership.identity_of(name) is None


def test_strangers_cannot_fill_the_log(office: Office, register: Register) -> None:
    """20 of 100 refusals in a minute are recorded, then the number of the rest. The next minute starts at 0"""
    records: list[tuple[str, object]] = []
    membership = Membership(
        office.authority, register, utc_now, lambda event, **facts: records.append((event, facts.get("count")))
    )

    for _ in range(50):
        membership.enrol(b"noise")
        membership.renew(RenewalAsked("a", b"noise", bytes(64)))
    within, records[:] = list(records), []
    for _ in range(120):
        membership.tick()
    membership.enrol(b"noise")

    assert len(within) == 20
    assert records == [("refusals_counted", 80), ("enrolment_answered", None)]


def test_no_certificate_leaves_without_a_record(office: Office, register: Register, tmp_path: Path) -> None:
    """If the log could not record it, the same request is recorded before the certificate is sent."""
    records: list[object] = []

    def record(event: str, **facts: object) -> None:
        records.append(facts["outcome"])
        if len(records) == 1:
            raise StoreError(what="There is no space.", consequence="Nothing.", remedy="Free space.")

    membership = Membership(office.authority, register, utc_now, record)
    raw = request(invited(office, register), SiteKeys.create(tmp_path / "a"))

    with pytest.raises(StoreError):
        membership.enrol(raw)

    assert answered(membership, raw).chain != b""
    assert records == ["certificate issued"] * 2
