"""Hospitals that have authorities of their own, and what the office does with these."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509

from pki import own_keys
from pki.authority import Authority
from pki.certificates import certificate_pem, requested_key
from pki.names import SiteName
from pki.own_authority import authority_fingerprint
from pki.own_register import OwnAuthorities
from pki.register import Register
from protos.errors import UnavailableError
from protos.plan.plan import Plan
from tests.pki.hospital import HospitalAuthority, Leaf, Wanted, found, issued
from tests.pki.whole_site import SiteKeys
from tests.rehearsal.federation import Office, Running, utc_now
from tests.rehearsal.study import SITES, plan_with
from tests.rehearsal.test_upkeep import Site

A = SiteName("a")


@dataclass(frozen=True)
class Hospital:
    """A hospital's authority, and the one below it that issues."""

    root: HospitalAuthority
    issuing: HospitalAuthority

    @classmethod
    def named(cls, name: str) -> Hospital:
        """With an authority between."""
        root = found(Wanted(start=utc_now(), name=name))
        between = found(Wanted(start=utc_now(), name=f"{name} issuing", path_length=0), above=root)
        return cls(root, between)

    def chain(self, leaf: x509.Certificate) -> bytes:
        """As a hospital's people hand it over: certificate, what is between, authority."""
        return certificate_pem(leaf) + self.issuing.pem + self.root.pem

    def certify(self, keys: SiteKeys, leaf: Leaf) -> bytes:
        """The chain for a site's request."""
        request = own_keys.waiting_request(keys, SiteName("a"), has_new_key=True)
        return self.chain(issued(self.issuing, requested_key(request), leaf))


def leaf_of(site: str = "a") -> Leaf:
    """The required content of a site's certificate."""
    return Leaf(uris=(f"spiffe://heart/site/{site}",), start=utc_now())


def bring(office: Office, site: str, hospital: Hospital) -> None:
    """As `pki own-authority add` does, while the coordinator runs."""
    typed = authority_fingerprint(hospital.root.certificate)
    with Register(office.authority.register_path) as register:
        OwnAuthorities(register).add(
            SiteName(site),
            hospital.root.pem,
            typed,
            federation=office.authority.federation,
            kin=office.authority.authorities(),
            now=utc_now(),
        )


def take_away(office: Office, site: str) -> None:
    """As `pki own-authority remove` does."""
    with Register(office.authority.register_path) as register:
        OwnAuthorities(register).remove(SiteName(site))


async def change_over(site: Site, office: Office, running: Running) -> None:
    """The agent sends the waiting certificate, starts to use it, and connects with it."""
    with pytest.raises(UnavailableError, match="received its next certificate"):
        await site.talk(office, running.address, "a", until=9)
    await site.talk(office, running.address, "a", until=1)
    await site.upkeep.accepted()


def copied(made: Office, folder: Path) -> Office:
    """A copy of a federation, to be changed."""
    shutil.copytree(made.folder, folder)
    return Office(folder, Authority.load(folder / "authority"))


def plan_of(office: Office, rounds: int = 3) -> Plan:
    """A study of its three sites."""
    return plan_with({site: office.keys(site).identity_fingerprint() for site in SITES}, rounds=rounds)
