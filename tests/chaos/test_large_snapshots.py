"""Snapshots of large models, which a thread writes during rounds: kills during and between them, and their memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from coordinator.rounds.phases import Gathering
from coordinator.rounds.run import Run, new_run, terms_of
from coordinator.storage.history import History
from coordinator.storage.run_store import LARGE_BYTES, RunStore
from coordinator.storage.snapshots import KEPT, Snapshot, SnapshotRow, begin_snapshot, read_snapshot
from tests.chaos.large_run import large_plan, rounds_in
from tests.coordinator.in_memory import coordinator_log
from tests.rehearsal.programs import own_environment
from tests.rehearsal.study import MEAN

REPOSITORY = Path(__file__).parents[2]
JUST_LARGE = LARGE_BYTES // 4 + 100_000
SIZES = [JUST_LARGE, pytest.param(25_000_000, marks=pytest.mark.slow)]


def started(state: Path, parameters: int, rounds: int, log: Path) -> subprocess.Popen[bytes]:
    """The coordinator as a process of its own."""
    words = [sys.executable, "-m", "tests.chaos.large_run", str(state), str(parameters), str(rounds)]
    with log.open("ab") as file:
        return subprocess.Popen(words, cwd=REPOSITORY, env=own_environment(), stdout=file, stderr=file)


def rows_of(state: Path) -> list[SnapshotRow]:
    """The snapshots that the store names."""
    with closing(coordinator_log(state)) as log:
        return [SnapshotRow(*row) for row in log.store.read("SELECT round, course, digest FROM snapshots")]


def kill_when(process: subprocess.Popen[bytes], folder: Path, *, is_writing: bool) -> bool:
    """Kill it in the middle of a write, or after one that is newer than what is there; whether it lived until then."""
    newest, deadline = rounds_in(folder)[-1:], time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        is_time = any(folder.glob("*.partial")) if is_writing else rounds_in(folder)[-1:] > newest
        if is_time:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            return True
        time.sleep(0.002)
    return False


@pytest.mark.timeout(900)
@pytest.mark.parametrize("parameters", SIZES)
def test_a_kill_in_or_between_writes_loses_nothing(tmp_path: Path, parameters: int) -> None:
    """The content of the disk stays complete, and rounds continue while a snapshot is written.

    The run ends with the right numbers.
    """
    rounds, plan = 30, large_plan(parameters, 30)
    folder, log = tmp_path / "runs" / plan.run_name / "snapshots", tmp_path / "log"
    kills, before = 0, [0]

    for is_writing in (True, False) * (1 if parameters == JUST_LARGE else 3):
        process = started(tmp_path, parameters, rounds, log)
        kills += kill_when(process, folder, is_writing=is_writing)
        there = rounds_in(folder) or [0]
        assert there[-1] >= before[-1]
        assert all(read_snapshot(folder, row) is not None for row in rows_of(tmp_path))
        before = there
    assert started(tmp_path, parameters, rounds, log).wait(600) == 0, log.read_text()

    (result,) = (tmp_path / "runs").glob("*/parameters.safetensors")
    said = [line.split() for line in log.read_text().splitlines()]
    assert kills == (2 if parameters == JUST_LARGE else 6)
    assert all((values == rounds * MEAN).all() for values in load_file(result).values())
    assert sum(line[1] == "1" for line in said if line[0] != "peak") > 2  # rounds that closed during a write
    (peak,) = (int(line[1]) for line in said if line[0] == "peak")
    print(f"\n{parameters} parameters, {kills} kills; {peak / 2**20:.0f} MiB at most, sites included")


@pytest.mark.parametrize("parameters", SIZES)
def test_what_is_written_beside_the_rounds_holds_no_copy(tmp_path: Path, parameters: int) -> None:
    """The snapshot is written from the run's own memory."""
    with ThreadPoolExecutor(1) as aside:
        run, store = stored_run(tmp_path, parameters, aside)
        tracemalloc.start()
        for number in range(6):
            if store._writing is not None:
                store._writing[0].result()  # all bytes are read before the next round closes
            close(run, store, number)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        store.close()

    assert rounds_in(tmp_path / "snapshots") == [5, 6]
    assert len(rounds_in(tmp_path / "snapshots")) == KEPT
    for number in (5, 6):
        found = store._read(number)
        assert found is not None
        assert (found.values == number).all()
    assert peak < 0.5 * run.values.nbytes, peak / run.values.nbytes


def test_a_round_that_closes_while_a_snapshot_is_read_changes_no_byte_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run continues in a copy. Also the state of the server rule stays as it was before the round."""
    begun, may_read = threading.Event(), threading.Event()

    def slow(folder: Path, snapshot: Snapshot) -> SnapshotRow:
        begun.set()
        assert may_read.wait(60)
        return begin_snapshot(folder, snapshot)

    monkeypatch.setattr("coordinator.storage.run_store.begin_snapshot", slow)
    with ThreadPoolExecutor(1) as aside:
        run, store = stored_run(tmp_path, JUST_LARGE, aside)
        run.rule_state = {"control": np.zeros(run.values.size)}
        close(run, store, 0)
        assert begun.wait(60)
        store.before_change()
        run.values += 1
        run.rule_state["control"] += 1
        may_read.set()
        store.close()

    found = store._read(1)
    assert found is not None
    assert (found.values == 1).all()
    assert (found.rule_state["control"] == 0).all()
    assert (run.values == 2).all()


def stored_run(folder: Path, parameters: int, aside: Executor | None = None) -> tuple[Run, RunStore]:
    """A run with this number of parameters, all 0, and its store."""
    plan = large_plan(parameters, 10)
    run = new_run(plan, terms_of(plan), Gathering())
    log, snapshots = coordinator_log(folder), folder / "snapshots"
    return run, RunStore(log, snapshots, run, History(), clock=time.monotonic, aside=aside)


def close(run: Run, store: RunStore, number: int) -> None:
    """Add 1 to each parameter, and close a round for which all sites have saved their states."""
    sites = sorted(run.plan.site_names)
    run.rounds_made = number
    store.note("round_offered", round=number, attempt=0, sites=sites, parameters="")
    store._saving = (number, True)
    store.before_change()
    run.values += 1
    store.closed(number)
    store.commit()
