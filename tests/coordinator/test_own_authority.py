"""A hospital's own authority over real TLS: only its site is accepted, and the authority ends when it must."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography.x509.oid import ExtendedKeyUsageOID
from rich.console import Console

from coordinator.network.enrolment_calls import Membership
from coordinator.operations.status_lines import print_status
from coordinator.serve import _told
from pki import certificates, own_keys
from pki.certificates import certificate_pem
from pki.register import Register
from protos.errors import UnavailableError
from protos.wire.messages import PROTOCOL_VERSION, Announcement, CoordinatorReason, Farewell, Hello
from protos.wire.upkeep_messages import LogStanding, RenewalAsked
from site_agent.gate.site_upkeep import SiteUpkeep
from tests.coordinator.greetings import assert_right_bits
from tests.coordinator.own_authorities import A, Hospital, bring, copied, leaf_of, plan_of, take_away
from tests.pki.hospital import HospitalAuthority, Leaf, issued, small_key
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Office, Running, as_channel, calling, eventually, serving, take_part, utc_now
from tests.rehearsal.relayed_stream import certificates_in_process, request_of_renewal
from tests.rehearsal.study import BehavingSite
from tests.rehearsal.test_upkeep import Site

HELLO = Hello(PROTOCOL_VERSION, "test")


async def is_let_in(office: Office, running: Running, pair: grpc.ChannelCredentials) -> bool:
    """Whether whoever shows this is informed of the plan."""
    async with calling(running.address, pair) as caller:
        await caller.send(HELLO)
        return isinstance(await caller.receive(), Announcement)


@pytest.fixture
def office(aged: Office, tmp_path: Path) -> Office:
    """A federation with three enrolled sites."""
    return copied(aged, tmp_path / "office")


def test_a_site_changes_over_to_its_hospitals_authority_and_back(tmp_path: Path, office: Office) -> None:
    """Nothing is restarted: registered, shown, in use; then removed, cut off, and back with the federation's own."""
    hospital, site = Hospital.named("St Mary CA"), Site.of(office, "a", tmp_path / "a")
    federations = as_channel(office.credentials("a"))

    async def scene() -> None:
        async with serving(office, plan_of(office), tmp_path / "state") as running:
            own_keys.stage(site.keys, hospital.certify(site.keys, leaf_of()), A, utc_now())
            await site.talk(office, running.address, "a", until=4)
            assert not own_keys.is_of_own_authority(site.keys)  # nobody has registered it
            bring(office, "a", hospital)
            with pytest.raises(UnavailableError, match="received its next certificate"):
                await site.talk(office, running.address, "a", until=9)
            assert own_keys.is_of_own_authority(site.keys)
            assert await is_let_in(office, running, federations)  # until the new one has worked

            async with calling(running.address, as_channel(office.credentials("a"))) as caller:
                await caller.send(HELLO)
                assert isinstance(await caller.receive(), Announcement)
                await site.upkeep.accepted()
                assert not await is_let_in(office, running, federations)
                take_away(office, "a")
                running.service.recheck()
                (farewell,) = await caller.rest()
                assert isinstance(farewell, Farewell)
                assert farewell.reason is CoordinatorReason.NOT_ACCEPTED
            assert told_of_a(office, running) == (True, 1)
            assert not await is_let_in(office, running, as_channel(office.credentials("a")))
            await renew(office, site.keys)
            assert told_of_a(office, running) == (False, 0)
            assert await is_let_in(office, running, as_channel(office.credentials("a")))
            accepted = list(running.log.records("own_certificate_accepted"))
            assert [facts["site"] for facts in accepted] == ["a"]

    asyncio.run(scene())

    events = ("own_certificate_shown", "renewal_refused", "certificate_renewed", "certificate_in_use")
    assert [len(list(site.audit.records(event))) for event in events] == [2, 1, 1, 1]
    assert not own_keys.is_of_own_authority(site.keys)
    site.audit.close()


