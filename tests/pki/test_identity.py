"""A certificate names one site of one federation, or it is refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from pki import certificates
from pki.authority import Authority
from pki.certificate_chain import identify_site
from protos.errors import RefusedError

URI = x509.UniformResourceIdentifier
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
Forge = Callable[..., bytes]


@pytest.fixture
def forge(now: datetime) -> Forge:
    """A maker of certificates that TLS would accept if the authority signed them; PEM."""

    def made(
        names: list[x509.GeneralName],
        usages: list[x509.ObjectIdentifier],
        *,
        is_authority: bool = False,
        curve: ec.EllipticCurve | None = None,
        extra: x509.ExtensionType | None = None,
    ) -> bytes:
        key = ec.generate_private_key(curve or ec.SECP256R1())
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(x509.Name([]))
            .public_key(key.public_key())
            .serial_number(7)
            .not_valid_before(now)
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(certificates._usage(is_authority=is_authority), critical=True)
        )
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=True)
        if extra is not None:
            builder = builder.add_extension(extra, critical=True)
        return certificates.certificate_pem(builder.sign(key, hashes.SHA256()))

    return made


@pytest.mark.parametrize(
    "uri",
    [
        "spiffe://heart/coordinator", "spiffe://lung/site/st-mary", "spiffe://heart/site/",
        "spiffe://heart/site/St-Mary", "spiffe://heart/site/st-mary/", "spiffe://heart/site/x/st-mary",
        "spiffe://heart/site/st-mary?x", "spiffe://heart/site/../site/st-mary", "spiffe://heart@lung/site/st-mary",
        "spiffe://heart:1/site/st-mary", "SPIFFE://heart/site/st-mary", "https://heart/site/st-mary", "st-mary", "",
    ],
)  # fmt: skip
def test_a_uri_is_compared_as_a_whole(forge: Forge, now: datetime, uri: str) -> None:
    """Another federation, role, spelling or scheme is nobody."""
    with pytest.raises(RefusedError):
        identify_site(forge([URI(uri)], [CLIENT]), "heart", now)


def test_every_other_profile_is_refused(forge: Forge, now: datetime) -> None:
    """Two names, no name, other usages, an authority, another curve and unknown extensions are refused."""
    mary = URI("spiffe://heart/site/st-mary")
    identify_site(forge([mary], [CLIENT]), "heart", now)

    for hostile in (
        forge([mary, URI("spiffe://heart/site/other")], [CLIENT]),
        forge([mary, mary], [CLIENT]),
        forge([mary, x509.DNSName("localhost")], [CLIENT]),
        forge([x509.DNSName("spiffe://heart/site/st-mary")], [CLIENT]),
        forge([], [CLIENT]),
        forge([mary], [SERVER]),
        forge([mary], [CLIENT, SERVER]),
        forge([mary], [ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]),
        forge([mary], []),
        forge([mary], [CLIENT], is_authority=True),
        forge([mary], [CLIENT], curve=ec.SECP384R1()),
        forge([mary], [CLIENT], extra=x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"x")),
        forge([mary], [CLIENT]) * 2,
        b"",
        b"-----BEGIN",
        b"\x30" * 500,
        b"x" * 20000,
    ):
        with pytest.raises(RefusedError):
            identify_site(hostile, "heart", now)


@pytest.mark.parametrize(("shift", "reason"), [(timedelta(-1), "before the start"), (timedelta(2), "after the end")])
def test_a_certificate_has_its_time(forge: Forge, now: datetime, shift: timedelta, reason: str) -> None:
    """Too early and too late are refused, and the message gives the day."""
    with pytest.raises(RefusedError, match=reason):
        identify_site(forge([URI("spiffe://heart/site/a")], [CLIENT]), "heart", now + shift)


def test_the_coordinator_is_no_site(authority: Authority, now: datetime) -> None:
    """The coordinator's certificate is refused as a site's."""
    with pytest.raises(RefusedError):
        identify_site(certificates.certificate_pem(authority.coordinator_leaf()), "heart", now)
