"""A hospital's own authority over real TLS: its site gets in, nobody else does, and it ends when it is to end."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from rich.console import Console

from coordinator.enrolment import Membership
from coordinator.serve import _told
from coordinator.status_lines import print_status
from pki import certificates, own_keys, rotation
from pki.authority import Authority
from pki.certificates import certificate_pem, requested_key
from pki.chain import certificates_in
from pki.names import SiteName
from pki.own_authority import authority_fingerprint
from pki.own_enrolment import own_certificate_request
from pki.own_register import OwnAuthorities
from pki.register import Register
from pki.site_keys import SiteKeys
from protos.errors import ConfigurationError, RefusedError, UnavailableError
from protos.messages import PROTOCOL_VERSION, Announcement, CoordinatorReason, Farewell, Hello
from protos.plan import Plan
from protos.upkeep import LogStanding, RenewalAsked
from site_agent.boundary.upkeep import SiteUpkeep, own_certificate_of, renewal_of
from tests.coordinator.test_service import assert_right_bits
from tests.pki.hospital import HospitalAuthority, Leaf, Wanted, found, issued, small_key
from tests.rehearsal.federation import Office, Running, as_channel, calling, eventually, serving, take_part, utc_now
from tests.rehearsal.study import SITES, BehavingSite, plan_with
from tests.rehearsal.test_upkeep import Site

HELLO = Hello(PROTOCOL_VERSION, "test")
A = SiteName("a")


@dataclass(frozen=True)
class Hospital:
    """A hospital's authority, and the one below it that issues."""

    root: HospitalAuthority
    issuing: HospitalAuthority

    @classmethod
    def named(cls, name: str) -> Hospital:
        """With an authority between."""
        root = found(Wanted(start=utc_now(), name=name))
        between = found(Wanted(start=utc_now(), name=f"{name} issuing", path_length=0), above=root)
        return cls(root, between)

    def chain(self, leaf: x509.Certificate) -> bytes:
        """As a hospital's people hand it over: certificate, what is between, authority."""
        return certificate_pem(leaf) + self.issuing.pem + self.root.pem

    def certify(self, keys: SiteKeys, leaf: Leaf) -> bytes:
        """The chain for a site's request."""
        request = own_keys.waiting_request(keys, SiteName("a"), is_anew=True)
        return self.chain(issued(self.issuing, requested_key(request), leaf))


def leaf_of(site: str = "a") -> Leaf:
    """What a site's certificate has to say."""
    return Leaf(uris=(f"spiffe://heart/site/{site}",), start=utc_now())


def bring(office: Office, site: str, hospital: Hospital) -> None:
    """As `pki own-authority add` does, while the coordinator runs."""
    typed = authority_fingerprint(hospital.root.certificate)
    with Register(office.authority.register_path) as register:
        OwnAuthorities(register).add(
            SiteName(site),
            hospital.root.pem,
            typed,
            federation=office.authority.federation,
            kin=office.authority.authorities(),
            now=utc_now(),
        )


def take_away(office: Office, site: str) -> None:
    """As `pki own-authority remove` does."""
    with Register(office.authority.register_path) as register:
        OwnAuthorities(register).remove(SiteName(site))


async def change_over(site: Site, office: Office, running: Running) -> None:
    """The agent shows what waits, changes over, and connects with it."""
    with pytest.raises(UnavailableError, match="got its next certificate"):
        await site.talk(office, running.address, "a", until=9)
    await site.talk(office, running.address, "a", until=1)
    site.upkeep.accepted()


async def is_let_in(office: Office, running: Running, pair: grpc.ChannelCredentials) -> bool:
    """Whether whoever shows this is told of the plan."""
    async with calling(running.address, pair) as caller:
        await caller.send(HELLO)
        return isinstance(await caller.receive(), Announcement)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """A federation with three enrolled sites, which no test changes."""
    office = Office.found(tmp_path_factory.mktemp("made"), now=utc_now() - timedelta(days=9))
    assert office.identities
    return office


@pytest.fixture
def office(made: Office, tmp_path: Path) -> Office:
    """A copy of it."""
    shutil.copytree(made.folder, tmp_path / "office")
    return Office(tmp_path / "office", Authority.load(tmp_path / "office" / "authority"))


