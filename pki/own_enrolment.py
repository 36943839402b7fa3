"""Accepts a certificate that a hospital's own certificate authority issued for the hospital's site.

A site proves that it has the identity key (which signs federation, site, request and chain) and the TLS key (which
signs the request), and that its registered authority issued the certificate for that TLS key. The federation's
certificate stays valid until the site has connected with one of its own authority. Then the federation issues it no
certificate until the authority is removed.
"""

from __future__ import annotations

import hashlib
from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pki.authority import Authority
from pki.certificate_chain import certificates_in
from pki.certificates import certificate_sha256, public_key_sha256, requested_key
from pki.enrolment_decisions import Issued
from pki.identity_key import sign, verify
from pki.names import FederationName, SiteName, is_name
from pki.own_authority import OwnCertificate, identify_own
from pki.own_register import OwnAuthorities
from pki.register import IssuedCertificate, Register
from protos.errors import RefusedError
from protos.wire.upkeep_messages import RenewalAsked

OWN_CERTIFICATE_LABEL = "own certificate"


def own_certificate_request(
    federation: FederationName,
    site: SiteName,
    signing_request: bytes,
    chain_pem: bytes,
    identity_key: Ed25519PrivateKey,
) -> RenewalAsked:
    """Return a site's signed request to accept a certificate that its hospital's own authority issued."""
    signature = sign(identity_key, OWN_CERTIFICATE_LABEL, *_parts(federation, site, signing_request, chain_pem))
    return RenewalAsked(site, signing_request, signature, chain_pem)


def handle_own_certificate(authority: Authority, register: Register, request: RenewalAsked, now: datetime) -> Issued:
    """Accept a certificate of a site's own authority in addition to the current certificate.

    A repeated request has the same result.

    Raises:
        ForeignNameError: a hospital's authority has issued the certificate in the name of another site.
        RefusedError: the site is no member, the proof is invalid, or its own authority has not issued the certificate.
    """
    if not is_name(request.site):
        raise _refused("its site name is not valid")
    site, federation = SiteName(request.site), authority.federation
    key = requested_key(request.signing_request)
    parts = _parts(federation, site, request.signing_request, request.chain)
    verify(register.identity_key(site), request.signature, OWN_CERTIFICATE_LABEL, *parts)
    authorities = OwnAuthorities(register).valid(now)
    found = identify_own(certificates_in(request.chain), authorities, federation, now)
    if found is None:
        raise _refused(f"it was not issued by the authority that is registered for {site}")
    if found.identity.name != site:
        raise _refused(f"it is in the name of {found.identity.name}, and {site} asks")
    if found.leaf.public_key() != key:
        raise _refused("it is for another key than the request")
    return Issued(_accepted(register, found, public_key_sha256(key), now), site)


def _accepted(register: Register, found: OwnCertificate, tls_key_sha256: str, now: datetime) -> bytes:
    if register.chain_of(found.identity.name, tls_key_sha256) == found.chain_pem:
        return found.chain_pem  # a repeated request writes nothing
    issued = IssuedCertificate(found.identity.certificate_sha256, tls_key_sha256, found.chain_pem)
    kept = register.add_certificate(found.identity.name, issued, now, certificate_sha256(found.authority))
    if kept != issued.chain_pem:
        raise _refused("its key has another certificate already")
    return kept


def _parts(federation: str, site: str, signing_request: bytes, chain_pem: bytes) -> tuple[bytes, ...]:
    digests = (hashlib.sha256(part).digest() for part in (signing_request, chain_pem))
    return federation.encode(), site.encode(), *digests


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"A certificate of a site's own authority was refused: {reason}.",
        consequence="The accepted certificates are unchanged, and no data was sent.",
        remedy="Compare `pki own-authority list` at the office with the certificates that the hospital's authority "
        "has issued.",
    )
