"""Stores the sites of the federation, and which certificates of these sites are accepted.

A site has the states invited, requested, approved, active. It can be revoked in each state, and then begins again with
a new invitation. The rules:

* a token is redeemed in one transaction. If several requests use it at once, exactly one key succeeds;
* a repeated request with the same keys has the same result, so a lost reply does no harm;
* a TLS key is certified at most once, so a replayed request never yields a second certificate;
* only the hash of a token is stored.

Several processes can use one file at once, each with its own `Register`. A `Register` must not be used across a fork.
Times are aware, from the caller, and stored in whole seconds. The file is in write-ahead mode, mode 0600, and synced at
every change, so a confirmed revocation survives a power cut. It is in the authority's folder and not in the
coordinator's store, because the office invites and revokes sites also where no coordinator has run.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from host import secret_files
from pki.identity_key import differing_fingerprints, is_same_fingerprint
from pki.names import SiteName
from protos.errors import ConfigurationError, RefusedError, UnavailableError
from protos.fingerprints import fingerprint

MOST_EACH_DAY: Final = 20  # new certificates of a site; an honest one needs a few in a year
_DAY_SECONDS: Final = 86_400
_VERSION = 1
_PATIENCE_SECONDS = 20.0
_SCHEMA = (
    """CREATE TABLE sites (
        name TEXT PRIMARY KEY,
        state TEXT NOT NULL CHECK (state IN ('invited', 'requested', 'approved', 'active', 'revoked')),
        identity_key BLOB,
        tls_key_sha256 TEXT,
        signing_request BLOB,
        changed_at INTEGER NOT NULL
    ) STRICT""",
    """CREATE TABLE invitations (
        token_sha256 TEXT PRIMARY KEY,
        site TEXT NOT NULL UNIQUE REFERENCES sites (name),
        expires_at INTEGER NOT NULL,
        is_pre_approved INTEGER NOT NULL,
        used_at INTEGER
    ) STRICT""",
    """CREATE TABLE certificates (
        sha256 TEXT PRIMARY KEY,
        site TEXT NOT NULL REFERENCES sites (name),
        tls_key_sha256 TEXT NOT NULL UNIQUE,
        chain_pem BLOB NOT NULL,
        is_accepted INTEGER NOT NULL,
        issued_at INTEGER NOT NULL
    ) STRICT""",
    "CREATE TABLE counter (generation INTEGER NOT NULL) STRICT",
    "INSERT INTO counter VALUES (0)",
    f"PRAGMA user_version = {_VERSION}",
)


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
        self._path = path
        self._connection = _connect(path)
        self._lock = threading.Lock()

    @classmethod
    def create(cls, path: Path) -> Register:
        """Create and open an empty register, mode 0600. An existing file is an error."""
        _create(path)
        return cls(path)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

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
        with self.changing() as database:
            row = self._row("SELECT state FROM sites WHERE name = ?", name)
            if row is not None and row[0] == SiteState.ACTIVE:
                raise ConfigurationError(
                    what=f"Site {name} is a member of the federation already.",
                    consequence="No invitation was created, and the site remains a member.",
                    remedy=f"If the site has lost its keys, run `pki revoke {name}` first, then invite the site again.",
                )
            database.execute(
                "INSERT INTO sites (name, state, changed_at) VALUES (?, 'invited', ?) ON CONFLICT (name) DO UPDATE"
                " SET state = 'invited', identity_key = NULL, tls_key_sha256 = NULL, signing_request = NULL,"
                " changed_at = excluded.changed_at",
                (name, _seconds(now)),
            )
            database.execute("DELETE FROM invitations WHERE site = ?", (name,))
            database.execute(
                "INSERT INTO invitations (token_sha256, site, expires_at, is_pre_approved) VALUES (?, ?, ?, ?)",
                (token_sha256, name, _seconds(expires), int(is_pre_approved)),
            )

    def request(self, asked: Redemption, now: datetime) -> SiteRecord:
        """Use an invitation token for one site's two keys. A repeated request with the same keys has the same result.

        Returns:
            The site: requested, or approved at once if the invitation allowed that. A later call with the same keys
            returns its current state.

        Raises:
            RefusedError: the token is unknown, void, expired or used by another key, or the identity key belongs to
                another site.
        """
        with self.changing() as database:
            wanted = "SELECT site, expires_at, is_pre_approved, used_at FROM invitations WHERE token_sha256 = ?"
            found = self._row(wanted, asked.token_sha256)
            if found is None:
                raise _refused("this token is unknown or has been replaced by a newer invitation")
            name, (expires_at, is_pre_approved, used_at) = SiteName(found[0]), found[1:]
            if used_at is not None:
                return self._asked_again(name, asked)
            if _seconds(now) >= expires_at:
                raise _refused("this invitation has expired")
            self._check_new_keys(name, asked)
            database.execute(
                "UPDATE invitations SET used_at = ? WHERE token_sha256 = ?", (_seconds(now), asked.token_sha256)
            )
            state = SiteState.APPROVED if is_pre_approved else SiteState.REQUESTED
            database.execute(
                "UPDATE sites SET state = ?, identity_key = ?, tls_key_sha256 = ?, signing_request = ?,"
                " changed_at = ? WHERE name = ?",
                (state, asked.identity_key, asked.tls_key_sha256, asked.signing_request, _seconds(now), name),
            )
            return self._site(name)

    def approve(self, name: SiteName, identity_fingerprint: str, now: datetime) -> None:
        """Allow the certificate that a site requested, after a person compared the fingerprints.

        Raises:
            RefusedError: the site has not requested enrolment, was answered already, or has another identity key.
        """
        with self.changing() as database:
            site = self._site(name)
            if site.state is not SiteState.REQUESTED or site.identity_fingerprint is None:
                raise _nothing_to_approve(site)
            if not is_same_fingerprint(identity_fingerprint, site.identity_fingerprint):
                raise differing_fingerprints(name, identity_fingerprint, site.identity_fingerprint)
            database.execute(
                "UPDATE sites SET state = 'approved', changed_at = ? WHERE name = ?", (_seconds(now), name)
            )

    def activate(self, name: SiteName, issued: IssuedCertificate, now: datetime) -> bytes:
        """Accept the first certificate of an approved site. Return the accepted certificate chain as PEM.

        If two replies race, the first certificate is kept and both receive it.
        """
        with self.changing() as database:
            site = self._site(name)
            kept = self._chain_of(name, issued.tls_key_sha256)
            if site.state is SiteState.ACTIVE and kept is not None:
                return kept
            (held,) = self._row("SELECT tls_key_sha256 FROM sites WHERE name = ?", name)
            if site.state is not SiteState.APPROVED or held != issued.tls_key_sha256:
                raise _refused(f"site {name} was revoked or invited again in the meantime")
            self._insert(name, issued, now)
            database.execute("UPDATE sites SET state = 'active', changed_at = ? WHERE name = ?", (_seconds(now), name))
            return issued.chain_pem

    def add_certificate(self, name: SiteName, issued: IssuedCertificate, now: datetime) -> bytes:
        """Accept a site's renewed certificate in addition to the current one. A repeated request keeps the first."""
        with self.changing():
            if self._site(name).state is not SiteState.ACTIVE:
                raise _refused(f"site {name} is not a member of the federation")
            kept = self._chain_of(name, issued.tls_key_sha256)
            if kept is not None:
                return kept
            self._insert(name, issued, now)
            return issued.chain_pem

    def confirm(self, name: SiteName, certificate_sha256: str) -> None:
        """Record that a site connected with this certificate. The site's earlier certificates become invalid."""
        values = (name, certificate_sha256)
        earlier = "site = ? AND is_accepted = 1 AND rowid < (SELECT rowid FROM certificates WHERE sha256 = ?)"
        with self.reading():
            # This query needs no write lock. Nearly every call finds nothing to do.
            older = self._row(f"SELECT 1 FROM certificates WHERE {earlier}", *values)  # noqa: S608  # a fixed text
        if older is not None:
            with self.changing() as database:
                database.execute(f"UPDATE certificates SET is_accepted = 0 WHERE {earlier}", values)  # noqa: S608

    def is_accepted(self, name: SiteName, certificate_sha256: str) -> bool:
        """Return whether a site may use this certificate now. The query is fast, because every call needs it."""
        with self.reading():
            found = self._row(
                "SELECT 1 FROM certificates JOIN sites ON sites.name = certificates.site WHERE sha256 = ?"
                " AND is_accepted = 1 AND sites.name = ? AND sites.state = 'active'",
                certificate_sha256,
                name,
            )
            return found is not None

    def chain_of(self, name: SiteName, tls_key_sha256: str) -> bytes | None:
        """Return the accepted certificate chain (PEM) that this site received for this TLS key, or None."""
        with self.reading():
            return self._chain_of(name, tls_key_sha256)

    def had_other_key(self, name: SiteName, tls_key_sha256: str) -> bool:
        """Return whether the site ever had a certificate for a TLS key other than this key."""
        with self.reading():
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
        with self.changing() as database:
            self._site(name)
            database.execute("UPDATE certificates SET is_accepted = 0 WHERE site = ?", (name,))
            database.execute("DELETE FROM invitations WHERE site = ?", (name,))
            database.execute("UPDATE sites SET state = 'revoked', changed_at = ? WHERE name = ?", (_seconds(now), name))

    def site(self, name: SiteName) -> SiteRecord:
        """Return one site. Raises RefusedError if the site is not in the register of sites."""
        with self.reading():
            return self._site(name)

    def sites(self) -> tuple[SiteRecord, ...]:
        """Return every site, sorted by name."""
        with self.reading() as database:
            names = database.execute("SELECT name FROM sites ORDER BY name").fetchall()
            return tuple(self._site(SiteName(row[0])) for row in names)

    def generation(self) -> int:
        """Return a number that grows with every change of the register by any process. The query is fast."""
        with self.reading():
            return int(self._row("SELECT generation FROM counter")[0])

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open the database for reading, for this thread alone, until the block ends."""
        with self._lock, _explained(self._path):
            yield self._connection

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """Open the database in one transaction inside the block: all changes are made, or none.

        No other process can change the register until the block ends, so its files can be copied meanwhile.
        """
        with self.reading() as database:
            database.execute("BEGIN IMMEDIATE")  # takes the write lock first, so what is read inside stays true
            try:
                yield database
                database.execute("UPDATE counter SET generation = generation + 1")
                database.execute("COMMIT")
            except BaseException:
                if database.in_transaction:
                    database.execute("ROLLBACK")
                raise

    def _row(self, query: str, *values: str | bytes | int) -> Any:  # Any: columns of several types, or None
        return self._connection.execute(query, values).fetchone()

    def _site(self, name: SiteName) -> SiteRecord:
        row = self._row("SELECT state, identity_key FROM sites WHERE name = ?", name)
        if row is None:
            raise _refused(f"the register of sites has no site {name}")
        return SiteRecord(name, SiteState(row[0]), row[1])

    def _asked_again(self, name: SiteName, asked: Redemption) -> SiteRecord:
        held = self._row("SELECT identity_key, tls_key_sha256 FROM sites WHERE name = ?", name)
        if held != (asked.identity_key, asked.tls_key_sha256):
            raise _refused("this invitation was already used with another key")
        return self._site(name)

    def _check_new_keys(self, name: SiteName, asked: Redemption) -> None:
        # One key under two names would count as two sites towards the quorum.
        used = self._row(
            "SELECT 1 FROM sites WHERE (identity_key = ? OR tls_key_sha256 = ?) AND name <> ?"
            " UNION SELECT 1 FROM certificates WHERE tls_key_sha256 = ?",
            asked.identity_key, asked.tls_key_sha256, name, asked.tls_key_sha256,
        )  # fmt: skip
        if used is not None:
            raise _refused("one of the site's keys was already used in this federation")

    def _chain_of(self, name: SiteName, tls_key_sha256: str) -> bytes | None:
        wanted = "SELECT chain_pem FROM certificates WHERE site = ? AND tls_key_sha256 = ? AND is_accepted = 1"
        row = self._row(wanted, name, tls_key_sha256)
        return None if row is None else bytes(row[0])

    def _insert(self, name: SiteName, issued: IssuedCertificate, now: datetime) -> None:
        if self._row("SELECT 1 FROM certificates WHERE tls_key_sha256 = ?", issued.tls_key_sha256) is not None:
            raise _refused("this TLS key had a certificate before, which is no longer accepted")
        since = _seconds(now) - _DAY_SECONDS
        (recent,) = self._row("SELECT COUNT(*) FROM certificates WHERE site = ? AND issued_at > ?", name, since)
        if recent >= MOST_EACH_DAY:  # each certificate is kept permanently
            raise _refused(f"site {name} received {recent} certificates within a day; the limit is {MOST_EACH_DAY}")
        self._connection.execute(
            "INSERT INTO certificates (sha256, site, tls_key_sha256, chain_pem, is_accepted, issued_at)"
            " VALUES (?, ?, ?, ?, 1, ?)",
            (issued.sha256, name, issued.tls_key_sha256, issued.chain_pem, _seconds(now)),
        )


def newest_certificates(register: Path) -> dict[str, x509.Certificate]:
    """Return each site's accepted certificate that expires last. Raises OperatorError if the file cannot be read."""
    with secret_files.explained(register, "read"), closing(_connect(register)) as connection:
        rows = connection.execute("SELECT site, chain_pem FROM certificates WHERE is_accepted = 1").fetchall()
    newest: dict[str, x509.Certificate] = {}
    for site, chain in rows:
        leaf = x509.load_pem_x509_certificates(chain)[0]
        if site not in newest or leaf.not_valid_after_utc > newest[site].not_valid_after_utc:
            newest[site] = leaf
    return newest


