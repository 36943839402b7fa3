"""A thief of certificates, keys and invitations. What the coordinator answers is asked of its own code (`Membership`),
with a register, an authority and enrolled sites as in production. The attacker wants to be taken for a site, or to
enrol twice. `tests/coordinator/test_service.py` shows that TLS refuses most of these callers before this code sees
them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import ExtendedKeyUsageOID

import coordinator.network.enrolment_calls as enrolment_calls
import pki.certificate_chain
import pki.certificates
import pki.enrolment_decisions
import pki.register
from coordinator.network.enrolment_calls import Membership
from pki import certificates
from pki.authority import Authority, FederationRecord
from pki.certificate_chain import certificates_in
from pki.enrolment_decisions import Issued, enrolment_request, handle_renewal, handle_request, invite_site
from pki.invitation import Invitation
from pki.names import Address, FederationName, SiteName
from pki.register import Register
from protos.errors import RefusedError
from tests.hostile.attack import Attack, in_copy, patched, scratch
from tests.pki.whole_site import SiteKeys

NOW = datetime.now(UTC)
MARY, LUKE = SiteName("st-mary"), SiteName("st-luke")
HEART = FederationName("heart")
LATER = NOW + timedelta(days=1)
Weakened = Callable[[], AbstractContextManager[Any]]


@dataclass
class Scene:
    """A federation with two enrolled sites, and what its coordinator answers."""

    folder: Path
    authority: Authority
    register: Register

    def __post_init__(self) -> None:
        self.keys = {name: SiteKeys.create(self.folder / name) for name in (MARY, LUKE)}
        self.chains = {name: self.enrol(self.invite(name), self.keys[name]) for name in (MARY, LUKE)}

    def invite(self, site: SiteName, *, hours: float = 48.0) -> Invitation:
        """Invite a site; its first use of the invitation brings a certificate."""
        return invite_site(
            self.authority, self.register, site, valid_for=timedelta(hours=hours), is_pre_approved=True, now=NOW
        )

    def enrol(self, invitation: Invitation, keys: SiteKeys, now: datetime = NOW) -> bytes:
        """The chain that a site gets for its invitation."""
        request = enrolment_request(invitation, keys.signing_request(), keys.identity_key())
        answer = handle_request(self.authority, self.register, request, now)
        assert isinstance(answer, Issued)
        return answer.chain_pem

    def lets_in(self, chain: bytes, now: datetime = NOW) -> str | None:
        """Return the site for which the coordinator takes the caller of this chain, or None."""
        membership = Membership(self.authority, self.register, lambda: now)
        caller = membership.identify(certificates.certificate_pem(certificates_in(chain)[0]))
        return caller.site if membership.is_accepted(caller) else None

    def forged(self, *uris: str, usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH) -> bytes:
        """A certificate that a thief of the issuing key can sign."""
        issuing = self.authority._issuing()
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        key = certificates.new_tls_key().public_key()
        leaf = certificates._leaf(key, issuing, names, usage, NOW)
        return certificates.certificate_pem(leaf) + certificates.certificate_pem(issuing.certificate)


def made(folder: Path) -> Authority:
    """An authority of federation heart."""
    address = Address("localhost", 8443)
    record = FederationRecord(federation=HEART, coordinator=address, enrolment=address)
    return Authority.create(folder, record, passphrase="correct horse battery", now=NOW)


def attacked(weakened: bool, attack: Callable[[Scene], bool], without: Weakened) -> bool:
    """Run an attack against a federation. A refusal must have three sentences."""
    with ExitStack() as stack:
        folder = stack.enter_context(scratch())
        authority = made(folder / "pki")
        register = stack.enter_context(Register.create(folder / "register.sqlite"))
        scene = Scene(folder, authority, register)
        stack.enter_context(in_copy(weakened, without))
        try:
            return attack(scene)
        except RefusedError:
            return False


def without_the_register() -> AbstractContextManager[None]:
    """The coordinator accepts every certificate of its authority."""
    return patched(Register, is_accepted=lambda self, name, sha256: True)


def without_times() -> AbstractContextManager[None]:
    """An expired certificate is still accepted."""
    honest = enrolment_calls.identify_site
    return patched(enrolment_calls, identify_site=lambda leaf, federation, now: honest(leaf, federation, NOW))


@contextmanager
def without_one_name() -> Iterator[None]:
    """The first of several names is used."""
    honest = pki.certificate_chain._names
    with without_the_register(), patched(pki.certificate_chain, _names=lambda leaf: honest(leaf)[:1]):
        yield


def foreign_authority(scene: Scene) -> bool:
    """Show a certificate with the right names, issued by an authority that calls itself heart too."""
    stranger = made(scene.folder / "stranger")
    key = certificates.new_tls_key().public_key()
    return scene.lets_in(stranger.issue_site(key, MARY, NOW).chain_pem) == MARY


def expired_certificate(scene: Scene) -> bool:
    """Show a certificate that has ended."""
    return scene.lets_in(scene.chains[MARY], NOW + timedelta(days=91)) == MARY


def revoked_certificate(scene: Scene) -> bool:
    """Show the certificate of a site that was revoked, which TLS takes as before."""
    assert scene.lets_in(scene.chains[MARY]) == MARY
    scene.register.revoke(MARY, NOW)
    return scene.lets_in(scene.chains[MARY]) == MARY


def stolen_issuing_key(scene: Scene) -> bool:
    """Issue a second certificate in a site's name with the stolen issuing key."""
    return scene.lets_in(scene.forged(f"spiffe://heart/site/{MARY}")) == MARY


