"""Reads the certificates that a site's agent uses, for the site's other processes. No key is read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from pki import certificates
from pki.certificate_chain import certificates_in, verified_leaf
from pki.identity import identify_site
from pki.names import SiteName, site_name
from protos.errors import RefusedError


@dataclass(frozen=True, kw_only=True)
class ShownCertificates:
    """The TLS certificates of a site's agent. Chains are PEM, leaf first. A missing chain is empty.

    Attributes:
        previous: the chain before the last renewal, until the new one has worked.
    """

    chain: bytes
    root: bytes
    previous: bytes = b""

    @property
    def is_enrolled(self) -> bool:
        """Return whether the site's certificate and the trusted root certificate exist."""
        return bool(self.chain and self.root)

    def leaf(self) -> x509.Certificate:
        """Return the site's current certificate. Raises RefusedError if it cannot be read."""
        return certificates_in(self.chain)[0]

    def certificate_sha256(self) -> str:
        """Return the SHA-256 of the current certificate, 64 hexadecimal digits."""
        return certificates.certificate_sha256(self.leaf())

    def previous_sha256(self) -> str:
        """Return the SHA-256 of the certificate before the last renewal."""
        return sha256_of_chain(self.previous)

    def expiry(self) -> datetime:
        """Return the time at which the current certificate expires, with a time zone."""
        return self.leaf().not_valid_after_utc

    def federation(self) -> str:
        """Return the federation that the current certificate names. Raises RefusedError if it names no federation."""
        return federation_of(self.leaf())

    def is_renewal_due(self, now: datetime) -> bool:
        """Return whether the current certificate has reached its renewal day."""
        return certificates.is_renewal_due(self.leaf(), now)


def federation_of(leaf: x509.Certificate) -> str:
    """Return the federation that a site's certificate names. Raises RefusedError if it names no federation."""
    return _uri_parts(leaf)[2]


def site_of(leaf: x509.Certificate) -> SiteName:
    """Return the site that a certificate names. Raises RefusedError if the certificate names no site."""
    return site_name(_uri_parts(leaf)[4])


def _uri_parts(leaf: x509.Certificate) -> list[str]:
    """Split the URI in a certificate at each slash: `spiffe:`, an empty part, the federation, `site`, the site."""
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        parts: list[str] = names.get_values_for_type(x509.UniformResourceIdentifier)[0].split("/")
        if len(parts) != 5:
            raise ValueError("a URI of another shape")
    except Exception as cause:  # the extension is missing, repeated or unreadable
        raise _refused("it names no site of a federation") from cause
    return parts


def checked_leaf(
    chain_pem: bytes, root_pem: bytes, key: ec.EllipticCurvePublicKey, *, site: SiteName, federation: str, now: datetime
) -> x509.Certificate:
    """Return the leaf certificate of a chain after checking that it is for this site and key, under this root.

    Raises:
        RefusedError: the leaf is for another site or key, or not under this root.
    """
    leaf = verified_leaf(chain_pem, root_pem, now)
    identity = identify_site(certificates.certificate_pem(leaf), federation, now)
    if identity.name != site or leaf.public_key() != key:
        raise _refused("it is for another key or another site")
    return leaf


def sha256_of_chain(chain_pem: bytes) -> str:
    """Return the SHA-256 of the leaf certificate in a chain, 64 hexadecimal digits."""
    return certificates.certificate_sha256(certificates_in(chain_pem)[0])


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"A certificate was refused: {reason}.",
        consequence="The certificate was not stored, and the keys on this computer are unchanged.",
        remedy="Ask the federation office for a new invitation, and mention this message.",
    )
