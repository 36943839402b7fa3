"""Certificates: what each may be used for and for how long, their chains, and how a person reads them."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from pki import certificates
from pki.authority import Authority
from pki.certificate_chain import certificates_in, verified_leaf
from pki.names import SiteName
from protos.errors import ConfigurationError, RefusedError


def test_a_site_has_one_name_and_one_usage(authority: Authority, now: datetime) -> None:
    """Names in a request are ignored: the leaf has only the URI, client usage, and 90 days."""
    key = certificates.new_tls_key()
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")]))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
    )

    issued = authority.issue_site(certificates.requested_key(request), SiteName("st-mary"), now)

    leaf = certificates_in(issued.chain_pem)[0]
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    usage = leaf.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(names) == [x509.UniformResourceIdentifier("spiffe://heart/site/st-mary")]
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert list(leaf.subject) == []
    assert leaf.not_valid_before_utc == now - timedelta(minutes=5)
    assert leaf.not_valid_after_utc == now + timedelta(days=90)


def test_a_leaf_never_outlives_its_authority(authority: Authority, now: datetime) -> None:
    """Near the end of the issuing certificate leaves are shorter, and after it there are none."""
    end = certificates_in(authority.issuing_certificate_path.read_bytes())[0].not_valid_after_utc
    key = certificates.new_tls_key().public_key()

    late = certificates_in(authority.issue_site(key, SiteName("a"), end - timedelta(days=1)).chain_pem)[0]

    assert late.not_valid_after_utc == end
    with pytest.raises(ConfigurationError):
        authority.issue_site(key, SiteName("a"), end)


def test_renewal_is_due_from_day_thirty(authority: Authority, now: datetime) -> None:
    """One second before day 30 nothing is due; on day 30 the leaf is to be renewed."""
    issued = authority.issue_site(certificates.new_tls_key().public_key(), SiteName("a"), now)
    leaf = certificates_in(issued.chain_pem)[0]

    assert not certificates.is_renewal_due(leaf, now + timedelta(days=30, seconds=-1))
    assert certificates.is_renewal_due(leaf, now + timedelta(days=30))


def test_only_the_whole_chain_is_accepted(authority: Authority, now: datetime) -> None:
    """The chain passes; turned round, cut, doubled, torn or huge it is refused."""
    root = authority.root_pem()
    chain = authority.issue_site(certificates.new_tls_key().public_key(), SiteName("a"), now).chain_pem
    leaf, issuing = (certificates.certificate_pem(one) for one in certificates_in(chain))

    assert certificates.certificate_pem(verified_leaf(chain, root, now)) == leaf
    for hostile in (issuing + leaf, leaf, leaf + leaf, leaf + root, chain + root, chain[:-80], b"", chain * 40):
        with pytest.raises(RefusedError):
            verified_leaf(hostile, root, now)
    with pytest.raises(RefusedError):
        verified_leaf(chain, issuing, now)
