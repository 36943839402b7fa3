"""Stores the sites of the federation, and which certificates of these sites are accepted.

A site has the states invited, requested, approved, active. It can be revoked in each state, and then begins again with
a new invitation. The rules:

* a token is redeemed in one transaction. If several requests use it at once, exactly one key succeeds;
* a repeated request with the same keys has the same result, so a lost reply does no harm;
* a TLS key is certified at most once, so a replayed request never yields a second certificate;
* only the hash of a token is stored.

Several processes can use one file at once, each with its own `Register`. A `Register` must not be used across a fork.
Times are aware, from the caller, and stored in whole seconds. The file has mode 0600 and is synced at every change
(host/record_store.py), so a confirmed revocation survives a power cut. It is in the authority's folder and not in the
coordinator's store, because the office invites and revokes sites also where no coordinator has run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from host import secret_files
from host.record_store import Store
from pki.identity_key import differing_fingerprints, is_same_fingerprint
from pki.names import SiteName
from protos.errors import ConfigurationError, RefusedError
from protos.fingerprints import fingerprint

MOST_EACH_DAY: Final = 20  # new certificates of a site; an honest one needs a few in a year
_DAY_SECONDS: Final = 86_400
_CONSEQUENCE: Final = "No site was admitted, and the requested change was not made."
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS sites (
    name TEXT PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('invited', 'requested', 'approved', 'active', 'revoked')),
    identity_key BLOB,
    tls_key_sha256 TEXT,
    signing_request BLOB,
    changed_at INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS invitations (
    token_sha256 TEXT PRIMARY KEY,
    site TEXT NOT NULL UNIQUE,
    expires_at INTEGER NOT NULL,
    is_pre_approved INTEGER NOT NULL,
    used_at INTEGER
) STRICT;
CREATE TABLE IF NOT EXISTS certificates (
    sha256 TEXT PRIMARY KEY,
    site TEXT NOT NULL,
    tls_key_sha256 TEXT NOT NULL UNIQUE,
    chain_pem BLOB NOT NULL,
    is_accepted INTEGER NOT NULL,
    issued_at INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS counter (only INTEGER PRIMARY KEY, generation INTEGER NOT NULL) STRICT;
INSERT OR IGNORE INTO counter VALUES (1, 0);
"""


class SiteState(StrEnum):
    """The progress of a site's enrolment. An `approved` site has not fetched its certificate yet."""

    INVITED = "invited"
    REQUESTED = "requested"
    APPROVED = "approved"
    ACTIVE = "active"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class SiteRecord:
    """One site in the register of sites."""

    name: SiteName
    state: SiteState
    identity_key: bytes | None

    @property
    def identity_fingerprint(self) -> str | None:
        """Return the fingerprint of the site's identity key, or None before the site has requested enrolment."""
        return None if self.identity_key is None else fingerprint(self.identity_key)


@dataclass(frozen=True, slots=True)
class Redemption:
    """A checked enrolment request from a site, with its token's digest (pki/enrolment_decisions.py)."""

    token_sha256: str
    identity_key: bytes
    tls_key_sha256: str
    signing_request: bytes


@dataclass(frozen=True, slots=True)
class IssuedCertificate:
    """A leaf certificate in the register: its SHA-256 (DER), the SHA-256 of its public key, and its chain as PEM."""

    sha256: str
    tls_key_sha256: str
    chain_pem: bytes