def test_a_certificate_that_nobody_takes_keeps_the_federations_from_no_renewal(tmp_path: Path, office: Office) -> None:
    """While the office has not registered the authority, the site asks for the federation's certificate when due."""
    site, later = Site.of(office, "a", tmp_path / "a"), utc_now() + timedelta(days=70)
    own_keys.stage(site.keys, Hospital.named("St Mary CA").certify(site.keys, leaf_of()), A, utc_now())
    upkeep = SiteUpkeep(
        site="a",
        identity_key=site.keys.identity_key(),
        certificates=certificates_in_process(site.keys, lambda: later),
        audit=site.audit,
        witness=tmp_path / "a" / "witness",
        now=lambda: later,
    )
    standing = LogStanding(office.authority.identity_key().public_key().public_bytes_raw(), None)

    with Register(office.authority.register_path) as register:
        membership = Membership(office.authority, register, lambda: later)
        shown = [said for said in asyncio.run(upkeep.heard(standing)) if isinstance(said, RenewalAsked)]
        assert asyncio.run(upkeep.heard(membership.renew(shown[0]))) == []
        asked = [said for said in asyncio.run(upkeep.due()) if isinstance(said, RenewalAsked)]
        with pytest.raises(UnavailableError, match="received its next certificate"):
            asyncio.run(upkeep.heard(membership.renew(asked[0])))

    assert [bool(one.chain) for one in (*shown, *asked)] == [True, False]
    assert own_keys.staged_chain(site.keys) is not None
    assert not certificates.is_renewal_due(site.keys.leaf(), later)
    site.audit.close()


def told_of_a(office: Office, running: Running) -> tuple[bool, int]:
    """Whether `coordinator status` says that a's authority was removed, and in how many sentences on it what to do."""
    with Register(office.authority.register_path) as register:
        membership = Membership(office.authority, register, utc_now)
        told = _told(running.engine, membership, office.authority)
    assert not told["sites"]["b"]["own_authority_removed"]
    for text in told["taken_out"]:
        assert "The hospital's own authority of a has been removed" in text
        assert "`site-agent renew`" in text
    out = io.StringIO()
    print_status(told, Console(file=out, width=160))
    assert ("own authority removed" in out.getvalue()) == told["sites"]["a"]["own_authority_removed"]
    return told["sites"]["a"]["own_authority_removed"], len(told["taken_out"])


def test_what_became_of_an_authority_while_no_coordinator_ran_is_recorded_once(tmp_path: Path, office: Office) -> None:
    """The next start compares what the log has said with the register; a lost note says only once more what counts."""

    def events_of_a_start() -> list[str]:
        events: list[str] = []
        with Register(office.authority.register_path) as register:
            Membership(
                office.authority, register, utc_now, lambda event, **_: events.append(event), tmp_path / "said.json"
            )
        return events

    assert events_of_a_start() == []
    bring(office, "a", Hospital.named("St Mary CA"))
    assert [events_of_a_start() for _ in range(2)] == [["own_authority_counts"], []]
    (tmp_path / "said.json").write_bytes(b"{")
    assert [events_of_a_start() for _ in range(2)] == [["own_authority_counts"], []]
    take_away(office, "a")
    assert [events_of_a_start() for _ in range(2)] == [["own_authority_removed"], []]


async def renew(office: Office, keys: SiteKeys) -> None:
    """A certificate of the federation, as `site-agent renew` gets it."""
    with Register(office.authority.register_path) as register:
        answer = Membership(office.authority, register, utc_now).renew(await request_of_renewal(keys, "a"))
    assert answer.refusal == ""
    keys.install_next(answer.chain, answer.roots, site=A, federation="heart", now=utc_now())


# Callers that are refused


@dataclass(frozen=True)
class Impostor:
    """The certificate chain that is shown, and its key."""

    chain: bytes
    key: certificates.Key

    @classmethod
    def of(cls, hospital: Hospital, leaf: Leaf, *above: HospitalAuthority) -> Impostor:
        """A new key, and a certificate for it."""
        key = small_key()
        shown = certificate_pem(issued(hospital.issuing, key.public_key(), leaf))
        return cls(shown + b"".join(one.pem for one in above or (hospital.issuing,)), key)

    def channel(self, office: Office) -> grpc.ChannelCredentials:
        """As gRPC wants it."""
        return grpc.ssl_channel_credentials(office.authority.root_pem(), certificates.key_to_pem(self.key), self.chain)


