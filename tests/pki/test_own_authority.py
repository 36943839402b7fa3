"""A hospital's own authority: which one may be accepted, and which certificates below it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, ObjectIdentifier

from pki import certificates
from pki.authority import Authority
from pki.certificate_chain import certificates_in
from pki.names import FederationName, SiteName
from pki.own_authority import (
    ForeignNameError,
    OwnAuthority,
    authority_fingerprint,
    identify_own,
    own_authority_in,
    own_certificate_in,
)
from pki.own_register import OwnAuthorities
from pki.register import IssuedCertificate, Redemption, Register
from protos.errors import RefusedError
from tests.pki.hospital import CLIENT, HospitalAuthority, Leaf, Wanted, found, issued, small_key

HEART = FederationName("heart")
A, B = SiteName("a"), SiteName("b")
URI = "spiffe://heart/site/{}"
TEMPLATE = x509.MSCertificateTemplate(ObjectIdentifier("1.3.6.1.4.1.311.21.8.1"), 100, 3)


@pytest.fixture(scope="module")
def hospital(now: datetime) -> HospitalAuthority:
    """The authority of the hospital behind site a."""
    return found(Wanted(start=now))


def constrained(*permitted: str) -> x509.NameConstraints:
    """May sign only for these hosts of URIs."""
    return x509.NameConstraints([x509.UniformResourceIdentifier(host) for host in permitted], None)


# Which authority may count

UNFIT: dict[str, Callable[[datetime, Authority], tuple[bytes, str]]] = {
    "no authority": lambda now, _: (found(Wanted(start=now, is_authority=False)).pem, "not the certificate of an auth"),
    "expired": lambda now, _: (found(Wanted(start=now - timedelta(days=9), days=8)).pem, "not valid now"),
    "not yet valid": lambda now, _: (found(Wanted(start=now + timedelta(days=9))).pem, "not valid now"),
    "weak RSA": lambda now, _: (found(Wanted(start=now), rsa.generate_private_key(65537, 2048)).pem, "RSA of 3072"),
    "another curve": lambda now, _: (found(Wanted(start=now), ec.generate_private_key(ec.SECP256K1())).pem, "P-384"),
    "nameless": lambda now, _: (found(Wanted(start=now, name="")).pem, "has no name"),
    "two in one file": lambda now, _: (found(Wanted(start=now)).pem * 2, "has 2 certificates"),
    "text": lambda now, _: (b"no certificate", "cannot be read"),
    "servers only": lambda now, _: (
        found(Wanted(start=now, extensions=((x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),))).pem,
        "may not issue certificates of sites",
    ),
    "another federation's": lambda now, _: (
        found(Wanted(start=now, extensions=((constrained("lungs"), True),))).pem,
        "may not issue certificates of sites",
    ),
    "unknown and critical": lambda now, _: (
        found(Wanted(start=now, extensions=((TEMPLATE, True),))).pem,
        "critical extension",
    ),
    "the federation's root": lambda _, authority: (authority.root_pem(), "key is that of the federation's root"),
    "the federation's issuing authority": lambda _, authority: (
        authority.issuing_certificate_path.read_bytes(),
        "key is that of the federation's issuing authority",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_is_no_sound_authority_of_another_does_not_count(authority: Authority, now: datetime, name: str) -> None:
    """Each kind of unfit certificate is refused for its own reason."""
    pem, reason = UNFIT[name](now, authority)

    with pytest.raises(RefusedError, match=reason):
        own_authority_in(pem, authority.authorities(), HEART, now)


def test_nobody_calls_himself_like_the_federations_root(authority: Authority, now: datetime) -> None:
    """TLS looks issuers up by name, so an authority with the name of another would keep that one's sites out."""
    root = certificates_in(authority.root_pem())[0]
    key = small_key()
    namesake = certificates.root_certificate(key, HEART, now)
    assert namesake.subject == root.subject

    with pytest.raises(RefusedError, match="has the name of the federation's root"):
        own_authority_in(certificates.certificate_pem(namesake), authority.authorities(), HEART, now)


