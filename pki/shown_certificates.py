"""What a site's network process shows and trusts, as another process of the site sees it: certificates only.

It is read from what came over a socket or from files, and decides nothing. No key is part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509

from pki import certificates
from pki.certificate_chain import certificates_in, verified_leaf
from pki.identity import identify_site
from pki.names import FederationName, SiteName, site_name
from protos.errors import RefusedError


@dataclass(frozen=True, kw_only=True)
class ShownCertificates:
    """Chains are PEM, leaf first, and empty if there is none.

    Attributes:
        chain: in force.
        roots: that are trusted.
        previous: the chain before the last renewal, until the new one has worked.
        staged_chain: of the hospital's own authority, which waits for the coordinator to take it.
        staged_request: the signing request (PEM) for its key.
    """

    chain: bytes
    roots: bytes
    previous: bytes = b""
    staged_chain: bytes = b""
    staged_request: bytes = b""

    @property
    def is_enrolled(self) -> bool:
        """Whether there are a certificate and a root."""
        return bool(self.chain and self.roots)

    def leaf(self) -> x509.Certificate:
        """The site's present certificate; a RefusedError where it cannot be read."""
        return certificates_in(self.chain)[0]

    def certificate_sha256(self) -> str:
        """The SHA-256 of the present certificate, 64 hexadecimal digits."""
        return certificates.certificate_sha256(self.leaf())

    def previous_sha256(self) -> str:
        """The SHA-256 of the certificate before the last renewal."""
        return sha256_of_chain(self.previous)

    def expiry(self) -> datetime:
        """When the present certificate ends, aware."""
        return self.leaf().not_valid_after_utc

    def federation(self) -> str:
        """The federation that the present certificate names; a RefusedError where it names none."""
        return federation_of(self.leaf())

    def is_renewal_due(self, now: datetime) -> bool:
        """Whether the present certificate has reached the day from which it is renewed."""
        return certificates.is_renewal_due(self.leaf(), now)

    def is_of_own_authority(self) -> bool:
        """Whether the present certificate is of the hospital's own authority."""
        return not certificates.is_issuing(certificates_in(self.chain)[-1], FederationName(self.federation()))


def federation_of(leaf: x509.Certificate) -> str:
    """The federation that a site's certificate names; a RefusedError where it names none."""
    return _uri_parts(leaf)[2]


def site_of(leaf: x509.Certificate) -> SiteName:
    """The site that a site's certificate names; a RefusedError where it names none."""
    return site_name(_uri_parts(leaf)[4])


def _uri_parts(leaf: x509.Certificate) -> list[str]:
    """`spiffe:`, nothing, the federation, `site`, the site."""
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        parts: list[str] = names.get_values_for_type(x509.UniformResourceIdentifier)[0].split("/")
        if len(parts) != 5:
            raise ValueError("a URI of another shape")
    except Exception as cause:  # a missing, repeated or unreadable extension, each its own kind
        raise _refused("it names no site of a federation") from cause
    return parts


def checked_leaf(
    chain_pem: bytes, root_pem: bytes, request_pem: bytes, *, site: SiteName, federation: str, now: datetime
) -> x509.Certificate:
    """The leaf of a chain that is for this site, for the key of this signing request and under this root.

    Raises:
        RefusedError: it is not.
    """
    leaf = verified_leaf(chain_pem, root_pem, now)
    identity = identify_site(certificates.certificate_pem(leaf), federation, now)
    if identity.name != site or leaf.public_key() != certificates.requested_key(request_pem):
        raise _refused("it is for another key or another site")
    return leaf


def sha256_of_chain(chain_pem: bytes) -> str:
    """The SHA-256 of a chain's leaf, 64 hexadecimal digits."""
    return certificates.certificate_sha256(certificates_in(chain_pem)[0])


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"A certificate was refused: {reason}.",
        consequence="It was not stored, and the keys on this computer are unchanged.",
        remedy="Ask the federation office for a new invitation, and mention this message.",
    )
