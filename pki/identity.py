"""Reads the site's name in a certificate, or refuses the certificate with a reason.

TLS has already checked that the chain ends at the federation's root. This module checks the rest: exactly one name of
exactly one spelling, exactly one usage, P-256, valid now, and no extension that is not listed here. The register
decides on every call whether the certificate is still accepted (`Register.is_accepted`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from host.clock_words import outside
from pki.certificates import certificate_sha256, is_p256
from pki.names import SiteName, is_name, site_uri
from protos.errors import RefusedError

LARGEST_BYTES = 16 * 1024

_KNOWN_EXTENSIONS = (
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


def identify_site(leaf: bytes, federation: str, now: datetime) -> SiteIdentity:
    """Return the identity of the site to which a leaf certificate belongs.

    Args:
        leaf: one certificate, PEM or DER, whose chain TLS has checked.
        now: an aware time.

    Raises:
        RefusedError: the certificate is not exactly that of a site of this federation, valid now.
    """
    certificate = _load(leaf)
    names = _names(certificate)
    if len(names) != 1:
        raise _refused(f"it has {len(names)} names, but a site's certificate must have exactly one name")
    name = names[0].value if isinstance(names[0], x509.UniformResourceIdentifier) else ""
    site = name.rpartition("/")[2]
    if not is_name(site) or name != site_uri(federation, site):
        raise _refused("its name is not the name of a site of this federation")
    _check_profile(certificate, now)
    return SiteIdentity(name=SiteName(site), certificate_sha256=certificate_sha256(certificate))


def _load(leaf: bytes) -> x509.Certificate:
    if len(leaf) > LARGEST_BYTES:
        raise _refused(f"it has more than {LARGEST_BYTES} bytes")
    try:
        if not leaf.lstrip().startswith(b"-----BEGIN"):
            return x509.load_der_x509_certificate(leaf)
        found = x509.load_pem_x509_certificates(leaf)
    except Exception as cause:  # the parser of hostile bytes raises several kinds of errors
        raise _refused("it cannot be read") from cause
    if len(found) != 1:
        raise _refused(f"{len(found)} certificates arrived instead of one")
    return found[0]


def _names(certificate: x509.Certificate) -> list[x509.GeneralName]:
    try:
        extensions = list(certificate.extensions)
    except Exception as cause:  # an extension is repeated or unreadable
        raise _refused("its extensions cannot be read") from cause
    if not all(isinstance(one.value, _KNOWN_EXTENSIONS) for one in extensions):
        raise _refused("it has an extension that certificates of a federation do not have")
    for extension in extensions:
        if isinstance(extension.value, x509.SubjectAlternativeName):
            return list(extension.value)
    return []


def _check_profile(certificate: x509.Certificate, now: datetime) -> None:
    try:
        key = certificate.public_key()
        extensions = certificate.extensions
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
    if fault := outside(certificate.not_valid_before_utc, certificate.not_valid_after_utc, now):
        raise _refused(f"it is not valid now. {fault.rstrip('.')}")


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"A certificate was refused: {reason}.",
        consequence="Nothing was accepted from this peer and nothing was sent to it.",
        remedy="Check the certificate with `pki inspect FILE`, and ask the federation office for the right "
        "certificate.",
    )
