"""Status and metrics report the sent data: counted over every file of the log."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.log_files import full_files
from audit.own_log import AuditLog, Limits
from site_agent.service.released_volume import LeftCount


def test_what_has_left_outlasts_rotation(tmp_path: Path) -> None:
    """A count that has watched the log, and one that begins after it, know what stands in files that were put aside."""
    path, key = tmp_path / "audit.log", Ed25519PrivateKey.generate()
    log = AuditLog(path, site="a", now=lambda: datetime.now(UTC), identity_key=key, limits=Limits(largest_bytes=1500))
    watching = LeftCount(path)
    watched = []
    for _ in range(12):
        log.write("contribution_handed_over", bytes=100)
        watched.append(watching.now().contributions)
    log.close()

    assert full_files(path)
    assert watched == list(range(1, 13))
    assert watching.now() == LeftCount(path).now()
    assert (watching.now().contributions, watching.now().handed_bytes) == (12, 1200)


def test_a_log_that_was_cut_is_counted_again(tmp_path: Path) -> None:
    """What was counted of a file that is shorter now is forgotten; where there is no log, nothing has left."""
    path = tmp_path / "audit.log"
    count = LeftCount(path)
    line = b'{"facts":{"event":"contribution_handed_over","bytes":5}}\n'
    none = count.now().contributions
    path.write_bytes(line * 3)
    three = count.now().contributions
    path.write_bytes(line + line[:10])

    assert (none, three, count.now().contributions) == (0, 3, 1)


def test_files_before_one_that_was_cut_are_counted_too(tmp_path: Path) -> None:
    """A cut or replaced file begins the count again, over all files."""
    line = b'{"facts":{"event":"contribution_handed_over","bytes":5}}\n'
    path, key = tmp_path / "audit.log", Ed25519PrivateKey.generate()
    log = AuditLog(path, site="a", now=lambda: datetime.now(UTC), identity_key=key, limits=Limits(largest_bytes=1500))
    for _ in range(12):
        log.write("contribution_handed_over", bytes=100)
    log.close()
    count = LeftCount(path)
    count.now()

    path.write_bytes(line)

    assert count.now() == LeftCount(path).now()
