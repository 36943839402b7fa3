"""Stores in the register of sites which certificate authorities of hospitals are accepted, each for one site.

The removal of an authority and of every certificate that it issued is one transaction. A running coordinator applies it
within a second.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime
from typing import Final

from cryptography import x509

from pki.certificate_chain import certificates_in
from pki.certificates import certificate_pem, certificate_sha256
from pki.identity_key import is_same_fingerprint
from pki.names import FederationName, SiteName
from pki.own_authority import Kin, OwnAuthority, authority_fingerprint, own_authority_in
from pki.register import Register
from protos.errors import RefusedError

MOST_OF_A_SITE: Final = 2  # the current one and its successor


class OwnAuthorities:
    """Reads and changes the hospitals' own authorities in a register."""

    def __init__(self, register: Register) -> None:
        """Store the open register. The caller closes the register."""
        self._register = register

    def all(self) -> tuple[OwnAuthority, ...]:
        """Return every certificate authority with its site. For each site the newest authority is first."""
        with self._register.reading() as database:
            return _all(database)

    def valid(self, now: datetime) -> tuple[OwnAuthority, ...]:
        """Return the hospitals' certificate authorities that are valid now.

        TLS would stop at an expired one, even if another has the same name.
        """
        return tuple(
            one
            for one in self.all()
            if one.certificate.not_valid_before_utc <= now <= one.certificate.not_valid_after_utc
        )

    def trusted_pem(self, now: datetime) -> bytes:
        """Return the hospitals' valid authorities as PEM. TLS must trust them in addition to the federation's roots."""
        return b"".join(certificate_pem(one.certificate) for one in self.valid(now))

    def add(
        self, site: SiteName, pem: bytes, fingerprint: str, *, federation: FederationName, kin: Kin, now: datetime
    ) -> OwnAuthority:
        """Accept a hospital's own certificate authority (PEM) for one site from now on.

        Args:
            fingerprint: the fingerprint that the hospital's people have read aloud.
            kin: the federation's own authorities, each with its title.
            now: an aware time.

        Raises:
            RefusedError: the site is no member, the fingerprint differs, or the authority may not be accepted.
        """
        with self._register.changing() as database:
            member = "SELECT 1 FROM sites WHERE name = ? AND state = 'active'"
            if database.execute(member, (site,)).fetchone() is None:
                raise _refused(f"site {site} is not a member of the federation")
            present = _all(database)
            mine = [one for one in present if one.site == site]
            others = [(f"the authority of {one.site}", one.certificate) for one in present if one.site != site]
            certificate = own_authority_in(pem, [*kin, *others, *_between(database, site)], federation, now)
            if not is_same_fingerprint(fingerprint, authority_fingerprint(certificate)):
                raise _refused("the typed fingerprint belongs to another certificate")
            if any(one.certificate == certificate for one in mine):
                raise _refused(f"this authority is already accepted for {site}")
            if any(not _told_apart(one.certificate, certificate) for one in mine):
                raise _refused(
                    f"it has the same name as {site}'s present authority, and no key identifiers distinguish these "
                    "authorities"
                )
            if len(mine) >= MOST_OF_A_SITE:
                raise _refused(f"{site} has {MOST_OF_A_SITE} authorities already; remove the older one first")
            database.execute(
                "INSERT INTO own_authorities (sha256, site, certificate_pem, added_at) VALUES (?, ?, ?, ?)",
                (certificate_sha256(certificate), site, certificate_pem(certificate), int(now.timestamp())),
            )
            return OwnAuthority(site, certificate)

    def remove(self, site: SiteName, fingerprint: str | None = None) -> tuple[OwnAuthority, ...]:
        """Stop accepting a site's authorities, or only one of them, and their certificates. Return these authorities.

        Raises:
            RefusedError: there is no such authority.
        """
        with self._register.changing() as database:
            gone = tuple(
                one
                for one in _all(database)
                if one.site == site and (fingerprint is None or is_same_fingerprint(fingerprint, one.fingerprint))
            )
            if not gone:
                raise _refused(f"{site} has no authority of its own, or none with this fingerprint")
            for one in gone:
                database.execute(
                    "UPDATE certificates SET is_accepted = 0 WHERE sha256 IN"
                    " (SELECT sha256 FROM own_certificates WHERE authority_sha256 = ?)",
                    (one.sha256,),
                )
                database.execute("DELETE FROM own_authorities WHERE sha256 = ?", (one.sha256,))
            return gone

    def sites_in_use(self) -> frozenset[SiteName]:
        """Return the sites with an accepted certificate that their hospital's own authority issued."""
        with self._register.reading() as database:
            rows = database.execute(
                "SELECT DISTINCT site FROM certificates JOIN own_certificates USING (sha256) WHERE is_accepted = 1"
            ).fetchall()
        return frozenset(SiteName(row[0]) for row in rows)


def _all(database: sqlite3.Connection) -> tuple[OwnAuthority, ...]:
    rows = database.execute("SELECT site, certificate_pem FROM own_authorities ORDER BY site, rowid DESC").fetchall()
    return tuple(OwnAuthority(SiteName(site), certificates_in(bytes(pem))[0]) for site, pem in rows)


def _between(database: sqlite3.Connection, site: SiteName) -> list[tuple[str, x509.Certificate]]:
    """Return the issuers of other sites' certificates. A new authority with an issuer's name would lock out a site."""
    rows = database.execute(
        "SELECT site, chain_pem FROM certificates JOIN own_certificates USING (sha256)"
        " WHERE is_accepted = 1 AND site <> ?",
        (site,),
    ).fetchall()
    return [(f"an authority of {other}", one) for other, pem in rows for one in certificates_in(bytes(pem))[1:]]


def _told_apart(one: x509.Certificate, other: x509.Certificate) -> bool:
    """Return whether TLS can distinguish two authorities. TLS finds an issuer by its name or key identifier."""
    return (
        one.subject != other.subject
        or one.public_key() == other.public_key()
        or (_has_identifier(one) and _has_identifier(other))
    )


def _has_identifier(certificate: x509.Certificate) -> bool:
    return any(isinstance(one.value, x509.SubjectKeyIdentifier) for one in certificate.extensions)


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"The register of sites refused the request: {reason}.",
        consequence="The trusted authorities are unchanged.",
        remedy="`pki own-authority list` shows the trusted authorities, and `pki list` shows the members.",
    )