@pytest.mark.parametrize(
    "key",
    [small_key(), ec.generate_private_key(ec.SECP384R1()), rsa.generate_private_key(65537, 3072)],
    ids=["P-256", "P-384", "RSA"],
)
def test_a_sound_authority_counts(authority: Authority, now: datetime, key: ec.EllipticCurvePrivateKey) -> None:
    """Every strong key is accepted, and so is an authority that may sign only for this federation."""
    made = found(Wanted(start=now, extensions=((constrained("heart"), True),)), key)

    assert own_authority_in(made.pem, authority.authorities(), HEART, now) == made.certificate


# The parts below it


def leaf_of(now: datetime) -> Leaf:
    """The required content of site a's certificate."""
    return Leaf(uris=(URI.format("a"),), start=now)


def below(hospital: HospitalAuthority, leaf: Leaf, now: datetime, *between: x509.Certificate) -> SiteName | None:
    """The name in a certificate that this hospital has issued, where it is good."""
    certificate = issued(hospital, small_key().public_key(), leaf)
    found_one = own_certificate_in([certificate, *between], [hospital.certificate], HEART, now)
    return None if found_one is None else found_one.identity.name


WRONG_LEAVES: dict[str, tuple[Callable[[Leaf], Leaf], str]] = {
    "server usage": (
        lambda leaf: replace(leaf, usages=(ExtendedKeyUsageOID.SERVER_AUTH,)),
        "this side of the connection",
    ),
    "both usages": (
        lambda leaf: replace(leaf, usages=(*CLIENT, ExtendedKeyUsageOID.SERVER_AUTH)),
        "this side of the connection",
    ),
    "two names": (lambda leaf: replace(leaf, uris=(URI.format("a"), URI.format("b"))), "2 names"),
    "a host as well": (lambda leaf: replace(leaf, hosts=("a.example.org",)), "2 names"),
    "no name": (lambda leaf: replace(leaf, uris=()), "0 names"),
    "another federation": (lambda leaf: replace(leaf, uris=("spiffe://lungs/site/a",)), "not the name of a site"),
    "the coordinator's name": (
        lambda leaf: replace(leaf, uris=("spiffe://heart/coordinator",)),
        "not the name of a site",
    ),
    "expired": (lambda leaf: replace(leaf, start=leaf.start - timedelta(days=9), days=8), "after the end"),
    "not yet valid": (lambda leaf: replace(leaf, start=leaf.start + timedelta(days=9)), "before the start"),
    "too long": (lambda leaf: replace(leaf, days=399), "more than 398 days"),
    "unknown and critical": (lambda leaf: replace(leaf, extensions=((TEMPLATE, True),)), "extension"),
}


@pytest.mark.parametrize("name", WRONG_LEAVES)
def test_a_certificate_that_says_anything_else_is_refused(
    hospital: HospitalAuthority, now: datetime, name: str
) -> None:
    """A hospital's authority is held to what the federation's own says."""
    change, reason = WRONG_LEAVES[name]

    with pytest.raises(RefusedError, match=reason):
        below(hospital, change(leaf_of(now)), now)


def test_what_real_authorities_add_is_ignored(hospital: HospitalAuthority, now: datetime) -> None:
    """Where lists and policies are, and the template's number, say nothing about who somebody is."""
    place = x509.UniformResourceIdentifier("http://ca.example.org/list")
    lists = x509.CRLDistributionPoints([x509.DistributionPoint([place], None, None, None)])

    assert below(hospital, replace(leaf_of(now), extensions=((TEMPLATE, False), (lists, False))), now) == A


def test_the_authoritys_own_certificate_is_no_sites(hospital: HospitalAuthority, now: datetime) -> None:
    """An authority that shows itself is refused."""
    with pytest.raises(RefusedError, match="0 names"):
        own_certificate_in([hospital.certificate], [hospital.certificate], HEART, now)


