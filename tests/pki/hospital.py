"""A hospital's own authority, as its IT department might run it: with an authority between, or badly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pki.certificates import certificate_pem

AnyKey: TypeAlias = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
CLIENT = (ExtendedKeyUsageOID.CLIENT_AUTH,)


def small_key() -> ec.EllipticCurvePrivateKey:
    """A key that is made in no time."""
    return ec.generate_private_key(ec.SECP256R1())


@dataclass(frozen=True, kw_only=True)
class HospitalAuthority:
    """An authority's key and certificate, and all certificates between it and the root of its hospital."""

    key: AnyKey = field(repr=False)
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        """Its certificate."""
        return certificate_pem(self.certificate)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The content of an authority's certificate."""

    name: str = "St Mary's Hospital CA"
    start: datetime
    days: float = 1000
    is_authority: bool = True
    path_length: int | None = None
    extensions: tuple[tuple[x509.ExtensionType, bool], ...] = ()


def found(wanted: Wanted, key: AnyKey | None = None, above: HospitalAuthority | None = None) -> HospitalAuthority:
    """An authority signed by itself, or by another one."""
    key = key or small_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, wanted.name)] if wanted.name else [])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(above.certificate.subject if above else name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(wanted.start - timedelta(days=1))
        .not_valid_after(wanted.start + timedelta(days=wanted.days))
        .add_extension(x509.BasicConstraints(wanted.is_authority, wanted.path_length), critical=True)
        .add_extension(_usage(is_authority=wanted.is_authority), critical=True)
    )
    for value, is_critical in wanted.extensions:
        builder = builder.add_extension(value, critical=is_critical)
    return HospitalAuthority(key=key, certificate=builder.sign(above.key if above else key, hashes.SHA256()))


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """The content of a site's certificate; the default is the federation's requirement."""

    uris: tuple[str, ...]
    start: datetime
    days: float = 365
    usages: Sequence[x509.ObjectIdentifier] = CLIENT
    hosts: tuple[str, ...] = ()
    extensions: tuple[tuple[x509.ExtensionType, bool], ...] = ()


def issued(authority: HospitalAuthority, key: ec.EllipticCurvePublicKey, leaf: Leaf) -> x509.Certificate:
    """A certificate for a key, as asked."""
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in leaf.uris]
    names += [x509.DNSName(host) for host in leaf.hosts]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "global-layers")]))
        .issuer_name(authority.certificate.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(leaf.start - timedelta(hours=1))
        .not_valid_after(leaf.start + timedelta(days=leaf.days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(is_authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(leaf.usages), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    for value, is_critical in leaf.extensions:
        builder = builder.add_extension(value, critical=is_critical)
    return builder.sign(authority.key, hashes.SHA256())


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    flags = dict.fromkeys(
        (
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ),
        False,
    )
    return x509.KeyUsage(digital_signature=not is_authority, key_cert_sign=is_authority, crl_sign=is_authority, **flags)