def two_names(scene: Scene) -> bool:
    """Show a certificate that carries two sites' names."""
    return scene.lets_in(scene.forged(f"spiffe://heart/site/{MARY}", f"spiffe://heart/site/{LUKE}")) == MARY


def used_invitation(scene: Scene) -> bool:
    """Use an invitation that was used before, with keys of the thief's own."""
    third = SiteName("st-john")
    invitation = scene.invite(third)
    scene.enrol(invitation, SiteKeys.create(scene.folder / "honest"))
    return bool(scene.enrol(invitation, SiteKeys.create(scene.folder / "thief")))


def late_invitation(scene: Scene) -> bool:
    """Use an invitation after its time."""
    invitation = scene.invite(SiteName("st-john"), hours=1)
    return bool(scene.enrol(invitation, SiteKeys.create(scene.folder / "thief"), LATER))


def one_key_for_two_sites(scene: Scene) -> bool:
    """Enrol a second site with the identity key of the first, so that one hospital counts twice."""
    invitation = scene.invite(SiteName("st-john"))
    keys = SiteKeys.create(scene.folder / "again")
    request = enrolment_request(invitation, keys.signing_request(), scene.keys[MARY].identity_key())
    return isinstance(handle_request(scene.authority, scene.register, request, NOW), Issued)


def renewal_by_a_stranger(scene: Scene) -> bool:
    """Ask for a site's next certificate without its identity key."""
    keys = SiteKeys.create(scene.folder / "thief")
    request = pki.enrolment_decisions.renewal_request(HEART, MARY, keys.signing_request(), Ed25519PrivateKey.generate())
    return bool(handle_renewal(scene.authority, scene.register, request, NOW).chain_pem)


def copied_signing_request(scene: Scene) -> bool:
    """Have somebody else's public key certified, without possession of the private key. One bit of the signature is
    flipped, as good as any that one without the private key can make."""
    invitation = scene.invite(SiteName("st-john"))
    der = x509.load_pem_x509_csr(certificates.signing_request(certificates.new_tls_key())).public_bytes(
        serialization.Encoding.DER
    )
    flipped = bytes([*der[:-1], der[-1] ^ 1])
    pem = x509.load_der_x509_csr(flipped).public_bytes(serialization.Encoding.PEM)
    keys = SiteKeys.create(scene.folder / "thief")
    asked = enrolment_request(invitation, pem, keys.identity_key())
    return isinstance(handle_request(scene.authority, scene.register, asked, NOW), Issued)


def key_of_another_curve(scene: Scene) -> bool:
    """Have a key of another curve certified, which TLS stacks at other sites may not expect."""
    invitation = scene.invite(SiteName("st-john"))
    pem = certificates.signing_request(ec.generate_private_key(ec.SECP384R1()))
    keys = SiteKeys.create(scene.folder / "thief")
    asked = enrolment_request(invitation, pem, keys.identity_key())
    return isinstance(handle_request(scene.authority, scene.register, asked, NOW), Issued)


def _any_keys(self: Register, name: SiteName, asked: Any) -> Any:
    changed = "UPDATE sites SET state = 'approved', identity_key = ?, tls_key_sha256 = ? WHERE name = ?"
    self._store.write(changed, asked.identity_key, asked.tls_key_sha256, name)
    return self.site(name)


def _any_key(request_pem: bytes) -> Any:
    return x509.load_pem_x509_csr(request_pem).public_key()


def _never_late(time: datetime) -> int:
    return int((time if time < LATER else NOW).timestamp())


ATTACKS = tuple(
    Attack(name, missing, update_wrapper(partial(attacked, attack=attack, without=without), attack))
    for name, attack, missing, without in (
        ("foreign-certificate", foreign_authority, "the register", without_the_register),
        ("expired-certificate", expired_certificate, "the times of certificates", without_times),
        ("revoked-certificate", revoked_certificate, "the register", without_the_register),
        ("stolen-issuing-key", stolen_issuing_key, "the register", without_the_register),
        ("certificate-with-two-names", two_names, "the rule of one name and the register", without_one_name),
        (
            "used-invitation",
            used_invitation,
            "the rule that an invitation brings in one pair of keys",
            lambda: patched(Register, _asked_again=_any_keys),
        ),
        (
            "late-invitation",
            late_invitation,
            "the end of an invitation",
            lambda: patched(pki.register, _seconds=_never_late),
        ),
        (
            "one-identity-key-for-two-sites",
            one_key_for_two_sites,
            "the rule that a key stands for one site",
            lambda: patched(Register, _check_new_keys=lambda *facts: None),
        ),
        (
            "renewal-by-a-stranger",
            renewal_by_a_stranger,
            "the signature of a renewal",
            lambda: patched(pki.enrolment_decisions, verify=lambda *facts: None),
        ),
        (
            "request-without-possession",
            copied_signing_request,
            "the signature of a signing request",
            lambda: patched(pki.enrolment_decisions, requested_key=_any_key),
        ),
        (
            "key-of-another-curve",
            key_of_another_curve,
            "the check of the curve",
            lambda: patched(pki.certificates, is_p256=lambda key: True),
        ),
    )
)