def plan_of(office: Office, rounds: int = 3) -> Plan:
    """A study of its three sites."""
    return plan_with({site: office.keys(site).identity_fingerprint() for site in SITES}, rounds=rounds)


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
            with pytest.raises(UnavailableError, match="got its next certificate"):
                await site.talk(office, running.address, "a", until=9)
            assert own_keys.is_of_own_authority(site.keys)
            assert await is_let_in(office, running, federations)  # until the new one has worked

            async with calling(running.address, as_channel(office.credentials("a"))) as caller:
                await caller.send(HELLO)
                assert isinstance(await caller.receive(), Announcement)
                site.upkeep.accepted()
                assert not await is_let_in(office, running, federations)
                take_away(office, "a")
                running.service.recheck()
                (farewell,) = await caller.rest()
                assert isinstance(farewell, Farewell)
                assert farewell.reason is CoordinatorReason.NOT_ACCEPTED
            assert told_of_a(office, running) == (True, 1)
            assert not await is_let_in(office, running, as_channel(office.credentials("a")))
            renew(office, site.keys)
            assert told_of_a(office, running) == (False, 0)
            assert await is_let_in(office, running, as_channel(office.credentials("a")))
            accepted = list(running.log.file.records("own_certificate_accepted"))
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
        site="a", keys=site.keys, audit=site.audit, witness=tmp_path / "a" / "witness", now=lambda: later
    )
    standing = LogStanding(office.authority.identity_key().public_key().public_bytes_raw(), None)

    with Register(office.authority.register_path) as register:
        membership = Membership(office.authority, register, lambda: later)
        shown = [said for said in upkeep.heard(standing) if isinstance(said, RenewalAsked)]
        assert upkeep.heard(membership.renew(shown[0])) == []
        asked = [said for said in upkeep.due() if isinstance(said, RenewalAsked)]
        with pytest.raises(UnavailableError, match="got its next certificate"):
            upkeep.heard(membership.renew(asked[0]))

    assert [bool(one.chain) for one in (*shown, *asked)] == [True, False]
    assert own_keys.staged_chain(site.keys) is not None
    assert not site.keys.is_renewal_due(later)
    site.audit.close()


def told_of_a(office: Office, running: Running) -> tuple[bool, int]:
    """Whether `coordinator status` says that a's authority was removed, and in how many sentences on it what to do."""
    with Register(office.authority.register_path) as register:
        membership = Membership(office.authority, register, utc_now)
        told = _told(running.engine, membership, office.authority)
    assert not told["sites"]["b"]["own_authority_removed"]
    for text in told["taken_out"]:
        assert "own authority by which a was let in has been removed" in text
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


def renew(office: Office, keys: SiteKeys) -> None:
    """A certificate of the federation, as `site-agent renew` gets it."""
    with Register(office.authority.register_path) as register:
        answer = Membership(office.authority, register, utc_now).renew(renewal_of(keys, "a"))
    assert answer.refusal == ""
    keys.install_next(answer.chain, answer.roots, site=A, federation="heart", now=utc_now())


# Who does not get in


@dataclass(frozen=True)
class Impostor:
    """What is shown, and the key for it."""

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
    """Every stream ends before anything is told; one in another site's name is an event of its own."""
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
            caught = [facts["authority_of"] for facts in running.log.file.records("foreign_name_refused")]
            assert caught == ["a"] * (name in FOREIGN)

    asyncio.run(scene())


@pytest.fixture(scope="module")
def ready(made: Office, tmp_path_factory: pytest.TempPathFactory) -> tuple[Office, Hospital]:
    """A federation whose sites a and c have authorities of their own, and a's; no test changes it."""
    place, hospital = tmp_path_factory.mktemp("own") / "office", Hospital.named("St Mary CA")
    shutil.copytree(made.folder, place)
    office = Office(place, Authority.load(place / "authority"))
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


# What is shown and refused


@pytest.fixture
def hospital() -> Hospital:
    """The hospital behind site a."""
    return Hospital.named("St Mary CA")


def shown(office: Office, hospital: Hospital, leaf: Leaf | None = None) -> RenewalAsked:
    """What the agent of a shows of what this hospital has issued."""
    keys = office.keys("a")
    own_keys.stage(keys, hospital.certify(keys, leaf or leaf_of()), A, utc_now())
    asked = own_certificate_of(keys, "a")
    assert asked is not None
    return asked


def at_the_desk(office: Office, *asked: RenewalAsked) -> tuple[list[str], list[str]]:
    """The refusals, and the events that were recorded."""
    events: list[str] = []
    with Register(office.authority.register_path) as register:
        membership = Membership(office.authority, register, utc_now, lambda event, **facts: events.append(event))
        return [membership.renew(one).refusal for one in asked], events