class Register:
    """Reads and changes the register in one SQLite file, created by `Register.create`."""

    def __init__(self, path: Path) -> None:
        """Open an existing register. Raises OperatorError: it is missing or damaged, or others can read it."""
        with secret_files.explained(path, "opened"):
            secret_files.check_secret(path, path.stat())
            self._store = Store(path, consequence=_CONSEQUENCE, exists=True)
        self._store.read("SELECT 1 FROM sites LIMIT 1")  # an empty file is no register

    @classmethod
    def create(cls, path: Path) -> Register:
        """Create and open an empty register, mode 0600. An existing file is an error."""
        secret_files.write_secret(path, b"", replace=False)
        with closing(Store(path, consequence=_CONSEQUENCE, exists=True)) as store:
            store.define(_SCHEMA)
        return cls(path)

    def close(self) -> None:
        self._store.close()

    def __enter__(self) -> Register:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def invite(
        self, name: SiteName, token_sha256: str, *, expires: datetime, is_pre_approved: bool, now: datetime
    ) -> None:
        """Record an invitation. An earlier invitation of this site, and the request that used it, become invalid.

        Raises:
            ConfigurationError: the site is active, and would lose its membership.
        """
        with self._changing():
            row = self._row("SELECT state FROM sites WHERE name = ?", name)
            if row is not None and row[0] == SiteState.ACTIVE:
                raise ConfigurationError(
                    what=f"Site {name} is a member of the federation already.",
                    consequence="No invitation was created, and the site remains a member.",
                    remedy=f"If the site has lost its keys, run `pki revoke {name}` first, then invite the site again.",
                )
            self._store.write(
                "INSERT INTO sites (name, state, changed_at) VALUES (?, 'invited', ?) ON CONFLICT (name) DO UPDATE"
                " SET state = 'invited', identity_key = NULL, tls_key_sha256 = NULL, signing_request = NULL,"
                " changed_at = excluded.changed_at",
                name, _seconds(now),
            )  # fmt: skip
            self._store.write("DELETE FROM invitations WHERE site = ?", name)
            self._store.write(
                "INSERT INTO invitations (token_sha256, site, expires_at, is_pre_approved) VALUES (?, ?, ?, ?)",
                token_sha256, name, _seconds(expires), int(is_pre_approved),
            )  # fmt: skip

    def request(self, asked: Redemption, now: datetime) -> SiteRecord:
        """Use an invitation token for one site's two keys. A repeated request with the same keys has the same result.

        Returns:
            The site: requested, or approved at once if the invitation allowed that. A later call with the same keys
            returns its current state.

        Raises:
            RefusedError: the token is unknown, void, expired or used by another key, or the identity key belongs to
                another site.
        """
        with self._changing():
            wanted = "SELECT site, expires_at, is_pre_approved, used_at FROM invitations WHERE token_sha256 = ?"
            if (found := self._row(wanted, asked.token_sha256)) is None:
                raise _refused("this token is unknown or has been replaced by a newer invitation")
            name, (expires_at, is_pre_approved, used_at) = SiteName(found[0]), found[1:]
            if used_at is not None:
                return self._asked_again(name, asked)
            if _seconds(now) >= expires_at:
                raise _refused("this invitation has expired")
            self._check_new_keys(name, asked)
            used = "UPDATE invitations SET used_at = ? WHERE token_sha256 = ?"
            self._store.write(used, _seconds(now), asked.token_sha256)
            state = SiteState.APPROVED if is_pre_approved else SiteState.REQUESTED
            self._store.write(
                "UPDATE sites SET state = ?, identity_key = ?, tls_key_sha256 = ?, signing_request = ?,"
                " changed_at = ? WHERE name = ?",
                state, asked.identity_key, asked.tls_key_sha256, asked.signing_request, _seconds(now), name,
            )  # fmt: skip
            return self.site(name)

    def approve(self, name: SiteName, identity_fingerprint: str, now: datetime) -> None:
        """Allow the certificate that a site requested, after a person compared the fingerprints.

        Raises:
            RefusedError: the site has not requested enrolment, was answered already, or has another identity key.
        """
        with self._changing():
            site = self.site(name)
            if site.state is not SiteState.REQUESTED or site.identity_fingerprint is None:
                raise RefusedError(
                    what=f"Site {site.name} is not waiting for an approval. The state of the site is {site.state}.",
                    consequence="Nothing was changed. No certificate was issued and no data was sent.",
                    remedy="An invited site must first run `site-agent join`. Invite a revoked site again.",
                )
            if not is_same_fingerprint(identity_fingerprint, site.identity_fingerprint):
                raise differing_fingerprints(name, identity_fingerprint, site.identity_fingerprint)
            self._change_state(name, SiteState.APPROVED, now)

    def activate(self, name: SiteName, issued: IssuedCertificate, now: datetime) -> bytes:
        """Accept the first certificate of an approved site. Return the accepted certificate chain as PEM.

        If two replies race, the first certificate is kept and both receive it.
        """
        with self._changing():
            site = self.site(name)
            kept = self.chain_of(name, issued.tls_key_sha256)
            if site.state is SiteState.ACTIVE and kept is not None:
                return kept
            (held,) = self._row("SELECT tls_key_sha256 FROM sites WHERE name = ?", name)
            if site.state is not SiteState.APPROVED or held != issued.tls_key_sha256:
                raise _refused(f"site {name} was revoked or invited again in the meantime")
            self._insert(name, issued, now)
            self._change_state(name, SiteState.ACTIVE, now)
            return issued.chain_pem

    def add_certificate(self, name: SiteName, issued: IssuedCertificate, now: datetime) -> bytes:
        """Accept a site's renewed certificate in addition to the current one. A repeated request keeps the first."""
        with self._changing():
            if self.site(name).state is not SiteState.ACTIVE:
                raise _refused(f"site {name} is not a member of the federation")
            if (kept := self.chain_of(name, issued.tls_key_sha256)) is not None:
                return kept
            self._insert(name, issued, now)
            return issued.chain_pem

    def confirm(self, name: SiteName, certificate_sha256: str) -> None:
        """Record that a site connected with this certificate. The site's earlier certificates become invalid."""
        values = (name, certificate_sha256)
        earlier = "site = ? AND is_accepted = 1 AND rowid < (SELECT rowid FROM certificates WHERE sha256 = ?)"
        # This query needs no write lock. Nearly every call finds nothing to do.
        older = self._row(f"SELECT 1 FROM certificates WHERE {earlier}", *values)  # noqa: S608  # a fixed text
        if older is not None:
            with self._changing():
                self._store.write(f"UPDATE certificates SET is_accepted = 0 WHERE {earlier}", *values)  # noqa: S608

    def is_accepted(self, name: SiteName, certificate_sha256: str) -> bool:
        """Return whether a site may use this certificate now. The query is fast, because every call needs it."""
        wanted = (
            "SELECT 1 FROM certificates JOIN sites ON sites.name = certificates.site WHERE sha256 = ?"
            " AND is_accepted = 1 AND sites.name = ? AND sites.state = 'active'"
        )
        return self._row(wanted, certificate_sha256, name) is not None

    def chain_of(self, name: SiteName, tls_key_sha256: str) -> bytes | None:
        """Return the accepted certificate chain (PEM) that this site received for this TLS key, or None."""
        wanted = "SELECT chain_pem FROM certificates WHERE site = ? AND tls_key_sha256 = ? AND is_accepted = 1"
        row = self._row(wanted, name, tls_key_sha256)
        return None if row is None else bytes(row[0])

    def had_other_key(self, name: SiteName, tls_key_sha256: str) -> bool:
        """Return whether the site ever had a certificate for a TLS key other than this key."""
        wanted = "SELECT 1 FROM certificates WHERE site = ? AND tls_key_sha256 != ?"
        return self._row(wanted, name, tls_key_sha256) is not None

    def identity_key(self, name: SiteName) -> bytes:
        """Return the raw Ed25519 public key of an active site. Raises RefusedError if the site is not active."""
        site = self.site(name)
        if site.state is not SiteState.ACTIVE or site.identity_key is None:
            raise _refused(f"site {name} is not a member of the federation")
        return site.identity_key

    def revoke(self, name: SiteName, now: datetime) -> None:
        """Revoke a site at once: its membership, certificates and open invitation end."""
        with self._changing():
            self.site(name)
            self._store.write("UPDATE certificates SET is_accepted = 0 WHERE site = ?", name)
            self._store.write("DELETE FROM invitations WHERE site = ?", name)
            self._change_state(name, SiteState.REVOKED, now)

    def site(self, name: SiteName) -> SiteRecord:
        """Return one site. Raises RefusedError if the site is not in the register of sites."""
        if (row := self._row("SELECT state, identity_key FROM sites WHERE name = ?", name)) is None:
            raise _refused(f"the register of sites has no site {name}")
        return SiteRecord(name, SiteState(row[0]), row[1])

    def sites(self) -> tuple[SiteRecord, ...]:
        """Return every site, sorted by name."""
        found = self._store.read("SELECT name, state, identity_key FROM sites ORDER BY name")
        return tuple(SiteRecord(SiteName(name), SiteState(state), key) for name, state, key in found)

    def newest_certificates(self) -> dict[str, x509.Certificate]:
        """Return each site's accepted certificate that expires last."""
        newest: dict[str, x509.Certificate] = {}
        for site, chain in self._store.read("SELECT site, chain_pem FROM certificates WHERE is_accepted = 1"):
            leaf = x509.load_pem_x509_certificates(chain)[0]
            if site not in newest or leaf.not_valid_after_utc > newest[site].not_valid_after_utc:
                newest[site] = leaf
        return newest

    def generation(self) -> int:
        """Return a number that grows with every change of the register by any process. The query is fast."""
        return int(self._row("SELECT generation FROM counter")[0])

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Make all changes inside the block, or none. No other process can change the register until it ends."""
        with self._store.transaction():
            yield
            self._store.write("UPDATE counter SET generation = generation + 1")

    def _change_state(self, name: SiteName, state: SiteState, now: datetime) -> None:
        self._store.write("UPDATE sites SET state = ?, changed_at = ? WHERE name = ?", state, _seconds(now), name)

    def _row(self, query: str, *values: str | bytes | int) -> Any:  # Any: columns of several types, or None
        return next(iter(self._store.read(query, *values)), None)

    def _asked_again(self, name: SiteName, asked: Redemption) -> SiteRecord:
        held = self._row("SELECT identity_key, tls_key_sha256 FROM sites WHERE name = ?", name)
        if held != (asked.identity_key, asked.tls_key_sha256):
            raise _refused("this invitation was already used with another key")
        return self.site(name)

    def _check_new_keys(self, name: SiteName, asked: Redemption) -> None:
        # One key under two names would count as two sites towards the quorum.
        used = self._row(
            "SELECT 1 FROM sites WHERE (identity_key = ? OR tls_key_sha256 = ?) AND name <> ?"
            " UNION SELECT 1 FROM certificates WHERE tls_key_sha256 = ?",
            asked.identity_key, asked.tls_key_sha256, name, asked.tls_key_sha256,
        )  # fmt: skip
        if used is not None:
            raise _refused("one of the site's keys was already used in this federation")

    def _insert(self, name: SiteName, issued: IssuedCertificate, now: datetime) -> None:
        if self._row("SELECT 1 FROM certificates WHERE tls_key_sha256 = ?", issued.tls_key_sha256) is not None:
            raise _refused("this TLS key had a certificate before, which is no longer accepted")
        since = _seconds(now) - _DAY_SECONDS
        (recent,) = self._row("SELECT COUNT(*) FROM certificates WHERE site = ? AND issued_at > ?", name, since)
        if recent >= MOST_EACH_DAY:  # each certificate is kept permanently
            raise _refused(f"site {name} received {recent} certificates within a day; the limit is {MOST_EACH_DAY}")
        self._store.write(
            "INSERT INTO certificates (sha256, site, tls_key_sha256, chain_pem, is_accepted, issued_at)"
            " VALUES (?, ?, ?, ?, 1, ?)",
            issued.sha256, name, issued.tls_key_sha256, issued.chain_pem, _seconds(now),
        )  # fmt: skip


def _seconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise ValueError("a time without its zone cannot be compared")
    return int(time.timestamp())


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"The register of sites refused the request: {reason}.",
        consequence="No certificate was issued or accepted, and no data was sent.",
        remedy="Ask the federation office. `pki list` shows the register of sites.",
    )
