"""Creates and opens the file with the register of sites, and defines its tables.

It is one SQLite file in write-ahead mode, mode 0600, synced at every change. So a confirmed revocation survives a power
cut.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

from cryptography import x509

from host import secret_files
from protos.errors import ConfigurationError, UnavailableError

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


def create(path: Path) -> None:
    """Create an empty register. An existing file is an error."""
    secret_files.write_secret(path, b"", replace=False)
    with explained(path), closing(_open(path)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("COMMIT")


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing register, after checking its format and that only its owner can read it."""
    with secret_files.explained(path, "opened"):
        secret_files.check_secret(path, path.stat())
    with explained(path):
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
def explained(path: Path) -> Iterator[None]:
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


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all changes that the block makes together, or none of them. Increase the register's generation number."""
    # IMMEDIATE takes the write lock first, so data that is read inside cannot change before it is written.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("UPDATE counter SET generation = generation + 1")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


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


def certificate_ends(register: Path) -> dict[str, datetime]:
    """Return when each site's newest accepted certificate expires, in UTC. Raises OperatorError for a damaged file."""
    return {site: leaf.not_valid_after_utc for site, leaf in newest_certificates(register).items()}


def newest_certificates(register: Path) -> dict[str, x509.Certificate]:
    """Return each site's accepted certificate that expires last. Raises OperatorError if the file cannot be read."""
    with secret_files.explained(register, "read"), closing(connect(register)) as connection:
        rows = connection.execute("SELECT site, chain_pem FROM certificates WHERE is_accepted = 1").fetchall()
    newest: dict[str, x509.Certificate] = {}
    for site, chain in rows:
        leaf = x509.load_pem_x509_certificates(chain)[0]
        if site not in newest or leaf.not_valid_after_utc > newest[site].not_valid_after_utc:
            newest[site] = leaf
    return newest
