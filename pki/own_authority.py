"""Checks a hospital's own certificate authority, and the certificates that this authority issued.

TLS at the coordinator trusts such an authority like the federation's root, so this module decides on every call what it
may certify. The rules:

* it is accepted for exactly one site. A certificate that names another site is refused and recorded;
* it never has the key or the name of the federation's authorities or of another site's. TLS finds an issuer by its
  name, so an authority named like the federation's root would block every other site;
* a site's certificate below it has the same content as the federation's: client usage only, one URI and no other name;
* no function reads a clock: `now` is an argument, and is an aware time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID

from host.clock_words import outside
from pki.certificate_chain import certificates_in, has_signed
from pki.certificates import certificate_pem, certificate_sha256
from pki.identity import SiteIdentity, identify_site
from pki.names import FederationName, SiteName
from protos.errors import RefusedError
from protos.fingerprints import grouped

MOST_BETWEEN: Final = 3  # authorities between the site's certificate and the one that is registered
LONGEST_LIFETIME: Final = timedelta(days=398)  # of a site's certificate; a hospital's people issue it by hand
SMALLEST_RSA_BITS: Final = 3072  # about as strong as P-256
WARNING_DAYS: Final = 30.0  # days of notice for certificates that people must replace
AUTHORITY_WARNING_DAYS: Final = 90.0  # before the authority itself ends
_FINGERPRINT_BYTES: Final = 20
Kin: TypeAlias = Iterable[tuple[str, x509.Certificate]]  # authorities, each with its title
_UNDERSTOOD: Final = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.NameConstraints)
_CURVES: Final = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_HASHES: Final = (hashes.SHA256, hashes.SHA384, hashes.SHA512)


@dataclass(frozen=True, slots=True)
class OwnAuthority:
    """A hospital's certificate authority, and the one site for which the authority is accepted."""

    site: SiteName
    certificate: x509.Certificate

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of a hospital's authority certificate, 64 lowercase hexadecimal digits."""
        return certificate_sha256(self.certificate)

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the certificate authority. Two people read this fingerprint aloud to each other."""
        return authority_fingerprint(self.certificate)


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """A site's certificate from its hospital's own authority. `chain_pem` is leaf, intermediates, authority."""

    identity: SiteIdentity
    leaf: x509.Certificate
    authority: x509.Certificate
    chain_pem: bytes


class ForeignNameError(RefusedError):
    """Raised if a hospital's authority has issued a certificate in the name of another site."""

    def __init__(self, authority: OwnAuthority, identity: SiteIdentity) -> None:
        super().__init__(
            what=f"The authority of {authority.site} has issued a certificate for another name: {identity.name}.",
            consequence="The certificate was refused. Nothing was sent.",
            remedy=f"Call the security officer of {authority.site}. `pki own-authority remove` ends the trust in this "
            "authority.",
        )
        self.site, self.named, self.certificate_sha256 = authority.site, identity.name, identity.certificate_sha256


def authority_fingerprint(certificate: x509.Certificate) -> str:
    """Return the fingerprint of an authority: 160 bits of its certificate's SHA-256, 8 groups of 4 characters."""
    return grouped(bytes.fromhex(certificate_sha256(certificate))[:_FINGERPRINT_BYTES])


def own_authority_in(pem: bytes, kin: Kin, federation: FederationName, now: datetime) -> x509.Certificate:
    """Return the only certificate in a PEM, after checking that it can be a hospital's own authority for its site.

    Args:
        kin: the authorities that are already accepted, each with its owner: the federation's, and those of all sites.

    Raises:
        RefusedError: the PEM is not exactly one authority that is valid, strong and different from all others.
    """
    found = certificates_in(pem)
    if len(found) != 1:
        raise _refused(f"the file has {len(found)} certificates, but must have only the authority's certificate")
    (certificate,) = found
    if not list(certificate.subject):
        raise _refused("it has no name")
    _check_authority(certificate, 0, federation, now)
    for whose, other in kin:
        if certificate.public_key() == other.public_key():
            raise _refused(f"its key is that of {whose}")
        if certificate.subject == other.subject:
            raise _refused(f"it has the name of {whose}")
    return certificate


def own_certificate_in(
    chain: Sequence[x509.Certificate], anchors: Sequence[x509.Certificate], federation: FederationName, now: datetime
) -> OwnCertificate | None:
    """Return a site's certificate if one of these authorities issued it directly or indirectly, otherwise None.

    Args:
        chain: the leaf first, then the intermediate authorities in any order. Certificates outside the path are
            ignored.

    Raises:
        RefusedError: the leaf is below an authority but is no correct certificate of a site.
    """
    path = _path(chain, anchors)
    if path is None:
        return None
    leaf, *above = path
    for place, authority in enumerate(above):
        _check_authority(authority, place, federation, now)
    for lower in path[:-1]:
        _check_signature(lower)
    identity = identify_site(certificate_pem(leaf), federation, now, is_of_own_authority=True)
    if leaf.not_valid_after_utc - leaf.not_valid_before_utc > LONGEST_LIFETIME:
        raise _refused(f"it is valid for more than {LONGEST_LIFETIME.days} days")
    return OwnCertificate(identity, leaf, above[-1], b"".join(certificate_pem(one) for one in path))