def test_only_what_the_sites_own_authority_issued_for_its_key_counts(office: Office, hospital: Hospital) -> None:
    """Without an authority, of another one, with another request, unsigned, or for a key used before: refused."""
    first = shown(office, hospital)
    assert "was not issued by the authority" in at_the_desk(office, first)[0][0]
    bring(office, "a", hospital)
    other, second = shown(office, Hospital.named("Riverside CA")), shown(office, hospital)
    swapped = replace(second, signing_request=first.signing_request)
    unsigned = replace(second, signature=bytes(64))
    another_key = resigned(office, second, first.signing_request)
    in_anothers_name = resigned(office, shown_for_b(office, hospital, first), first.signing_request)

    refusals, events = at_the_desk(
        office, other, swapped, unsigned, another_key, in_anothers_name, replace(second, site="b"), second, second
    )

    expected = ["was not issued by", "signature", "signature", "another key", "in the name of b", "signature", "", ""]
    assert [word in refusal for word, refusal in zip(expected, refusals, strict=True)] == [True] * len(expected)
    assert refusals[-2:] == ["", ""]
    assert events.count("foreign_name_refused") == 1
    assert events.count("own_certificate_accepted") == 2
    again = issued(hospital.issuing, requested_key(second.signing_request), leaf_of())
    anew = resigned(office, replace(second, chain=hospital.chain(again)), second.signing_request)
    assert "has another certificate already" in at_the_desk(office, anew)[0][0]


def test_an_authority_that_is_registered_again_brings_back_no_certificate(office: Office, hospital: Hospital) -> None:
    """What was refused with its authority stays refused; the site gets in with another one, for a new key."""
    bring(office, "a", hospital)
    first = shown(office, hospital)
    assert at_the_desk(office, first)[0] == [""]
    take_away(office, "a")
    bring(office, "a", hospital)

    assert "had a certificate before" in at_the_desk(office, first)[0][0]
    assert at_the_desk(office, shown(office, hospital))[0] == [""]


def resigned(office: Office, asked: RenewalAsked, request: bytes) -> RenewalAsked:
    """The same with another request, signed by a's own identity key."""
    keys = office.keys("a")
    made = own_certificate_request(office.authority.federation, A, request, asked.chain, keys.identity_key())
    return RenewalAsked("a", request, made.signature, asked.chain)


def shown_for_b(office: Office, hospital: Hospital, asked: RenewalAsked) -> RenewalAsked:
    """The same request, with a certificate in b's name."""
    key = requested_key(asked.signing_request)
    return replace(asked, chain=hospital.chain(issued(hospital.issuing, key, leaf_of("b"))))


def test_beside_its_own_authority_the_federation_issues_a_site_nothing(office: Office, hospital: Hospital) -> None:
    """Until its first own certificate it renews as before, from then on it does not; a revoked site gets neither."""
    bring(office, "a", hospital)
    keys = office.keys("a")
    assert at_the_desk(office, renewal_of(keys, "a"))[0] == [""]

    asked = shown(office, hospital)
    refusals, _ = at_the_desk(office, asked, renewal_of(keys, "a"))

    assert refusals[0] == ""
    assert "has an authority of its own" in refusals[1]
    office.revoke("a")
    assert all("not a member" in one for one in at_the_desk(office, asked, renewal_of(keys, "a"))[0])


def test_the_federations_root_changes_and_the_site_keeps_its_own(
    tmp_path: Path, office: Office, hospital: Hospital
) -> None:
    """Nobody waits for a site that the federation issues nothing; it hears of the next root and still gets in."""
    site, plan = Site.of(office, "a", tmp_path / "a"), plan_of(office)
    bring(office, "a", hospital)
    own_keys.stage(site.keys, hospital.certify(site.keys, leaf_of()), A, utc_now())

    async def scene() -> None:
        async with serving(office, plan, tmp_path / "state") as running:
            await change_over(site, office, running)
            rotation.begin(office.authority, "correct horse battery", "battery horse correct", utc_now())
            await site.talk(office, running.address, "a", until=3)
            rotation.complete(office.authority, utc_now())
            with Register(office.authority.register_path) as register:
                assert rotation.waiting(office.authority, register) == ("b", "c")
                for name in "bc":
                    register.revoke(SiteName(name), utc_now())
                rotation.end(office.authority, register)
            await site.talk(office, running.address, "a", until=1)

    asyncio.run(scene())
    site.audit.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_certificate_with_any_bit_turned_is_refused(office: Office, hospital: Hospital, seed: int) -> None:
    """A member that signs a garbled certificate with its identity key gets a reply, and nothing new is accepted."""
    bring(office, "a", hospital)
    asked, generator = shown(office, hospital), random.Random(seed)
    good = certificates_in(asked.chain)[0].public_bytes(Encoding.DER)

    def garbled() -> RenewalAsked:
        turned = bytearray(good)
        turned[generator.randrange(len(turned))] ^= 1 << generator.randrange(8)
        text = b"\n".join((b"-----BEGIN CERTIFICATE-----", base64.b64encode(turned), b"-----END CERTIFICATE-----", b""))
        return resigned(office, replace(asked, chain=text + hospital.issuing.pem), asked.signing_request)

    refusals, events = at_the_desk(office, *(garbled() for _ in range(50)))

    assert all(refusals)
    assert "own_certificate_accepted" not in events
    assert at_the_desk(office, asked)[0] == [""]


