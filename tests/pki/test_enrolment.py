"""Enrolment and renewal: three proofs, one winner, and the same answer to the same request."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pki import certificates
from pki.authority import Authority
from pki.certificate_chain import verified_leaf
from pki.enrolment_decisions import (
    Issued,
    Pending,
    enrolment_request,
    handle_renewal,
    handle_request,
    invite_site,
    renewal_request,
)
from pki.identity_key import sign
from pki.invitation import Invitation
from pki.names import FederationName, SiteName
from pki.register import Register
from protos.errors import RefusedError
from protos.wire.upkeep_messages import EnrolmentRequest
from tests.pki.whole_site import SiteKeys

MARY = SiteName("st-mary")
HEART = FederationName("heart")


def invite(
    authority: Authority, register: Register, now: datetime, *, pre: bool = True, site: SiteName = MARY
) -> Invitation:
    """An invitation that holds for three days."""
    return invite_site(authority, register, site, valid_for=timedelta(hours=72), is_pre_approved=pre, now=now)


def request_of(invitation: Invitation, identity: Ed25519PrivateKey | None = None) -> EnrolmentRequest:
    """A request with fresh keys."""
    signing_request = certificates.signing_request(certificates.new_tls_key())
    return enrolment_request(invitation, signing_request, identity or Ed25519PrivateKey.generate())


def test_a_person_approves_and_the_site_fetches(
    authority: Authority, register: Register, now: datetime, tmp_path: Path
) -> None:
    """Pending until the fingerprint that the site reads is typed in; then the certificate fits the site's keys."""
    invitation = invite(authority, register, now, pre=False)
    keys = SiteKeys.create(tmp_path / "site")
    request = enrolment_request(invitation, keys.signing_request(), keys.identity_key())

    pending = handle_request(authority, register, request, now)
    assert pending == Pending(keys.identity_fingerprint(), MARY)
    assert handle_request(authority, register, request, now) == pending
    register.approve(MARY, keys.identity_fingerprint(), now)
    answer = handle_request(authority, register, request, now)

    assert isinstance(answer, Issued)
    keys.install(answer.chain_pem, invitation.root_pem, site=MARY, federation="heart", now=now)
    assert register.is_accepted(MARY, certificates.certificate_sha256(keys.leaf()))


def test_a_lost_reply_does_not_burn_the_site(authority: Authority, register: Register, now: datetime) -> None:
    """The same request, and a new signing request for the same keys, get the very same certificate."""
    invitation = invite(authority, register, now)
    key, identity = certificates.new_tls_key(), Ed25519PrivateKey.generate()
    request = enrolment_request(invitation, certificates.signing_request(key), identity)
    again = enrolment_request(invitation, certificates.signing_request(key), identity)

    answers = {
        handle_request(authority, register, each, now + timedelta(days=at))
        for at, each in enumerate((request, request, again))
    }

    assert len(answers) == 1
    with pytest.raises(RefusedError):
        handle_request(authority, register, request_of(invitation), now)
    with pytest.raises(RefusedError):
        handle_request(authority, register, request_of(invitation, identity), now)


def test_each_proof_is_needed(authority: Authority, register: Register, now: datetime) -> None:
    """A changed request, another identity key, another token and another federation are refused, and the
    token stays good.
    """
    invitation, other = invite(authority, register, now), invite(authority, register, now, site=SiteName("st-luke"))
    good, stranger = request_of(invitation), request_of(invitation)
    identity = Ed25519PrivateKey.generate()

    for hostile in (
        dataclasses.replace(good, signing_request=stranger.signing_request),
        dataclasses.replace(good, identity_key=stranger.identity_key),
        dataclasses.replace(good, identity_key=bytes(32)),
        dataclasses.replace(good, token=other.token),
        dataclasses.replace(good, signature=bytes(64)),
        dataclasses.replace(good, signature=sign(identity, "renewal", b"x")),
        dataclasses.replace(good, signing_request=b"nonsense"),
        request_of(dataclasses.replace(invitation, federation=FederationName("lung"))),
    ):
        with pytest.raises(RefusedError):
            handle_request(authority, register, hostile, now)
    assert isinstance(handle_request(authority, register, good, now), Issued)
    assert invitation.token not in repr(good).encode()


def test_a_site_that_enrols_again_with_other_keys_is_told_that_it_was_a_member(
    authority: Authority, register: Register, now: datetime
) -> None:
    """It may have lost its record of what it has sent. A repeated request gets the same answer."""
    first = request_of(invite(authority, register, now))
    answers = [handle_request(authority, register, first, now) for _ in range(2)]
    register.revoke(MARY, now)
    again = request_of(invite(authority, register, now))
    answers += [handle_request(authority, register, again, now) for _ in range(2)]

    assert [isinstance(answer, Issued) and answer.was_member for answer in answers] == [False, False, True, True]


def test_a_member_renews_with_its_identity_key(
    authority: Authority, register: Register, now: datetime, tmp_path: Path
) -> None:
    """Also after a long holiday; a replay brings the same certificate, and strangers and the revoked get none."""
    invitation, keys = invite(authority, register, now), SiteKeys.create(tmp_path / "site")
    first = handle_request(
        authority, register, enrolment_request(invitation, keys.signing_request(), keys.identity_key()), now
    )
    assert isinstance(first, Issued)
    keys.install(first.chain_pem, invitation.root_pem, site=MARY, federation="heart", now=now)
    later = now + timedelta(days=200)
    old_leaf = keys.leaf()

    request = renewal_request(HEART, MARY, keys.next_signing_request(), keys.identity_key())
    renewed = handle_renewal(authority, register, request, later)
    assert handle_renewal(authority, register, request, later) == renewed
    keys.install_next(renewed.chain_pem, site=MARY, federation="heart", now=later)

    leaf = SiteKeys.load(keys.directory).leaf()
    assert leaf.public_key() != old_leaf.public_key()
    assert verified_leaf(renewed.chain_pem, authority.root_pem(), later) == leaf
    register.confirm(MARY, certificates.certificate_sha256(leaf))
    assert not register.is_accepted(MARY, certificates.certificate_sha256(old_leaf))
    stranger = renewal_request(HEART, MARY, request.signing_request, Ed25519PrivateKey.generate())
    for hostile in (stranger, dataclasses.replace(request, site="st-luke"), dataclasses.replace(request, site="../x")):
        with pytest.raises(RefusedError):
            handle_renewal(authority, register, hostile, later)
    register.revoke(MARY, later)
    with pytest.raises(RefusedError):
        handle_renewal(authority, register, request, later)