def identify_own(
    chain: Sequence[x509.Certificate], authorities: Sequence[OwnAuthority], federation: FederationName, now: datetime
) -> OwnCertificate | None:
    """Return the identity of a site whose certificate a hospital's own authority issued, or None for any other issuer.

    Raises:
        ForeignNameError: the authority is accepted for another site than the one in the certificate.
        RefusedError: the leaf is no correct certificate of a site.
    """
    found = own_certificate_in(chain, [one.certificate for one in authorities], federation, now)
    if found is not None:
        authority = next(one for one in authorities if one.certificate == found.authority)
        if authority.site != found.identity.name:
            raise ForeignNameError(authority, found.identity)
    return found


def _path(chain: Sequence[x509.Certificate], anchors: Sequence[x509.Certificate]) -> list[x509.Certificate] | None:
    """Return the certificates from the leaf to the nearest anchor. Each key has signed the certificate before it."""
    path, between = [chain[0]], chain[1:]
    while len(path) <= MOST_BETWEEN + 1:
        for anchor in anchors:
            if has_signed(anchor, path[-1]):
                return [*path, anchor]
        above = next((one for one in between if one not in path and has_signed(one, path[-1])), None)
        if above is None:
            return None
        path.append(above)
    return None


def _check_authority(certificate: x509.Certificate, below: int, federation: FederationName, now: datetime) -> None:
    """Check the certificate of an authority that has `below` other authorities between itself and the leaf."""
    try:
        extensions = list(certificate.extensions)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    except Exception as cause:  # an extension is missing, repeated or unreadable
        raise _refused("an authority does not state what it may sign") from cause
    if not constraints.ca or not usage.key_cert_sign:
        raise _refused("it is not the certificate of an authority")
    if constraints.path_length is not None and constraints.path_length < below:
        raise _refused("an authority may not have another authority below it")
    if any(one.critical and not isinstance(one.value, _UNDERSTOOD) for one in extensions):
        raise _refused("an authority's certificate has a critical extension that this program does not support")
    if not all(_lets_sites_through(one.value, federation) for one in extensions):
        raise _refused("an authority may not issue certificates of sites of this federation")
    if fault := outside(certificate.not_valid_before_utc, certificate.not_valid_after_utc, now):
        raise _refused(f"an authority is not valid now. {fault.rstrip('.')}")
    if not _is_strong(certificate):
        raise _refused(
            f"an authority's key is neither Ed25519, nor P-256, P-384 or P-521, nor RSA of {SMALLEST_RSA_BITS} bits"
        )


def _lets_sites_through(value: x509.ExtensionType, federation: FederationName) -> bool:
    match value:
        case x509.ExtendedKeyUsage():
            return ExtendedKeyUsageOID.CLIENT_AUTH in value
        case x509.NameConstraints():
            permitted, excluded = _hosts(value.permitted_subtrees), _hosts(value.excluded_subtrees)
            return (not permitted or federation in permitted) and federation not in excluded
        case _:
            return True


def _hosts(subtrees: Iterable[x509.GeneralName] | None) -> list[str]:
    return [name.value for name in subtrees or () if isinstance(name, x509.UniformResourceIdentifier)]


def _is_strong(certificate: x509.Certificate) -> bool:
    match certificate.public_key():
        case ec.EllipticCurvePublicKey() as key:
            return isinstance(key.curve, _CURVES)
        case rsa.RSAPublicKey() as key:
            return key.key_size >= SMALLEST_RSA_BITS
        case key:
            return isinstance(key, ed25519.Ed25519PublicKey)


def _check_signature(certificate: x509.Certificate) -> None:
    try:
        algorithm = certificate.signature_hash_algorithm
    except Exception as cause:  # the library does not know the algorithm
        raise _refused("a certificate is signed in a way that this program does not support") from cause
    if algorithm is not None and not isinstance(algorithm, _HASHES):  # Ed25519 has none of its own
        raise _refused(f"a certificate is signed over {algorithm.name}, which is no longer safe")


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"A certificate of a hospital's own authority was refused: {reason}.",
        consequence="Nothing was changed or accepted.",
        remedy="Ask the hospital's authority for a certificate as docs/security-officer.md describes, and check that "
        "certificate with `pki inspect FILE`.",
    )
