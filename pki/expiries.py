"""Expiry dates of the certificates that the register accepts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import datetime
from pathlib import Path

from cryptography import x509

from pki import register_tables
from pki.store import explained


def certificate_ends(register: Path) -> dict[str, datetime]:
    """Return for each site the end of its newest accepted certificate, in UTC. Sites without one are left out.

    Args:
        register: the register's file.

    Raises:
        OperatorError: it cannot be read.
    """
    return {site: leaf.not_valid_after_utc for site, leaf in newest_certificates(register).items()}


def newest_certificates(register: Path) -> dict[str, x509.Certificate]:
    """Return for each site the accepted certificate that ends last. Sites without one are left out.

    Args:
        register: the register's file.

    Raises:
        OperatorError: it cannot be read.
    """
    with explained(register, "read"), closing(register_tables.connect(register)) as connection:
        rows = _accepted(connection)
    newest: dict[str, x509.Certificate] = {}
    for site, chain in rows:
        leaf = x509.load_pem_x509_certificates(chain)[0]
        if site not in newest or leaf.not_valid_after_utc > newest[site].not_valid_after_utc:
            newest[site] = leaf
    return newest


def _accepted(connection: sqlite3.Connection) -> list[tuple[str, bytes]]:
    return connection.execute("SELECT site, chain_pem FROM certificates WHERE is_accepted = 1").fetchall()