def test_authorities_between_are_followed_and_checked(hospital: HospitalAuthority, now: datetime) -> None:
    """One between is accepted, also beside other certificates. A missing, expired, false or too deep one is refused."""
    key, leaf = small_key(), leaf_of(now)
    between = found(Wanted(start=now, name="Issuing", path_length=0), key, hospital)
    late = found(Wanted(start=now - timedelta(days=9), days=8, name="Issuing"), key, hospital)
    none = found(Wanted(start=now, name="Issuing", is_authority=False), key, hospital)
    deeper = found(Wanted(start=now, name="Deeper"), above=between)
    shown = issued(between, small_key().public_key(), leaf)
    anchors = [hospital.certificate]

    good = own_certificate_in([shown, deeper.certificate, between.certificate], anchors, HEART, now)

    assert good is not None
    assert certificates_in(good.chain_pem) == [shown, between.certificate, hospital.certificate]
    assert own_certificate_in([shown], anchors, HEART, now) is None
    for wrong, reason in ((late, "not valid now"), (none, "not the certificate of an authority")):
        with pytest.raises(RefusedError, match=reason):
            own_certificate_in([shown, wrong.certificate], anchors, HEART, now)
    shown = issued(deeper, small_key().public_key(), leaf)
    with pytest.raises(RefusedError, match="may not have another authority below it"):
        own_certificate_in([shown, deeper.certificate, between.certificate], anchors, HEART, now)


def test_a_namesake_of_the_authority_has_issued_nothing(hospital: HospitalAuthority, now: datetime) -> None:
    """The name alone does not make an issuer: another key under the same name is not the authority."""
    namesake = found(Wanted(start=now))
    certificate = issued(namesake, small_key().public_key(), leaf_of(now))

    assert own_certificate_in([certificate, namesake.certificate], [hospital.certificate], HEART, now) is None


def test_an_authority_speaks_for_its_own_site_only(hospital: HospitalAuthority, now: datetime) -> None:
    """Hospital a's authority that issues a certificate in b's name is caught, whether or not b has one of its own."""
    other = found(Wanted(start=now, name="Riverside CA"))
    forged = issued(hospital, small_key().public_key(), replace(leaf_of(now), uris=(URI.format("b"),)))
    mine = OwnAuthority(A, hospital.certificate)

    for authorities in ([mine], [OwnAuthority(B, other.certificate), mine]):
        with pytest.raises(
            ForeignNameError, match="authority of a has issued a certificate for another name: b"
        ) as caught:
            identify_own([forged, other.certificate], authorities, HEART, now)
        assert (caught.value.site, caught.value.named) == ("a", "b")


# In the register


def member(register: Register, name: SiteName, now: datetime) -> None:
    """A site that is active, by the register's own steps."""
    token = name * 3
    register.invite(name, token, expires=now + timedelta(hours=1), is_pre_approved=True, now=now)
    identity = (name.encode() * 32)[:32]
    register.request(Redemption(token, identity, f"key of {name}", b""), now)
    register.activate(name, IssuedCertificate(f"first of {name}", f"key of {name}", b"chain"), now)


@pytest.fixture
def own(register: Register, now: datetime) -> OwnAuthorities:
    """A register with the members a and b."""
    member(register, A, now)
    member(register, B, now)
    return OwnAuthorities(register)


def add(
    own: OwnAuthorities, authority: Authority, site: SiteName, made: HospitalAuthority, now: datetime, typed: str = ""
) -> OwnAuthority:
    """As `pki own-authority add` does."""
    fingerprint = typed or authority_fingerprint(made.certificate)
    return own.add(site, made.pem, fingerprint, federation=HEART, kin=authority.authorities(), now=now)


def test_an_authority_counts_for_one_site_and_is_compared_by_people(
    own: OwnAuthorities, authority: Authority, hospital: HospitalAuthority, now: datetime
) -> None:
    """It is refused for a stranger, with another fingerprint, twice, for a second site, and with its name there."""
    with pytest.raises(RefusedError, match="not a member"):
        add(own, authority, SiteName("c"), hospital, now)
    with pytest.raises(RefusedError, match="belongs to another certificate"):
        add(own, authority, A, hospital, now, "abcd-efgh-ijkl-mnop-qrst-uvwx-yz23-4567")

    added = add(own, authority, A, hospital, now, authority_fingerprint(hospital.certificate).upper().replace("-", " "))

    assert own.all() == (added,) == own.valid(now)
    assert own.trusted_pem(now) == hospital.pem
    with pytest.raises(RefusedError, match="already accepted for a"):
        add(own, authority, A, hospital, now)
    with pytest.raises(RefusedError, match="key is that of the authority of a"):
        add(own, authority, B, hospital, now)
    with pytest.raises(RefusedError, match="name of the authority of a"):
        add(own, authority, B, found(Wanted(start=now)), now)
    after = now + timedelta(days=1001)
    assert (own.valid(after), own.trusted_pem(after)) == ((), b"")


