"""A log over several files: each has the checkpoint of the previous file, and none can be removed or exchanged."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.log_files import full_files
from audit.own_log import AuditError, Limits
from audit.reading.log_commands import Desk
from audit.reading.log_verification import KnownKeys
from protos.errors import ConfigurationError
from tests.audit.audit_sides import PUBLIC, SITE, Side, desk
from tests.for_each import for_each


@pytest.fixture
def rotated(tmp_path: Path) -> Iterator[Side]:
    """A log over several files."""
    side = Side(tmp_path / "site", SITE, Limits(largest_bytes=2600))
    side.work(30)
    yield side
    side.log.close()


def test_a_full_file_is_put_aside_and_the_next_carries_its_head_on(rotated: Side) -> None:
    """The chain and its verification cover all files, and a reopened log continues at its end."""
    found = desk(rotated).verification()
    again = Side(rotated.path.parent, SITE)
    again.work(1)
    again.log.close()

    assert found.files > 3
    assert desk(rotated).verification().position.sequence == found.position.sequence + 1
    assert len(list(rotated.log.records("contribution_released"))) == 31
    assert len(rotated.log.leaves(0, 1000)) == found.position.sequence + 1
    assert rotated.log.leaves(7, 3) == rotated.log.leaves(0, 1000)[7:10]


def test_a_file_that_was_taken_out_or_changed_is_found(rotated: Side) -> None:
    """A missing, exchanged or changed full file is reported by name."""
    second = full_files(rotated.path)[1]
    content = second.read_bytes()

    second.unlink()
    with pytest.raises(AuditError, match="line 1: earlier records were removed"):
        desk(rotated).verification()
    second.write_bytes(content.replace(b'"round":', b'"round":1', 1))
    with pytest.raises(AuditError, match=f"{second.name}, line [0-9]+: "):
        desk(rotated).verification()
    second.write_bytes(content)
    desk(rotated).verification()


def test_files_are_deleted_when_their_time_is_over_and_the_rest_still_verifies(rotated: Side) -> None:
    """Files older than the retention period are deleted and recorded.

    The next file's signed checkpoint replaces them.
    """
    for file in full_files(rotated.path)[:2]:
        os.utime(file, (0, 0))
    before = len(full_files(rotated.path))

    rotated.work(12)

    found = desk(rotated).verification()
    assert found.first > 0
    assert len(full_files(rotated.path)) < before + 2
    assert len(list(rotated.log.records("log_file_deleted"))) == 2


def test_two_writers_follow_each_others_rotation(tmp_path: Path) -> None:
    """A program that still has the old file open continues in the new one, and the chain is complete."""
    one, other = (Side(tmp_path, SITE, Limits(largest_bytes=1500)) for _ in range(2))

    for _ in range(10):
        one.work(2)
        other.work(1)

    assert len(list(one.log.records("contribution_released"))) == 30
    assert desk(one).verification().files > 2
    one.log.close()
    other.log.close()


@for_each("seed", range(5))
def test_the_newest_records_are_remembered_as_they_lie_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Over two writers and several files, leaves and positions are the same from memory and from disk."""
    drawn = random.Random(seed)
    sides = [Side(tmp_path, SITE, Limits(largest_bytes=1500)) for _ in range(2)]
    for _ in range(12):
        sides[drawn.randrange(2)].work(drawn.randrange(1, 4))
    monkeypatch.setattr("audit.own_log._MOST_NEWEST", 0)
    reader = Side(tmp_path, SITE)

    for side in sides:
        for start in range(side.log.position.sequence + 2):
            most = drawn.randrange(1, 9)
            assert side.log.leaves(start, most) == reader.log.leaves(start, most)
            assert side.log.position_at(start) == reader.log.position_at(start)
    for side in (*sides, reader):
        side.log.close()


def test_a_log_that_is_exchanged_under_its_owner_stops_it(tmp_path: Path) -> None:
    """The program does not write to another file in the log's place."""
    side = Side(tmp_path, SITE)
    side.work()
    side.path.unlink()

    with pytest.raises(AuditError, match="removed or replaced"):
        side.work()
    side.log.close()


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    """An absent log proves nothing."""
    with pytest.raises(ConfigurationError, match="There is no audit log"):
        Desk(tmp_path / "audit.log", SITE, KnownKeys(PUBLIC)).verification()
