"""Decides about requests for enrolment and renewal. This file sends no messages.

A site proves that it has three things: the token, the TLS key (which signs the signing request), and the identity key
(which signs the request, the token's hash and the federation). So a token that was read on its way cannot be used with
a changed request.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import assert_never

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pki.authority import Authority
from pki.certificates import public_key_sha256, requested_key
from pki.identity_key import public_bytes, sign, verify
from pki.invitation import Invitation, new_token, token_sha256
from pki.names import FederationName, SiteName, is_name
from pki.register import Redemption, Register, SiteRecord, SiteState
from protos.errors import RefusedError
from protos.fingerprints import fingerprint
from protos.wire.upkeep_messages import EnrolmentRequest, RenewalAsked

ENROLMENT_LABEL = "enrolment"
RENEWAL_LABEL = "renewal"


@dataclass(frozen=True)
class Issued:
    """The decision to issue a certificate: the leaf and issuing certificates as PEM, and the site's name.

    `was_member` is whether the site had a certificate for another key before it enrolled.
    """

    chain_pem: bytes
    site: SiteName
    was_member: bool = False


@dataclass(frozen=True)
class Pending:
    """The decision to wait until a person has compared the fingerprint of the site's identity key.

    The site sends the same request again.
    """

    fingerprint: str
    site: SiteName


def invite_site(
    authority: Authority,
    register: Register,
    site: SiteName,
    *,
    valid_for: timedelta,
    is_pre_approved: bool,
    now: datetime,
    output: Path | None = None,
) -> Invitation:
    """Create an invitation and record it in the register. An earlier invitation of this site becomes invalid.

    With `output` the invitation is first written to this new file. If that fails, the earlier invitation stays valid.
    """
    invitation = Invitation(
        federation=authority.federation,
        site=site,
        coordinator=authority.record.coordinator,
        enrolment=authority.record.enrolment,
        expires=(now + valid_for).replace(microsecond=0),
        root_pem=authority.root_pem(),
        token=new_token(),
    )
    if output is not None:
        invitation.save(output)
    sha256, expires = token_sha256(invitation.token), invitation.expires
    try:
        register.invite(site, sha256, expires=expires, is_pre_approved=is_pre_approved, now=now)
    except BaseException:
        if output is not None:
            output.unlink(missing_ok=True)  # the register does not have this invitation
        raise
    return invitation


def enrolment_request(
    invitation: Invitation, signing_request: bytes, identity_key: Ed25519PrivateKey
) -> EnrolmentRequest:
    """Return the enrolment request of a site with an invitation. The request can be sent several times."""
    parts = _enrolment_parts(invitation.federation, invitation.token, signing_request)
    return EnrolmentRequest(
        token=invitation.token,
        signing_request=signing_request,
        identity_key=public_bytes(identity_key),
        signature=sign(identity_key, ENROLMENT_LABEL, *parts),
    )


def renewal_request(
    federation: FederationName, site: SiteName, signing_request: bytes, identity_key: Ed25519PrivateKey
) -> RenewalAsked:
    """Return a site's signed request for its next certificate. The current certificate may already have expired."""
    signature = sign(identity_key, RENEWAL_LABEL, *_renewal_parts(federation, site, signing_request))
    return RenewalAsked(site, signing_request, signature)


def handle_request(
    authority: Authority, register: Register, request: EnrolmentRequest, now: datetime
) -> Issued | Pending:
    """Decide about a request for enrolment. A repeated request has the same result.

    Raises:
        RefusedError: the token, the signing request or the signature is invalid, or the register refuses.
    """
    key = requested_key(request.signing_request)
    parts = _enrolment_parts(authority.federation, request.token, request.signing_request)
    verify(request.identity_key, request.signature, ENROLMENT_LABEL, *parts)
    asked = Redemption(
        token_sha256=token_sha256(request.token),
        identity_key=request.identity_key,
        tls_key_sha256=public_key_sha256(key),
        signing_request=request.signing_request,
    )
    site: SiteRecord = register.request(asked, now)
    match site.state:
        case SiteState.REQUESTED:
            return Pending(fingerprint(request.identity_key), site.name)
        case SiteState.APPROVED:
            chain = register.activate(site.name, authority.issue_site(key, site.name, now), now)
            return Issued(chain, site.name, register.had_other_key(site.name, asked.tls_key_sha256))
        case SiteState.ACTIVE:
            if (kept := register.chain_of(site.name, asked.tls_key_sha256)) is None:
                raise _refused("the certificate for this key has since been replaced")
            return Issued(kept, site.name, register.had_other_key(site.name, asked.tls_key_sha256))
        case SiteState.INVITED | SiteState.REVOKED:
            raise _refused(f"site {site.name} is {site.state}")
        case _:
            assert_never(site.state)


def handle_renewal(authority: Authority, register: Register, request: RenewalAsked, now: datetime) -> Issued:
    """Issue a site's next certificate. The previous certificate is accepted until `confirm` is called.

    The identity key's signature is the proof, so both ports may offer this. A replayed request yields only the
    certificate that was issued for it, because a TLS key is certified once.

    Raises:
        RefusedError: the site is no member, or its identity key has not signed the request.
    """
    if not is_name(request.site):
        raise _refused("its site name is not valid")
    site = SiteName(request.site)
    key = requested_key(request.signing_request)
    parts = _renewal_parts(authority.federation, site, request.signing_request)
    verify(register.identity_key(site), request.signature, RENEWAL_LABEL, *parts)
    if (kept := register.chain_of(site, public_key_sha256(key))) is not None:
        return Issued(kept, site)
    return Issued(register.add_certificate(site, authority.issue_site(key, site, now), now), site)


def _enrolment_parts(federation: str, token: bytes, signing_request: bytes) -> tuple[bytes, ...]:
    return federation.encode(), bytes.fromhex(token_sha256(token)), hashlib.sha256(signing_request).digest()


def _renewal_parts(federation: str, site: str, signing_request: bytes) -> tuple[bytes, ...]:
    return federation.encode(), site.encode(), hashlib.sha256(signing_request).digest()


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"A request for a certificate was refused: {reason}.",
        consequence="No certificate was issued and no data was sent.",
        remedy="Ask the federation office for a new invitation.",
    )
