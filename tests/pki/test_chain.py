"""A chain is leaf, issuing authority, root; every other shape is refused."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes

from pki import certificates, store
from pki.authority import Authority
from pki.certificate_chain import certificates_in, trusted_after, verified_leaf
from pki.names import FederationName, SiteName
from protos.errors import RefusedError


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


@pytest.mark.parametrize("days", [-1, 91])
def test_a_chain_has_its_time(authority: Authority, now: datetime, days: int) -> None:
    """Before its first and after its last day a chain is refused."""
    chain = authority.issue_site(certificates.new_tls_key().public_key(), SiteName("a"), now).chain_pem

    with pytest.raises(RefusedError, match=r"before the start|after the end"):
        verified_leaf(chain, authority.root_pem(), now + timedelta(days=days))


def test_a_foreign_root_of_the_same_name_is_refused(authority: Authority, now: datetime) -> None:
    """A root with the same name and another key proves nothing."""
    chain = authority.issue_site(certificates.new_tls_key().public_key(), SiteName("a"), now).chain_pem
    forged = certificates.root_certificate(certificates.new_tls_key(), FederationName("heart"), now)

    with pytest.raises(RefusedError, match="not signed by the next"):
        verified_leaf(chain, certificates.certificate_pem(forged), now)


def test_the_issuing_key_cannot_make_a_root(authority: Authority, now: datetime) -> None:
    """A root of the issuing authority's name and key, with its certificate as what vouches, is not trusted."""
    key = certificates.key_from_pem(store.read_secret(authority.issuing_key_path))
    issuing = certificates_in(store.read_public(authority.issuing_certificate_path))[0]
    (root,) = certificates_in(authority.root_pem())
    usage = root.extensions.get_extension_for_class(x509.KeyUsage).value

    def forged(name: x509.Name) -> x509.Certificate:
        return (
            x509.CertificateBuilder(issuer_name=name, subject_name=name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )

    voucher = certificates.certificate_pem(issuing)

    for fake in (forged(issuing.subject), forged(root.subject)):
        for before in (b"", authority.root_pem()):
            with pytest.raises(RefusedError, match="has not signed the new root"):
                trusted_after(authority.root_pem(), before + certificates.certificate_pem(fake) + voucher, now)
    assert trusted_after(authority.root_pem(), authority.root_pem() + voucher, now) == authority.root_pem()
