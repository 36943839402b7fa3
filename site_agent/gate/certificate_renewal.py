"""Renews this site's certificate: signs the request for a new one, and checks and records the coordinator's reply.

Here the gate signs only two kinds of statement: that this site requests a certificate for a signing request
(`renewal`), and that a certificate of the hospital's own authority should be accepted (`own certificate`). Both name
the federation and the site. A certificate is verified and recorded before it is used.
"""

from __future__ import annotations

from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.own_log import AuditLog
from pki import enrolment_decisions
from pki.certificate_chain import certificates_in, trusted_after
from pki.certificates import certificate_sha256, requested_key
from pki.enrolment_decisions import own_certificate_request
from pki.names import SiteName, federation_name
from pki.shown_certificates import ShownCertificates, checked_leaf, sha256_of_chain
from protos.wire.upkeep_messages import RenewalAnswered, RenewalAsked
from site_agent.gate.site_certificates import SiteCertificates


async def renewal_due(
    certificates: SiteCertificates, site: str, identity_key: Ed25519PrivateKey, now: datetime, *, is_own_refused: bool
) -> RenewalAsked | None:
    """Return the request for a new certificate if it is due now, otherwise None. A waiting certificate has priority.

    `is_own_refused`: whether the coordinator has refused the waiting certificate.
    """
    shown = certificates.shown
    if shown.staged_chain and not is_own_refused:
        return own_certificate_of(shown, site, identity_key)
    if shown.is_of_own_authority() or not shown.is_renewal_due(now):
        return None
    return await renewal_of(certificates, site, identity_key)


async def renewal_of(certificates: SiteCertificates, site: str, identity_key: Ed25519PrivateKey) -> RenewalAsked:
    """Return a request for this site's next certificate, with a new key. The site's identity key signs it."""
    federation = federation_name(certificates.shown.federation())
    request = await certificates.make("next")
    return enrolment_decisions.renewal_request(federation, SiteName(site), request, identity_key)


def own_certificate_of(shown: ShownCertificates, site: str, identity_key: Ed25519PrivateKey) -> RenewalAsked:
    """Return a request that the coordinator accepts the certificate which the hospital's own authority issued."""
    federation, name = federation_name(shown.federation()), SiteName(site)
    return own_certificate_request(federation, name, shown.staged_request, shown.staged_chain, identity_key)


def write_request(audit: AuditLog, shown: ShownCertificates, asked: RenewalAsked) -> None:
    """Record a request for a certificate in the audit log, before this request is sent."""
    if asked.chain:
        audit.write("own_certificate_shown", certificate_sha256=sha256_of_chain(asked.chain))
    else:
        ends = shown.expiry().isoformat()
        audit.write("renewal_requested", certificate_sha256=shown.certificate_sha256(), ends=ends)


async def trust_roots(certificates: SiteCertificates, roots: bytes, now: datetime, audit: AuditLog) -> None:
    """Trust a new root certificate that the trusted root has signed, after the audit log has recorded this."""
    if _record_roots(certificates, roots, now, audit):
        await certificates.trust(roots)


async def install_renewed(
    certificates: SiteCertificates,
    asked: RenewalAsked,
    answer: RenewalAnswered,
    site: str,
    now: datetime,
    audit: AuditLog,
) -> None:
    """Start to use a renewed certificate and its root certificates, after the audit log has recorded them.

    Raises:
        RefusedError: the certificate is not for this site's key.
        AuditError: the change cannot be recorded; key and certificate are unchanged.
    """
    shown = certificates.shown
    federation, name = shown.federation(), SiteName(site)
    is_own = bool(asked.chain) and certificates_in(asked.chain)[0] == certificates_in(answer.chain)[0]
    after = trusted_after(shown.roots, answer.roots, now)
    if not is_own:
        checked_leaf(
            answer.chain, after, requested_key(asked.signing_request), site=name, federation=federation, now=now
        )
    _record_roots(certificates, answer.roots, now, audit)
    audit.write("certificate_renewed", certificate_sha256=sha256_of_chain(answer.chain))
    key = "own" if is_own else "next"
    await certificates.install(key, answer.chain, answer.roots, site=site, federation=federation)


def _record_roots(certificates: SiteCertificates, told: bytes, now: datetime, audit: AuditLog) -> bool:
    shown = certificates.shown
    after = trusted_after(shown.roots, told, now)
    if after == shown.roots:
        return False
    audit.write("trusted_roots_changed", roots=[certificate_sha256(root) for root in certificates_in(after)])
    certificates.remember(shown.federation(), after)
    return True
