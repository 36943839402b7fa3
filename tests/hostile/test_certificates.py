"""Real TLS handshakes: a caller that is not a current site of this federation is refused.

Both ends are Python's ssl over memory, so the handshake is real and no port is opened. After TLS every call makes two
checks: `identify_site` and `Register.is_accepted`.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from pki import certificates
from pki.authority import Authority, FederationRecord
from pki.certificate_chain import SiteIdentity, certificates_in, identify_site
from pki.names import Address, FederationName, SiteName
from pki.register import Register

MARY = SiteName("st-mary")
NOW = datetime.now(UTC)


@dataclass(frozen=True)
class Pair:
    """A private key and the chain that is shown with it, both PEM."""

    key: bytes
    chain: bytes


def made(directory: Path, federation: str) -> Authority:
    """An authority of that name."""
    address = Address("localhost", 8443)
    record = FederationRecord(FederationName(federation), address, address, ())
    return Authority.create(directory, record, passphrase="correct horse battery", now=NOW)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of federation heart."""
    return made(tmp_path_factory.mktemp("heart") / "pki", "heart")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Somebody else's authority, which calls itself heart too."""
    return made(tmp_path_factory.mktemp("stranger") / "pki", "heart")


@pytest.fixture
def register(tmp_path: Path) -> Iterator[Register]:
    """An empty register."""
    with Register.create(tmp_path / "register.sqlite") as register:
        yield register


def issued(authority: Authority, now: datetime = NOW) -> Pair:
    """st-mary's pair by this authority."""
    key = certificates.new_tls_key()
    return Pair(certificates.key_to_pem(key), authority.issue_site(key.public_key(), MARY, now).chain_pem)


def forged(authority: Authority, *uris: str, usage: x509.ObjectIdentifier | None = None) -> Pair:
    """A certificate that a thief of the issuing key could sign."""
    key = certificates.new_tls_key()
    issuing = authority._issuing()
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    wanted = usage or ExtendedKeyUsageOID.CLIENT_AUTH
    leaf = certificates._leaf(key.public_key(), issuing, names, wanted, NOW)
    chain = certificates.certificate_pem(leaf) + certificates.certificate_pem(issuing.certificate)
    return Pair(certificates.key_to_pem(key), chain)


def coordinator(authority: Authority) -> Pair:
    """The coordinator's own pair."""
    return Pair(authority.coordinator_key_path.read_bytes(), authority.coordinator_certificate_path.read_bytes())


def handshake(server: Pair, client: Pair | None, *, server_trusts: bytes, client_trusts: bytes, at: Path) -> bytes:
    """Shake hands over memory as `localhost`; the client's leaf (DER) as the server saw it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    calling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for side, pair, trusted in ((context, server, server_trusts), (calling, client, client_trusts)):
        side.minimum_version = ssl.TLSVersion.TLSv1_3
        side.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        side.load_verify_locations(cadata=trusted.decode())
        if pair is not None:
            (at / "pair.pem").write_bytes(pair.key + pair.chain)
            side.load_cert_chain(at / "pair.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    listener = context.wrap_bio(up, down, server_side=True)
    caller = calling.wrap_bio(down, up, server_hostname="localhost")
    waiting = [caller, listener]
    for _ in range(6):
        for end in list(waiting):
            try:
                end.do_handshake()
                waiting.remove(end)
            except ssl.SSLWantReadError:
                continue
    assert not waiting
    leaf = listener.getpeercert(binary_form=True)
    assert leaf is not None
    return leaf


def admitted(authority: Authority, client: Pair | None, at: Path) -> SiteIdentity:
    """What the coordinator does with a caller: TLS, then identity."""
    root = authority.root_pem()
    leaf = handshake(coordinator(authority), client, server_trusts=root, client_trusts=root, at=at)
    return identify_site(ssl.DER_cert_to_PEM_cert(leaf).encode(), "heart", NOW)


def test_out_of_time_is_refused_by_tls(authority: Authority, tmp_path: Path) -> None:
    """Expired yesterday and valid from tomorrow both fail in the handshake."""
    for shift, reason in ((timedelta(days=-91), "expired"), (timedelta(days=1), "not yet valid")):
        with pytest.raises(ssl.SSLCertVerificationError, match=reason):
            admitted(authority, issued(authority, NOW + shift), tmp_path)


def test_a_foreign_authority_is_refused_by_tls(authority: Authority, stranger: Authority, tmp_path: Path) -> None:
    """A stranger's certificate with the right names, and none at all, fail in the handshake."""
    with pytest.raises(ssl.SSLCertVerificationError):
        admitted(authority, issued(stranger), tmp_path)
    with pytest.raises(ssl.SSLError, match=r"(?i)peer.did.not.return"):
        admitted(authority, None, tmp_path)


def test_a_foreign_coordinator_is_refused_by_the_site(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    """A site that trusts its invitation's root does not talk to a stranger's coordinator."""
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(
            coordinator(stranger),
            issued(authority),
            server_trusts=authority.root_pem(),
            client_trusts=authority.root_pem(),
            at=tmp_path,
        )


def test_each_usage_has_its_side(authority: Authority, tmp_path: Path) -> None:
    """The coordinator's certificate cannot call, and a site's certificate cannot answer."""
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        admitted(authority, coordinator(authority), tmp_path)
    root = authority.root_pem()
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(issued(authority), issued(authority), server_trusts=root, client_trusts=root, at=tmp_path)


def test_the_authority_is_bound_to_its_federation(authority: Authority, tmp_path: Path) -> None:
    """Even the issuing key cannot name a site of another federation: TLS sees the name constraint."""
    with pytest.raises(ssl.SSLCertVerificationError, match="permitted subtree"):
        admitted(authority, forged(authority, "spiffe://lung/site/st-mary"), tmp_path)


def test_a_site_is_no_authority(authority: Authority, tmp_path: Path) -> None:
    """A certificate signed with a site's key fails in the handshake."""
    site = issued(authority)
    leaf, key = certificates_in(site.chain)[0], certificates.new_tls_key()
    above = certificates.Issuer(leaf, certificates.key_from_pem(site.key))
    below = certificates.site_certificate(key.public_key(), above, FederationName("heart"), SiteName("other"), NOW)
    pair = Pair(certificates.key_to_pem(key), certificates.certificate_pem(below) + site.chain)

    with pytest.raises(ssl.SSLCertVerificationError):
        admitted(authority, pair, tmp_path)