def _create(path: Path) -> None:
    """Create an empty register. An existing file is an error."""
    secret_files.write_secret(path, b"", replace=False)
    with _explained(path), closing(_open(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("COMMIT")


def _connect(path: Path) -> sqlite3.Connection:
    """Open an existing register, after checking its format and that only its owner can read it."""
    with secret_files.explained(path, "opened"):
        secret_files.check_secret(path, path.stat())
    with _explained(path):
        connection = _open(path)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != _VERSION:
            connection.close()
            raise ConfigurationError(
                what=f"The register of sites {path} has a format that this version cannot read.",
                consequence="No site was admitted and the file is unchanged.",
                remedy="Use the register.sqlite that `pki init` created, or restore this file from its backup.",
            )
        return connection


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Convert SQLite's failures to errors with three sentences."""
    try:
        yield
    except sqlite3.OperationalError as cause:
        raise UnavailableError(
            what=f"The register of sites {path} cannot be used now: {cause}.",
            consequence="No site was admitted, and the requested change was not made.",
            remedy="Check the disk's free space and the file's owner, then try again.",
        ) from cause
    except sqlite3.DatabaseError as cause:
        raise ConfigurationError(
            what=f"{path} is damaged or is not a register of sites: {cause}.",
            consequence="No site was admitted, and the requested change was not made.",
            remedy=(
                "Restore register.sqlite from its backup. Issue all certificates again that were issued after this "
                "backup."
            ),
        ) from cause


def _open(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw",
        uri=True,
        timeout=_PATIENCE_SECONDS,
        isolation_level=None,  # transactions never begin automatically
        check_same_thread=False,
    )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _seconds(time: datetime) -> int:
    if time.tzinfo is None:
        raise ValueError("a time without its zone cannot be compared")
    return int(time.timestamp())


def _nothing_to_approve(site: SiteRecord) -> RefusedError:
    return RefusedError(
        what=f"Site {site.name} is not waiting for an approval. The state of the site is {site.state}.",
        consequence="Nothing was changed. No certificate was issued and no data was sent.",
        remedy="If it is invited, ask the site to run `site-agent join`. If it is revoked, invite it again.",
    )


def _refused(reason: str) -> RefusedError:
    return RefusedError(
        what=f"The register of sites refused the request: {reason}.",
        consequence="No certificate was issued or accepted, and no data was sent.",
        remedy="Ask the federation office. `pki list` shows the register of sites.",
    )
