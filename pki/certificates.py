"""Creates key pairs, signing requests, and every certificate of a federation.

root (P-256, 10 years) -> issuing (P-256, 3 years) -> leaves (P-256, 90 days). The rules:

* only the public key of a signing request is used; the names inside it are ignored;
* a site gets client usage and exactly one name, its URI; the coordinator gets server usage;
* the issuing certificate is bound to this federation's URIs. So an authority of one federation is none for another,
  even if a program trusts both roots;
* no function reads a clock: `now` is an argument, and is an aware time.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pki.names import FederationName, SiteName, coordinator_uri, site_uri
from protos.errors import ConfigurationError, RefusedError

ROOT_LIFETIME = timedelta(days=3653)
ISSUING_LIFETIME = timedelta(days=1096)
LEAF_LIFETIME = timedelta(days=90)
RENEW_WHEN_LEFT = timedelta(days=60)  # from day 30: a failed renewal can be noticed for two months
CLOCK_SKEW = timedelta(minutes=5)
LARGEST_REQUEST_BYTES = 8 * 1024

Key = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey


class Issuer(NamedTuple):
    """An authority that signs certificates: its own certificate, and its private key."""

    certificate: x509.Certificate
    key: Key


def new_tls_key() -> Key:
    """Create a P-256 key. All TLS libraries accept this curve in a certificate."""
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: Key, passphrase: str | None = None) -> bytes:
    """Encode a private key as PKCS#8 PEM. It is a secret, unless a passphrase that nobody can guess encrypts it."""
    plain = serialization.NoEncryption()
    encryption = plain if passphrase is None else serialization.BestAvailableEncryption(passphrase.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def key_from_pem(pem: bytes, passphrase: str = "") -> Key:
    """Decode a P-256 private key from PEM. Raises ConfigurationError: no such key, or another passphrase."""
    try:
        key = serialization.load_pem_private_key(pem, password=passphrase.encode() or None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as cause:
        raise _no_key() from cause
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not is_p256(key.public_key()):
        raise _no_key()
    return key


def is_p256(key: object) -> bool:
    """Return whether a public key is a P-256 key."""
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)


def is_renewal_due(certificate: x509.Certificate, now: datetime) -> bool:
    """Return whether a certificate must be renewed, because at most 60 of its usual 90 days are left."""
    return now >= certificate.not_valid_after_utc - RENEW_WHEN_LEFT


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return the certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def certificate_sha256(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of the certificate's DER, 64 lowercase hexadecimal digits."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def public_key_sha256(key: PublicKey) -> str:
    """Return the SHA-256 of the public key (SubjectPublicKeyInfo in DER), 64 lowercase hexadecimal digits."""
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).hexdigest()


def signing_request(key: Key) -> bytes:
    """Return a signing request (PEM) that proves possession of the key and contains no name."""
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM)


def requested_key(request_pem: bytes) -> ec.EllipticCurvePublicKey:
    """Return the key of a signing request. Raises RefusedError if its size, curve or signature is not accepted."""
    if len(request_pem) > LARGEST_REQUEST_BYTES:
        raise _refused(f"it has more than {LARGEST_REQUEST_BYTES} bytes")
    if request_pem.count(b"-----BEGIN") != 1:
        raise _refused("it is not one request in PEM")
    try:
        request = x509.load_pem_x509_csr(request_pem)
        key, is_valid = request.public_key(), request.is_signature_valid
    except Exception as cause:  # the parser of hostile bytes raises several kinds of errors
        raise _refused("it cannot be read") from cause
    if not isinstance(key, ec.EllipticCurvePublicKey) or not is_p256(key):
        raise _refused("its key is not a P-256 key")
    if not is_valid:
        raise _refused("it is not signed with its own key")
    return key