def itself(hospital: Hospital, _: Hospital) -> Impostor:
    """The authority shows its own certificate."""
    key = hospital.root.key
    assert isinstance(key, certificates.Key)
    return Impostor(hospital.root.pem, key)


SERVER = (ExtendedKeyUsageOID.SERVER_AUTH,)
BOTH_NAMES = ("spiffe://heart/site/a", "spiffe://heart/site/b")
LATE = utc_now() - timedelta(days=9)
IMPOSTORS: dict[str, Callable[[Hospital, Hospital], Impostor]] = {
    "another site's name": lambda own, _: Impostor.of(own, leaf_of("b")),
    "another site's name, which has an authority": lambda own, _: Impostor.of(own, leaf_of("c")),
    "an unknown site's name": lambda own, _: Impostor.of(own, leaf_of("zebra")),
    "the coordinator's name": lambda own, _: Impostor.of(own, replace(leaf_of(), uris=("spiffe://heart/coordinator",))),
    "an authority of nobody": lambda _, stranger: Impostor.of(stranger, leaf_of()),
    "the authority itself": itself,
    "server usage": lambda own, _: Impostor.of(own, replace(leaf_of(), usages=SERVER)),
    "two names": lambda own, _: Impostor.of(own, replace(leaf_of(), uris=BOTH_NAMES)),
    "expired": lambda own, _: Impostor.of(own, replace(leaf_of(), start=LATE, days=8)),
    "without what is between": lambda own, stranger: Impostor.of(own, leaf_of(), stranger.root),
    "good, and nobody has shown it under the identity key": lambda own, _: Impostor.of(own, leaf_of()),
}
FOREIGN = {name for name in IMPOSTORS if "site's name" in name}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_an_authority_lets_nobody_in_but_its_site(tmp_path: Path, name: str, ready: tuple[Office, Hospital]) -> None:
    """Every stream ends before anything is reported; one in another site's name is an event of its own."""
    office, hospital = ready
    pair = IMPOSTORS[name](hospital, Hospital.named("Stranger CA")).channel(office)

    async def scene() -> None:
        async with serving(office, plan_of(office), tmp_path) as running:
            async with calling(running.address, pair) as caller:
                await caller.send(HELLO)
                assert await caller.rest() == []
                assert await caller.status() in {
                    grpc.StatusCode.UNAVAILABLE,  # TLS itself has refused
                    grpc.StatusCode.UNAUTHENTICATED,
                    grpc.StatusCode.PERMISSION_DENIED,
                }
            caught = [facts["authority_of"] for facts in running.log.records("foreign_name_refused")]
            assert caught == ["a"] * (name in FOREIGN)

    asyncio.run(scene())


@pytest.fixture(scope="module")
def ready(aged: Office, tmp_path_factory: pytest.TempPathFactory) -> tuple[Office, Hospital]:
    """A federation whose sites a and c have authorities of their own, and a's; no test changes it."""
    place, hospital = tmp_path_factory.mktemp("own") / "office", Hospital.named("St Mary CA")
    office = copied(aged, place)
    bring(office, "a", hospital)
    bring(office, "c", Hospital.named("Northfield CA"))
    return office, hospital


def test_a_hospital_that_plays_another_one_changes_nothing_of_a_run(
    tmp_path: Path, ready: tuple[Office, Hospital]
) -> None:
    """While b trains, a's authority tries to be b, again and again: b keeps its stream, and the bits are right."""
    office, hospital = ready
    plan = plan_of(office, rounds=2)

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            others = [
                asyncio.create_task(take_part(running.address, office.credentials(name), BehavingSite(name)))
                for name in "bc"
            ]
            await eventually(lambda: running.engine.status()["sites"]["b"]["joined"])
            for _ in range(3):
                forged = Impostor.of(hospital, leaf_of("b")).channel(office)
                assert not await is_let_in(office, running, forged)
                assert running.engine.status()["sites"]["b"]["connected"]
            await take_part(running.address, office.credentials("a"), BehavingSite("a"))
            await asyncio.gather(*others)
        assert_right_bits(tmp_path, plan)

    asyncio.run(scene())
