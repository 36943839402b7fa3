"""Renews this site's certificate: signs the request for a new one, and checks and records the coordinator's reply.

Here the gate signs only that this site of this federation requests a certificate for a signing request. A certificate
is verified and recorded before it is used.
"""

from __future__ import annotations

from datetime import datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.audit_log import AuditLog
from pki import enrolment_decisions
from pki.certificate_chain import ShownCertificates, checked_leaf, sha256_of_chain
from pki.certificates import requested_key
from pki.names import SiteName, federation_name
from protos.wire.upkeep_messages import RenewalAnswered, RenewalAsked
from site_agent.gate.site_certificates import SiteCertificates


async def renewal_of(certificates: SiteCertificates, site: str, identity_key: Ed25519PrivateKey) -> RenewalAsked:
    """Return a request for this site's next certificate, with a new key. The site's identity key signs it."""
    federation = federation_name(certificates.shown.federation())
    request = await certificates.make("next")
    return enrolment_decisions.renewal_request(federation, SiteName(site), request, identity_key)


def write_request(audit: AuditLog, shown: ShownCertificates) -> None:
    """Record a request for a certificate in the audit log, before this request is sent."""
    audit.write("renewal_requested", certificate_sha256=sha256_of_chain(shown.chain), ends=shown.expiry().isoformat())


async def install_renewed(
    certificates: SiteCertificates,
    asked: RenewalAsked,
    answer: RenewalAnswered,
    site: str,
    now: datetime,
    audit: AuditLog,
) -> None:
    """Start to use a renewed certificate, after the audit log has recorded it.

    Raises:
        RefusedError: the certificate is not for this site's key.
        StoreError: the change cannot be recorded; key and certificate are unchanged.
    """
    shown, key = certificates.shown, requested_key(asked.signing_request)
    federation = shown.federation()
    checked_leaf(answer.chain, shown.root, key, site=SiteName(site), federation=federation, now=now)
    audit.write("certificate_renewed", certificate_sha256=sha256_of_chain(answer.chain))
    await certificates.install("next", answer.chain, shown.root, site=site, federation=federation)