def root_certificate(key: Key, federation: FederationName, now: datetime) -> x509.Certificate:
    """Return the federation's self-signed root certificate, which can certify one level of authorities."""
    name = _authority_name(federation, "root")
    return (
        _authority(_builder(name, name, key.public_key(), now, now + ROOT_LIFETIME), path_length=1)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def issuing_certificate(key: PublicKey, root: Issuer, federation: FederationName, now: datetime) -> x509.Certificate:
    """Return the issuing authority's certificate. It permits only this federation's URIs, and no authority below it."""
    until = min(now + ISSUING_LIFETIME, root.certificate.not_valid_after_utc)
    name = _authority_name(federation, "issuing")
    return (
        _authority(_builder(name, root.certificate.subject, key, now, until), path_length=0)
        .add_extension(x509.NameConstraints([x509.UniformResourceIdentifier(federation)], None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(_issuer_identifier(root.certificate), critical=False)
        .sign(root.key, hashes.SHA256())
    )


def site_certificate(
    key: PublicKey, issuing: Issuer, federation: FederationName, site: SiteName, now: datetime
) -> x509.Certificate:
    """Return the certificate of a site, for use as a client only. The site's URI is its only name."""
    names = [x509.UniformResourceIdentifier(site_uri(federation, site))]
    return _leaf(key, issuing, names, ExtendedKeyUsageOID.CLIENT_AUTH, now)


def coordinator_certificate(
    key: PublicKey, issuing: Issuer, federation: FederationName, hosts: Iterable[str], now: datetime
) -> x509.Certificate:
    """Return the coordinator's certificate, for use as a server only, with its URI and the hosts for connections."""
    names = [x509.UniformResourceIdentifier(coordinator_uri(federation)), *map(_host, dict.fromkeys(hosts))]
    return _leaf(key, issuing, names, ExtendedKeyUsageOID.SERVER_AUTH, now)


def _leaf(
    key: PublicKey, issuing: Issuer, names: Sequence[x509.GeneralName], usage: x509.ObjectIdentifier, now: datetime
) -> x509.Certificate:
    # The subject is empty and the alternative name critical, so only one place states an identity.
    until = min(now + LEAF_LIFETIME, issuing.certificate.not_valid_after_utc)
    return (
        _builder(x509.Name([]), issuing.certificate.subject, key, now, until)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(_issuer_identifier(issuing.certificate), critical=False)
        .sign(issuing.key, hashes.SHA256())
    )


def _authority(builder: x509.CertificateBuilder, *, path_length: int) -> x509.CertificateBuilder:
    constraints = x509.BasicConstraints(ca=True, path_length=path_length)
    return builder.add_extension(constraints, critical=True).add_extension(_usage(is_authority=True), critical=True)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    if until <= now:
        raise ConfigurationError(
            what="The certificate of the authority that must sign this certificate has expired or expires soon.",
            consequence="No certificate was issued.",
            remedy="Run `pki renew --authority FILE` with the root's passphrase, then try again.",
        )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now.astimezone(UTC) - CLOCK_SKEW)
        .not_valid_after(until.astimezone(UTC))
    )


def _authority_name(federation: FederationName, role: str) -> x509.Name:
    texts = ((NameOID.ORGANIZATION_NAME, federation), (NameOID.COMMON_NAME, f"{federation} {role} authority"))
    return x509.Name([x509.NameAttribute(kind, text) for kind, text in texts])


def _issuer_identifier(issuer: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    held = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(held)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    signs, certifies = not is_authority, is_authority
    return x509.KeyUsage(signs, False, False, False, False, certifies, certifies, False, False)


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"A signing request was refused: {reason}.",
        consequence="No certificate was issued and the register is unchanged.",
        remedy="Create the request with the site agent of this version.",
    )


def _no_key() -> ConfigurationError:
    return ConfigurationError(
        what="A file that should contain a P-256 private key in PEM contains something else.",
        consequence="The file was not used, and nothing was sent.",
        remedy="Restore the key file from its backup, or enrol again with a new invitation.",
    )
