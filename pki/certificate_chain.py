"""Reads certificates that another computer sent: chains, the site's name in a leaf, and what a site's agent uses.

TLS checks a chain on every connection. Here it is checked before it is written to disk, in only one shape: leaf,
issuing authority, root. The verifier of the library `cryptography` refuses name constraints on URIs, which bind an
issuing authority to its federation, so the few checks are our own. A leaf has exactly one name of exactly one spelling,
exactly one usage, a P-256 key, and no extension that is not listed here. The register decides on every call whether the
certificate is still accepted (`Register.is_accepted`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from host.clock_words import COMPARE_CLOCK, outside
from pki import certificates
from pki.certificates import certificate_pem, certificate_sha256, is_p256
from pki.names import SiteName, is_name, site_uri
from protos.errors import RefusedError

LARGEST_BYTES: Final = 32 * 1024
_KNOWN_EXTENSIONS: Final = (
    x509.BasicConstraints,
    x509.KeyUsage,
    x509.ExtendedKeyUsage,
    x509.SubjectAlternativeName,
    x509.SubjectKeyIdentifier,
    x509.AuthorityKeyIdentifier,
)


@dataclass(frozen=True, slots=True)
class SiteIdentity:
    """The identity of a site, as proved by its certificate."""

    name: SiteName
    certificate_sha256: str


def certificates_in(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates in a PEM text, at least one. Raises RefusedError if the PEM cannot be read."""
    if len(pem) > LARGEST_BYTES:
        raise _refused(f"it has more than {LARGEST_BYTES} bytes")
    try:
        return list(_parsed(bytes(pem)))
    except Exception as cause:  # the parser of hostile bytes raises several kinds of errors
        raise _refused("it cannot be read") from cause


@lru_cache(maxsize=8)
def _parsed(pem: bytes) -> tuple[x509.Certificate, ...]:
    """Parse a PEM text. A site reads its own certificates each second, so the newest ones are kept."""
    found = x509.load_pem_x509_certificates(pem)
    # Names, keys and times are decoded when they are first read. Reading them here raises their errors here.
    for one in found:
        _ = one.subject, one.issuer, one.public_key(), one.not_valid_before_utc, one.not_valid_after_utc
    return tuple(found)


def verified_leaf(chain_pem: bytes, root_pem: bytes, now: datetime) -> x509.Certificate:
    """Return the leaf certificate of a chain (leaf, issuing authority) if the chain ends at this root and is valid now.

    Raises:
        RefusedError: the chain is wrong; the message gives the reason.
    """
    chain, roots = certificates_in(chain_pem), certificates_in(root_pem)
    if len(roots) != 1 or len(chain) != 2:
        raise _refused("it is not one leaf and one issuing authority under one root")
    (root,), (leaf, issuing) = roots, chain
    _check_authority(root, path_length=1)
    _check_authority(issuing, path_length=0)
    for lower, upper in ((root, root), (issuing, root), (leaf, issuing)):
        try:
            lower.verify_directly_issued_by(upper)
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError) as cause:
            raise _refused("one of its certificates is not signed by the next") from cause
        _check_time(lower, now)
    return leaf


def checked_leaf(
    chain_pem: bytes, root_pem: bytes, key: ec.EllipticCurvePublicKey, *, site: SiteName, federation: str, now: datetime
) -> x509.Certificate:
    """Return the leaf certificate of a chain after checking that it is for this site and key, under this root.

    Raises:
        RefusedError: the leaf is for another site or key, or not under this root.
    """
    leaf = verified_leaf(chain_pem, root_pem, now)
    if identify_site(certificate_pem(leaf), federation, now).name != site or leaf.public_key() != key:
        raise _refused("it is for another key or another site")
    return leaf


def identify_site(leaf: bytes, federation: str, now: datetime) -> SiteIdentity:
    """Return the identity of the site to which a leaf certificate (PEM) belongs. TLS has checked its chain.

    Raises:
        RefusedError: the certificate is not exactly that of a site of this federation, valid now.
    """
    found = certificates_in(leaf)
    if len(found) != 1:
        raise _refused(f"{len(found)} certificates arrived instead of one")
    (certificate,) = found
    names = _names(certificate)
    if len(names) != 1:
        raise _refused(f"it has {len(names)} names, but a site's certificate must have exactly one name")
    name = names[0].value if isinstance(names[0], x509.UniformResourceIdentifier) else ""
    site = name.rpartition("/")[2]
    if not is_name(site) or name != site_uri(federation, site):
        raise _refused("its name is not the name of a site of this federation")
    _check_profile(certificate, now)
    return SiteIdentity(name=SiteName(site), certificate_sha256=certificate_sha256(certificate))


