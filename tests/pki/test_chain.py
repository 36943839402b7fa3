"""A chain is leaf, issuing authority, root; every other shape is refused."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from pki import certificates
from pki.authority import Authority
from pki.certificate_chain import certificates_in, verified_leaf
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

    with pytest.raises(RefusedError):
        verified_leaf(chain, authority.root_pem(), now + timedelta(days=days))


def test_a_foreign_root_of_the_same_name_is_refused(authority: Authority, now: datetime) -> None:
    """A root with the same name and another key proves nothing."""
    chain = authority.issue_site(certificates.new_tls_key().public_key(), SiteName("a"), now).chain_pem
    forged = certificates.root_certificate(certificates.new_tls_key(), FederationName("heart"), now)

    with pytest.raises(RefusedError):
        verified_leaf(chain, certificates.certificate_pem(forged), now)
