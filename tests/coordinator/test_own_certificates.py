"""Certificates of a hospital's own authority: what the coordinator takes and refuses, and what the site keeps."""

from __future__ import annotations

import asyncio
import base64
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from coordinator.network.enrolment_calls import Membership
from pki import own_keys, rotation
from pki.certificate_chain import certificates_in
from pki.certificates import certificate_pem, requested_key
from pki.enrolment_decisions import own_certificate_request
from pki.names import SiteName
from pki.register import Register
from protos.errors import ConfigurationError, RefusedError
from protos.wire.upkeep_messages import RenewalAsked
from tests.coordinator.own_authorities import A, Hospital, bring, change_over, copied, leaf_of, plan_of, take_away
from tests.pki.hospital import Leaf, Wanted, found, issued, small_key
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Office, serving, utc_now
from tests.rehearsal.relayed_stream import asked_for_renewal, shown_own_certificate
from tests.rehearsal.test_upkeep import Site


@pytest.fixture
def office(aged: Office, tmp_path: Path) -> Office:
    """A federation with three enrolled sites."""
    return copied(aged, tmp_path / "office")


@pytest.fixture
def hospital() -> Hospital:
    """The hospital behind site a."""
    return Hospital.named("St Mary CA")


def shown(office: Office, hospital: Hospital, leaf: Leaf | None = None) -> RenewalAsked:
    """What the agent of a shows of what this hospital has issued."""
    keys = office.keys("a")
    own_keys.stage(keys, hospital.certify(keys, leaf or leaf_of()), A, utc_now())
    asked = shown_own_certificate(keys, "a")
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

    expected = [
        "was not issued by",
        "signature",
        "signature",
        "another key",
        "for another name: b",
        "signature",
        "",
        "",
    ]
    assert [word in refusal for word, refusal in zip(expected, refusals, strict=True)] == [True] * len(expected)
    assert refusals[-2:] == ["", ""]
    assert events.count("foreign_name_refused") == 1
    assert events.count("own_certificate_accepted") == 1  # a repeated request is no second record
    again = issued(hospital.issuing, requested_key(second.signing_request), leaf_of())
    second_request = resigned(office, replace(second, chain=hospital.chain(again)), second.signing_request)
    assert "has another certificate already" in at_the_desk(office, second_request)[0][0]


def test_an_authority_that_is_registered_again_brings_back_no_certificate(office: Office, hospital: Hospital) -> None:
    """A certificate that ended with its authority stays refused. The site gets in with another, for a new key."""
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
    assert at_the_desk(office, asked_for_renewal(keys, "a"))[0] == [""]

    asked = shown(office, hospital)
    refusals, _ = at_the_desk(office, asked, asked_for_renewal(keys, "a"))

    assert refusals[0] == ""
    assert "has an authority of its own" in refusals[1]
    office.revoke("a")
    assert all("not a member" in one for one in at_the_desk(office, asked, asked_for_renewal(keys, "a"))[0])


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
    with pytest.raises(ConfigurationError, match="This site has no new key that waits"):
        own_keys.stage(keys, hospital.chain(issued(hospital.issuing, stranger, leaf_of())), A, utc_now())
    key = requested_key(own_keys.waiting_request(keys, A, has_new_key=False))
    good = issued(hospital.issuing, key, leaf_of())
    wrong: Sequence[tuple[bytes, str]] = (
        (hospital.chain(issued(hospital.issuing, stranger, leaf_of())), "is not for the key"),
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
    with pytest.raises(ConfigurationError, match="waits until the coordinator accepts it"):
        own_keys.waiting_request(keys, A, has_new_key=False)
    assert requested_key(own_keys.waiting_request(keys, A, has_new_key=True)) != key
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
