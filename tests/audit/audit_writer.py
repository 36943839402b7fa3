"""Writes records into an audit log until it is killed, and prints the number of each written record."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.own_log import AuditLog, Limits


def write_for_ever(path: Path) -> None:
    """Records of a few kilobytes, in files that are full after a few of them."""
    key = Ed25519PrivateKey.generate()
    limits = Limits(largest_bytes=30_000)
    log = AuditLog(path, site="a", now=lambda: datetime.now(UTC), identity_key=key, limits=limits)
    while True:
        number = log.position.sequence
        log.write_all([{"event": "written", "padding": "x" * 3000} for _ in range(3)])
        sys.stdout.buffer.write(b"%d\n" % number)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    write_for_ever(Path(sys.argv[1]))
