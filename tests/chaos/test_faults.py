"""Disks that are full or read-only, changed files, clocks that jump: the program stops with a clear error. It never
gives a wrong number."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import yaml

from coordinator.rounds.course import Course
from coordinator.storage.history import store_path
from coordinator.storage.snapshots import Snapshot, SnapshotRow, read_snapshot, write_snapshot
from deploy.quickstart.ports import free_port
from host.audit_log import AuditLog
from host.durable import MODELS_RESERVE_BYTES
from protos.errors import OperatorError
from protos.masking.answered_sets import Answer
from site_agent.gate.masked_steps import MaskedSteps
from site_agent.trainer.disk import write_whole
from tests.chaos import in_process
from tests.chaos.disks import fill, read_only, small_disk
from tests.chaos.in_process import plan_of, to_the_end
from tests.coordinator import in_memory
from tests.coordinator.in_memory import coordinator_log
from tests.rehearsal.federation import Office
from tests.rehearsal.programs import finished, running, says, wait_until
from tests.rehearsal.study import plan_document


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The log's output is not tested here."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    yield
    structlog.configure(**before)


def now() -> datetime:
    """The time."""
    return datetime.now(UTC)


@dataclass(frozen=True)
class Writer:
    """A program's write: it repeats the write, and reports its content."""

    write: Callable[[], None]
    read: Callable[[], Any]
    reserve: int


def decisions(folder: Path) -> Writer:
    """Decisions of a coordinator, which are records of its store."""

    def write() -> None:
        with closing(coordinator_log(folder)) as log:
            log.write_all([{"event": "round_offered", "run": "run", "text": "x" * 20_000}] * 5)

    def read() -> list[bytes]:
        with closing(sqlite3.connect(f"file:{store_path(folder)}?immutable=1", uri=True)) as store:
            return store.execute("SELECT line FROM records").fetchall()

    return Writer(write, read, 0)


def snapshot(folder: Path) -> Writer:
    """A snapshot of a run."""
    rows: list[SnapshotRow] = []

    def write() -> None:
        values = np.full(100_000, 1 + len(rows), np.float32)
        taken = Snapshot(round=1 + len(rows), course=Course(), values=values, rule_state={})
        rows.append(write_snapshot(folder / "snapshots", taken))

    def read() -> list[tuple[int, float]]:
        found = [read_snapshot(folder / "snapshots", row) for row in rows]
        return [(each.round, float(each.values.sum())) for each in found if each is not None]

    return Writer(write, read, MODELS_RESERVE_BYTES)


def release(folder: Path) -> Writer:
    """A masked step and its record, in the gate's store."""
    path = folder / "gate.sqlite"

    def write() -> None:
        with closing(AuditLog(path, site="a", now=now)) as log:
            steps = MaskedSteps(log.store, Answer("run", frozenset(), "rule"))
            with log.store.transaction():
                steps.add(log.head.count, 0, bytes(32), bytes(32))
                log.write("contribution_released", words="x" * 300_000)

    def read() -> tuple[int, int]:
        with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as store:  # needs no space on the disk
            counts = (store.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("masked", "records"))
            return next(counts), next(counts)

    return Writer(write, read, 0)


def _saved_state(folder: Path) -> Writer:
    path = folder / "saves" / "state"
    return Writer(lambda: write_whole(path, os.urandom(300_000)), path.read_bytes, MODELS_RESERVE_BYTES)


FILES = [snapshot, _saved_state]
WRITERS = [decisions, release, *FILES]


@pytest.mark.parametrize("make", FILES)
def test_a_disk_that_fills_stops_the_write_and_leaves_what_was(tmp_path: Path, make: Callable[[Path], Writer]) -> None:
    """Below its reserve nothing begins, and three sentences have the figures. With free space it continues."""
    with small_disk(tmp_path / "disk") as disk:
        writer = make(disk)
        writer.write()
        before = writer.read()
        filler = fill(disk, leaving=writer.reserve - 4096)

        with pytest.raises(OperatorError, match="MB free") as stopped:
            writer.write()

        assert writer.read() == before
        assert stopped.value.remedy
        assert not list(disk.rglob("*partial*"))
        filler.unlink()
        writer.write()


