"""A log under SIGKILL, and a log of a million records: the first is never invalid.

The second is read in a minute.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from audit.log_files import all_files
from audit.own_log import AuditLog
from audit.reading.log_commands import Desk
from audit.reading.log_verification import KnownKeys, verify_log
from protos.wire.log_chain import LogPosition, append
from tests.audit import audit_writer

REPOSITORY = Path(__file__).parents[2]


def killed_while_writing(path: Path, generator: random.Random) -> int:
    """Let a real process write and kill it at a random moment. Return the number of the last announced record."""
    words = [sys.executable, audit_writer.__file__, path]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": "."}
    ) as writer:
        assert writer.stdout is not None
        announced = int(writer.stdout.readline())
        time.sleep(generator.uniform(0, 0.05))  # the moment varies; nothing is waited for
        writer.kill()
        rest = writer.stdout.read().splitlines(keepends=True)
    return int(rest[-1]) if rest and rest[-1].endswith(b"\n") else announced


def assert_log_survives(path: Path, kills: int, seed: int) -> None:
    """After every kill the log opens, has all announced records, and verifies as a whole."""
    generator = random.Random(seed)
    for _ in range(kills):
        announced = killed_while_writing(path, generator)
        AuditLog(path, site="a", now=audit_writer.datetime.now).close()
        found = verify_log(path, owner="site/a", keys=KnownKeys())
        assert found.position.sequence >= announced + 3
        for full in all_files(path)[:-3]:
            assert full.stat().st_size < 50_000


def test_a_log_is_never_invalid_after_a_kill(tmp_path: Path) -> None:
    """After a few kills of its program during writing and rotation, a log has all announced records."""
    assert_log_survives(tmp_path / "audit.log", kills=4, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_hundred_kills_leave_no_invalid_log(tmp_path: Path) -> None:
    """Killed two hundred times at random moments, the same log still verifies from its first record."""
    assert_log_survives(tmp_path / "audit.log", kills=200, seed=1)


def long_log(path: Path, records: int) -> None:
    """A log of this many records of the usual size."""
    facts = {
        "event": "contribution_released",
        "site": "a",
        "time": "2026-03-01T12:00:00.000+00:00",
        "run": "heart-v1-0123456789ab",
        "attempt": 0,
        "position": "0" * 64,
        "contributors": ["a", "b", "c"],
        "manifest": "0" * 64,
        "bytes": 401_408,
        "masked": True,
    }
    position = LogPosition()
    with path.open("wb") as file:
        for number in range(records):
            position, _, line = append(position, facts | {"round": number}, number.to_bytes(16, "little"))
            file.write(line)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_records_are_verified(tmp_path: Path) -> None:
    """A log of a million records is verified to its last record.

    The seconds are printed, about a minute of one core.
    """
    long_log(tmp_path / "audit.log", 1_000_000)
    began = time.process_time()

    found = Desk(tmp_path / "audit.log", "site/a", KnownKeys()).verification()
    seconds = time.process_time() - began

    print(f"million_records_verified_seconds={seconds:.1f}")
    assert found.position.sequence == 1_000_000