def test_nobody_calls_himself_like_what_stands_below_another_hospitals_authority(
    office: Office, hospital: Hospital
) -> None:
    """TLS would take the namesake for the issuer of the other site's certificate, and keep that site out."""
    bring(office, "a", hospital)
    assert at_the_desk(office, shown(office, hospital))[0] == [""]
    namesake = found(Wanted(start=utc_now(), name="St Mary CA issuing"))

    with pytest.raises(RefusedError, match="has the name of an authority of a"):
        bring(office, "b", Hospital(namesake, namesake))


# At the site


def test_a_site_keeps_only_what_is_for_it(office: Office, hospital: Hospital) -> None:
    """A certificate for another key, in another name, without its authority or before a request is not stored."""
    keys, stranger = office.keys("a"), small_key().public_key()
    in_force = keys.certificate_path.read_bytes()
    with pytest.raises(ConfigurationError, match="No key of this site waits"):
        own_keys.stage(keys, hospital.chain(issued(hospital.issuing, stranger, leaf_of())), A, utc_now())
    key = requested_key(own_keys.waiting_request(keys, A, is_anew=False))
    good = issued(hospital.issuing, key, leaf_of())
    wrong: Sequence[tuple[bytes, str]] = (
        (hospital.chain(issued(hospital.issuing, stranger, leaf_of())), "for another key"),
        (hospital.chain(issued(hospital.issuing, key, leaf_of("b"))), "in the name of b"),
        (certificate_pem(good) + hospital.root.pem, "does not end with the authority"),
        (certificate_pem(good), "does not end with the authority"),
        (in_force, "does not end with the authority"),
    )

    for chain, reason in wrong:
        with pytest.raises(RefusedError, match=reason):
            own_keys.stage(keys, chain, A, utc_now())
    assert own_keys.staged_chain(keys) is None
    own_keys.stage(keys, hospital.chain(good), A, utc_now())

    assert own_keys.staged_chain(keys) == hospital.chain(good)
    assert keys.certificate_path.read_bytes() == in_force
    with pytest.raises(ConfigurationError, match="waits to be taken"):
        own_keys.waiting_request(keys, A, is_anew=False)
    assert requested_key(own_keys.waiting_request(keys, A, is_anew=True)) != key
    assert own_keys.staged_chain(keys) is None


@pytest.mark.parametrize("step", range(12))
def test_a_power_cut_while_changing_over_leaves_a_pair_that_fits(
    office: Office, hospital: Hospital, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """After each move of a file the old or the new pair is in force, and the same done again ends with the new one."""
    keys = office.keys("a")
    chain = hospital.certify(keys, leaf_of())
    own_keys.stage(keys, chain, A, utc_now())
    before, moves = keys.tls_key_path.read_bytes(), 0

    def cut(real: Callable[..., object]) -> Callable[..., object]:
        def moved(*words: object, **named: object) -> object:
            nonlocal moves
            if moves == step:
                raise KeyboardInterrupt
            moves += 1
            return real(*words, **named)

        return moved

    with monkeypatch.context() as power:
        for name in ("replace", "link", "unlink"):
            power.setattr(os, name, cut(getattr(os, name)))
        with pytest.raises(KeyboardInterrupt):
            own_keys.put_in_force(keys)

    loaded = SiteKeys.load(keys.directory)  # refuses a pair that does not fit
    if own_keys.staged_chain(loaded) is not None:
        own_keys.put_in_force(loaded)
    assert loaded.certificate_path.read_bytes() == chain
    assert loaded._previous(loaded.tls_key_path).read_bytes() == before
    assert SiteKeys.load(keys.directory).certificate_sha256() == loaded.certificate_sha256()