def federation_of(leaf: x509.Certificate) -> str:
    """Return the federation that a site's certificate names. Raises RefusedError if it names no federation."""
    parts = [str(name.value).split("/") for name in _names(leaf)]  # spiffe: / / the federation / site / the site
    if len(parts) != 1 or len(parts[0]) != 5:
        raise _refused("it names no site of a federation")
    return parts[0][2]


def sha256_of_chain(chain_pem: bytes) -> str:
    """Return the SHA-256 of the leaf certificate in a chain, 64 hexadecimal digits."""
    return certificate_sha256(certificates_in(chain_pem)[0])


@dataclass(frozen=True, kw_only=True)
class ShownCertificates:
    """The TLS certificates of a site's agent, for its other processes. Chains are PEM, leaf first; missing is empty."""

    chain: bytes
    root: bytes

    @property
    def is_enrolled(self) -> bool:
        """Return whether the site's certificate and the trusted root certificate exist."""
        return bool(self.chain and self.root)

    def leaf(self) -> x509.Certificate:
        """Return the site's current certificate. Raises RefusedError if it cannot be read."""
        return certificates_in(self.chain)[0]

    def expiry(self) -> datetime:
        """Return the time at which the current certificate expires, with a time zone."""
        return self.leaf().not_valid_after_utc

    def federation(self) -> str:
        """Return the federation that the current certificate names. Raises RefusedError if it names no federation."""
        return federation_of(self.leaf())

    def is_renewal_due(self, now: datetime) -> bool:
        """Return whether the current certificate has reached its renewal day."""
        return certificates.is_renewal_due(self.leaf(), now)


def _names(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        extensions = list(certificate.extensions)
    except Exception as cause:  # an extension is repeated or unreadable
        raise _refused("its extensions cannot be read") from cause
    if not all(isinstance(one.value, _KNOWN_EXTENSIONS) for one in extensions):
        raise _refused("it has an extension that certificates of a federation do not have")
    return [name for one in extensions if isinstance(one.value, x509.SubjectAlternativeName) for name in one.value]


def _check_profile(certificate: x509.Certificate, now: datetime) -> None:
    try:
        key, extensions = certificate.public_key(), certificate.extensions
        constraints = extensions.get_extension_for_class(x509.BasicConstraints).value
        key_usage = extensions.get_extension_for_class(x509.KeyUsage).value
        usages = list(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except Exception as cause:  # an extension is missing, or the key is of an unknown kind
        raise _refused("it does not state its allowed use") from cause
    if not is_p256(key):
        raise _refused("its key is not a P-256 key")
    if constraints.ca or key_usage.key_cert_sign or not key_usage.digital_signature:
        raise _refused("it is the certificate of an authority or may not sign a connection")
    if usages != [ExtendedKeyUsageOID.CLIENT_AUTH]:
        raise _refused("it is not allowed for this side of the connection")
    _check_time(certificate, now)


def _check_authority(certificate: x509.Certificate, *, path_length: int) -> None:
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except Exception as cause:  # the extension is missing, repeated or unreadable
        raise _refused("an authority in it does not state what it may sign") from cause
    if not (constraints.ca and constraints.path_length == path_length and usage.key_cert_sign):
        raise _refused("an authority in it may not sign the certificate below it")


def _check_time(certificate: x509.Certificate, now: datetime) -> None:
    if fault := outside(certificate.not_valid_before_utc, certificate.not_valid_after_utc, now):
        raise _refused(f"it is not valid now. {fault.rstrip('.')}")


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"A certificate was refused: {reason}.",
        consequence="It was not accepted or stored. The keys on this computer are unchanged, and nothing was sent.",
        remedy=f"{COMPARE_CLOCK} If the clock is right, ask the federation office for the right certificate.",
    )