def test_a_hospital_changes_its_authority_with_both_in_force(
    own: OwnAuthorities, authority: Authority, hospital: HospitalAuthority, now: datetime
) -> None:
    """Two count beside each other and no third; the one that goes takes what it has issued with it, and no more."""
    following, third = (found(Wanted(start=now, name=name)) for name in ("Next", "Third"))
    for one in (hospital, following):
        add(own, authority, A, one, now)
        accept(own, authority, one, now)
    with pytest.raises(RefusedError, match="2 authorities already"):
        add(own, authority, A, third, now)
    register, generation = own._register, own._register.generation()

    (gone,) = own.remove(A, authority_fingerprint(hospital.certificate))

    assert gone.certificate == hospital.certificate
    assert [one.certificate for one in own.all()] == [following.certificate]
    assert register.site(A).accepted_certificates == ("first of a", following.pem.decode()[-90:-30])
    assert register.generation() == generation + 1
    assert own.sites_in_use() == {A}
    own.remove(A)
    assert (own.all(), own.sites_in_use()) == ((), frozenset())
    with pytest.raises(RefusedError, match="no authority of its own"):
        own.remove(A)


def test_an_authority_with_a_new_key_under_its_old_name_needs_key_identifiers(
    own: OwnAuthorities, authority: Authority, now: datetime
) -> None:
    """Without them TLS would try one of the two alone; with them, or with the key that it had, both count."""
    keys = small_key(), small_key()
    named = [(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False) for key in keys]
    present, following = (
        found(Wanted(start=now, extensions=(one,)), key) for one, key in zip(named, keys, strict=True)
    )
    add(own, authority, A, present, now)

    with pytest.raises(RefusedError, match="no key identifiers distinguish these authorities"):
        add(own, authority, A, found(Wanted(start=now)), now)
    add(own, authority, A, following, now)
    own.remove(A, authority_fingerprint(following.certificate))
    add(own, authority, A, found(Wanted(start=now), keys[0]), now)

    assert len(own.all()) == 2


def accept(own: OwnAuthorities, authority: Authority, one: HospitalAuthority, now: datetime) -> None:
    """Site a's certificate below this authority is accepted."""
    sha256 = one.pem.decode()[-90:-30]
    issued_one = IssuedCertificate(sha256, f"key {sha256}", b"chain")
    own._register.add_certificate(A, issued_one, now, certificates.certificate_sha256(one.certificate))


def test_what_a_removed_authority_has_issued_is_not_accepted_in_a_race(
    own: OwnAuthorities, authority: Authority, hospital: HospitalAuthority, now: datetime
) -> None:
    """A certificate that was looked at before its authority was removed is refused by the register itself."""
    add(own, authority, A, hospital, now)
    own.remove(A)

    with pytest.raises(RefusedError, match="removed in the meantime"):
        accept(own, authority, hospital, now)
    assert own._register.site(A).accepted_certificates == ("first of a",)


def test_revocation_takes_the_authority_along(
    own: OwnAuthorities, authority: Authority, hospital: HospitalAuthority, now: datetime
) -> None:
    """TLS no longer trusts any certificate of a revoked site."""
    add(own, authority, A, hospital, now)
    own._register.revoke(A, now)

    assert own.trusted_pem(now) == b""


def test_a_register_of_before_gets_its_place_for_authorities(tmp_path: Path, now: datetime) -> None:
    """A register without these tables is opened as it is, and takes an authority's table with it."""
    path = tmp_path / "old.sqlite"
    Register.create(path).close()
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE own_certificates")
        database.execute("DROP TABLE own_authorities")
    database.close()

    with Register(path) as register:
        assert OwnAuthorities(register).all() == ()
