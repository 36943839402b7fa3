"""Records of what has happened already: synced with the next record, and never later than a checkpoint over them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from audit.log_files import full_files
from audit.own_log import AuditError, AuditLog, Limits
from protos.wire.log_checkpoints import COORDINATOR
from tests.audit.audit_sides import SITE, Side


class Disk:
    """Which bytes of each file a computer that loses its power would keep."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.kept: dict[int, bytes] = {}
        self.syncs = 0
        sync = os.fdatasync

        def synced(descriptor: int) -> None:
            sync(descriptor)
            self.syncs += 1
            found = Path(f"/proc/self/fd/{descriptor}")
            self.kept[os.fstat(descriptor).st_ino] = found.read_bytes()

        patch.setattr(os, "fdatasync", synced)

    def has(self, file: Path, word: str) -> bool:
        """Whether the file would still have this word."""
        return word.encode() in self.kept.get(file.stat().st_ino, b"")


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk below the log."""
    return Disk(monkeypatch)


@pytest.fixture
def side(tmp_path: Path, disk: Disk) -> Iterator[Side]:
    """A log with one record."""
    side = Side(tmp_path / "site", SITE, Limits(largest_bytes=2600))
    side.own.write("run_joined")
    yield side
    side.log.close()


def test_such_a_record_is_in_the_file_at_once_and_synced_with_the_next(side: Side, disk: Disk) -> None:
    """A killed process loses nothing of it. The next record syncs both with one call."""
    side.own.write_after("contribution_handed_over", round=1)
    in_file, before, syncs = b"handed_over" in side.path.read_bytes(), disk.has(side.path, "handed_over"), disk.syncs
    side.own.write("contribution_released", round=2)

    assert (in_file, before, disk.syncs - syncs) == (True, False, 1)
    assert disk.has(side.path, "handed_over")


def test_a_witness_gets_no_record_that_is_not_synced(side: Side, disk: Disk) -> None:
    """Leaves are for a checkpoint. A log that lost a record of its checkpoint would be refused for ever."""
    side.own.write_after("contribution_handed_over", round=1)
    side.log.leaves(0, 10)

    assert disk.has(side.path, "handed_over")


def test_a_reader_in_another_process_syncs_what_it_hands_to_a_witness(side: Side, disk: Disk, tmp_path: Path) -> None:
    """Which process wrote the record makes no difference."""
    other = Side(tmp_path / "site", SITE)
    side.own.write_after("contribution_handed_over", round=1)
    other.log.leaves(0, 10)
    other.log.close()

    assert disk.has(side.path, "handed_over")


def test_a_full_file_is_synced_before_the_next_one_has_its_checkpoint(side: Side, disk: Disk) -> None:
    """The next file begins with a checkpoint that covers the full one."""
    while not full_files(side.path):
        side.own.write_after("contribution_handed_over", round=1)
    (full,) = full_files(side.path)

    assert disk.kept[full.stat().st_ino] == full.read_bytes()


def test_a_pulse_and_the_end_sync_what_is_left(side: Side, disk: Disk) -> None:
    """`sync` writes once and then has nothing to do. Closing syncs too."""
    side.own.write_after("contribution_handed_over", round=1)
    before = disk.syncs
    side.own.sync()
    side.own.sync()

    assert disk.has(side.path, "handed_over")
    assert disk.syncs == before + 1


def test_a_record_that_fails_leaves_the_earlier_one_to_be_synced(
    side: Side, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk refuses the next record, that record is taken back, and the earlier one is synced later."""

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    side.own.write_after("contribution_handed_over", round=1)
    before = side.path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full)
        with pytest.raises(AuditError, match="No space left"):
            side.own.write("contribution_released", round=2)
    side.own.sync()

    assert side.path.read_bytes() == before
    assert disk.has(side.path, "handed_over")


@pytest.mark.parametrize("owner", [SITE, COORDINATOR])
@pytest.mark.parametrize(
    ("act", "has_happened"),
    [
        (lambda log: log.write("next"), False),
        (lambda log: log.write_all([{"event": "next"}]), False),
        (lambda log: log.write_after("next"), True),
        (lambda log: log.sync(), True),
        (lambda log: log.leaves(0, 1), True),
    ],
)
def test_an_error_claims_that_nothing_was_sent_only_before_the_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: str,
    act: Callable[[AuditLog], object],
    *,
    has_happened: bool,
) -> None:
    """A disk may also fail after data was sent. The error then says that data may have been sent."""

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    log = Side(tmp_path, owner).own
    log.write_after("contribution_handed_over", round=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        patch.setattr(os, "write", broken)
        with pytest.raises(AuditError, match="Input/output error") as refused:
            act(log)
    log.close()

    assert ("may already have sent" in refused.value.consequence) is has_happened
    assert ("Nothing more was sent" in refused.value.consequence) is not has_happened
