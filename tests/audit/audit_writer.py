"""Writes records into an audit log until it is killed, and prints the number of each written record."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.audit_log import Consequences, Limits, LogFile
from protos.wire.log_checkpoints import sign_checkpoint


def write_for_ever(path: Path) -> None:
    """Records of a few kilobytes, in files that are full after a few of them."""
    key = Ed25519PrivateKey.generate()
    log = LogFile(
        path,
        now=lambda: datetime.now(UTC),
        consequences=Consequences("Nothing leaves.", "Nothing left."),
        sign=lambda generation, position: sign_checkpoint("site/a", generation, position, "2026-03-01", key),
        limits=Limits(largest_bytes=30_000),
    )
    while True:
        number = log.position.sequence
        log.write([{"event": "written", "padding": "x" * 3000} for _ in range(3)])
        sys.stdout.buffer.write(b"%d\n" % number)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    write_for_ever(Path(sys.argv[1]))