@pytest.mark.parametrize("make", WRITERS)
def test_a_disk_that_is_full_to_the_last_byte_leaves_what_was(
    tmp_path: Path, make: Callable[[Path], Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if free space cannot be checked first: the write itself fails, and earlier files are complete."""
    with small_disk(tmp_path / "disk") as disk:
        writer = make(disk)
        writer.write()
        before = writer.read()
        plenty = os.statvfs_result((4096, 4096, 1 << 30, 1 << 30, 1 << 30, 10, 10, 10, 0, 255))
        filler = fill(disk, leaving=8192)
        monkeypatch.setattr(os, "statvfs", lambda _: plenty)

        with pytest.raises(OperatorError):
            writer.write()

        assert writer.read() == before
        filler.unlink()
        monkeypatch.undo()
        writer.write()


@pytest.mark.parametrize("make", WRITERS)
def test_a_disk_that_takes_no_writing_is_a_clear_stop(tmp_path: Path, make: Callable[[Path], Writer]) -> None:
    """A disk that became read-only gives three sentences, and its content does not change."""
    with small_disk(tmp_path / "disk") as disk:
        writer = make(disk)
        writer.write()
        before = writer.read()

        with read_only(disk), pytest.raises(OperatorError):
            writer.write()

        assert writer.read() == before


# The real coordinator


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """A federation with three members."""
    return Office.found(tmp_path_factory.mktemp("heart"))


def _config_in(folder: Path, office: Office, state: Path) -> Path:
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan_document(office.identities)))
    keys = {
        "listen": f"localhost:{free_port()}",
        "authority": str(office.folder / "authority"),
        "state": str(state),
        "plans": ["plan.yaml"],
    }
    (folder / "coordinator.yaml").write_text(yaml.safe_dump(keys))
    return folder / "coordinator.yaml"


def test_a_coordinator_on_a_disk_without_room_or_without_writing(tmp_path: Path, office: Office) -> None:
    """A full disk gives exit status 1, because a restart corrects it; a read-only disk gives 78. With free space it
    starts."""
    with small_disk(tmp_path / "disk", 8) as disk:
        config = _config_in(tmp_path, office, disk / "state")
        (disk / "state").mkdir(mode=0o700)
        with read_only(disk):
            refused = finished("coordinator", "start", "--config", config)
        filler = fill(disk, leaving=4096)
        full = finished("coordinator", "start", "--config", config)
        filler.unlink()
        with running(tmp_path / "log", "coordinator", "start", "--config", config):
            wait_until(says(tmp_path / "log", "run_announced"))

    assert (refused.returncode, "cannot be used: " in refused.stderr) == (78, True)
    assert (full.returncode, "disk" in full.stderr) == (1, True)
    for said in (refused.stderr, full.stderr):
        assert len(said.strip().splitlines()) >= 3
        assert "Traceback" not in said


# Clocks


class Jumping(datetime):
    """A wall clock that jumps an hour forward and back each time that it is read."""

    looks = 0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Jumping:
        """The wrong time."""
        cls.looks += 1
        real = datetime.now(tz) + timedelta(hours=random.Random(cls.looks).choice([-1, 0, 1]))
        return cls.fromisoformat(real.isoformat())


def test_a_wall_clock_that_jumps_an_hour_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No deadline passes early or late and no bit differs. Only written times are different."""
    plan = plan_of("fedavg", timing={"grace_seconds": 60.0, "contribute_seconds": 600.0}, masking={"required": True})
    expected, _, _ = to_the_end(tmp_path / "undisturbed", plan, 0)
    monkeypatch.setattr(in_memory, "datetime", Jumping)
    monkeypatch.setattr(in_process, "datetime", Jumping)

    found, network, _ = to_the_end(tmp_path / "jumping", plan, 0)

    assert found == expected
    assert Jumping.looks > 20
    record = next((network.directory / "coordinator" / "runs").glob("*/record.json")).read_text()
    assert '"void_attempts": 0' in record
