"""The coordinator's port over real sockets and real TLS: who gets in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from pki import certificates
from pki.certificate_chain import certificates_in
from pki.names import FederationName, SiteName
from protos.plan.plan import Plan
from tests.coordinator.greetings import HELLO
from tests.rehearsal.federation import Office, calling, serving, utc_now


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """Somebody else's authority, which calls itself heart too."""
    return Office.found(tmp_path_factory.mktemp("stranger"))


@dataclass(frozen=True)
class Pair:
    """A private key and the chain that is shown with it."""

    key: bytes
    chain: bytes


def forged(office: Office, *uris: str, usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH) -> Pair:
    """A certificate that a thief of the issuing key could sign."""
    key = certificates.new_tls_key()
    issuing = office.authority._issuing()
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    leaf = certificates._leaf(key.public_key(), issuing, names, usage, utc_now())
    chain = certificates.certificate_pem(leaf) + certificates.certificate_pem(issuing.certificate)
    return Pair(certificates.key_to_pem(key), chain)


def issued(office: Office, *, days: int = 0) -> Pair:
    """A pair for site a, made this number of days from now, which the register does not know."""
    key = certificates.new_tls_key()
    made = office.authority.issue_site(key.public_key(), SiteName("a"), utc_now() + timedelta(days=days))
    return Pair(certificates.key_to_pem(key), made.chain_pem)


def _coordinators_own(office: Office) -> Pair:
    authority = office.authority
    return Pair(authority.coordinator_key_path.read_bytes(), authority.coordinator_certificate_path.read_bytes())


def _below_a_site(office: Office, _: Office) -> Pair:
    site, key = issued(office), certificates.new_tls_key()
    above = certificates.Issuer(certificates_in(site.chain)[0], certificates.key_from_pem(site.key))
    leaf = certificates.site_certificate(key.public_key(), above, FederationName("heart"), SiteName("b"), utc_now())
    return Pair(certificates.key_to_pem(key), certificates.certificate_pem(leaf) + site.chain)


A = "spiffe://heart/site/a"
IMPOSTORS: dict[str, Callable[[Office, Office], Pair | None]] = {
    "signed by a site": _below_a_site,
    "no certificate": lambda office, stranger: None,
    "expired": lambda office, stranger: issued(office, days=-91),
    "not yet valid": lambda office, stranger: issued(office, days=2),
    "foreign authority": lambda office, stranger: issued(stranger),
    "the coordinator's own": lambda office, stranger: _coordinators_own(office),
    "two names": lambda office, stranger: forged(office, A, "spiffe://heart/site/b"),
    "no name": lambda office, stranger: forged(office),
    "the same name twice": lambda office, stranger: forged(office, A, A),
    "server usage": lambda office, stranger: forged(office, A, usage=ExtendedKeyUsageOID.SERVER_AUTH),
    "other federation": lambda office, stranger: forged(office, "spiffe://lungs/site/a"),
    "coordinator's name": lambda office, stranger: forged(office, "spiffe://heart/coordinator"),
    "not in the register": lambda office, stranger: issued(office),
    "not in the register, unknown site": lambda office, stranger: forged(office, "spiffe://heart/site/zebra"),
}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_whoever_is_not_a_site_of_this_federation_now_is_refused(
    tmp_path: Path, office: Office, stranger: Office, plan: Plan, name: str
) -> None:
    """The stream of an impostor ends before the engine hears of it, and the plan is not told."""
    pair = IMPOSTORS[name](office, stranger)
    root = office.authority.root_pem()
    shown = grpc.ssl_channel_credentials(root, *(() if pair is None else (pair.key, pair.chain)))

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running, calling(running.address, shown) as caller:
            await caller.send(HELLO)

            assert await caller.rest() == []
            assert await caller.status() in {
                grpc.StatusCode.UNAVAILABLE,  # TLS itself has refused
                grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.PERMISSION_DENIED,
                grpc.StatusCode.INTERNAL,  # gRPC's client, where its greeting meets the end of the stream
            }
            assert not running.engine.status()["sites"]["a"]["connected"]

    asyncio.run(scene())
