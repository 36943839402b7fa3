"""Snapshots of large models, which a thread writes during rounds: kills during and between them, and their memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from coordinator.rounds.phases import Attempt
from coordinator.rounds.round import begin
from coordinator.rounds.run import new_run, terms_of
from coordinator.storage.keeping import LARGE_BYTES, Kept
from coordinator.storage.snapshots import KEPT, read_snapshot, rounds_in
from tests.chaos.large_run import large_plan
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
        assert all(read_snapshot(folder, number) is not None for number in there if number)
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
def test_what_is_written_beside_the_rounds_holds_one_copy(tmp_path: Path, parameters: int) -> None:
    """With a slow disk at most one snapshot waits: memory is that of the run and of one snapshot being written."""
    plan = large_plan(parameters, 10)
    run = new_run(plan, terms_of(plan), begin(terms_of(plan), 0.0))
    run.values.fill(1.0)
    sites, model = frozenset(plan.site_names), run.values.nbytes

    with ThreadPoolExecutor(1) as aside:
        kept = Kept(tmp_path, run, clock=time.monotonic, now=lambda: datetime.now(UTC), aside=aside)
        tracemalloc.start()
        for number in range(6):
            attempt = Attempt(round=number, number=0, bound=sites, present=sites)
            run.rounds_made = number
            kept.note("offered", round=number, attempt=0, sites=sorted(sites), was_bound=False, redraw=0, parameters="")
            kept._saving = (attempt.round, True)
            kept.closed(number, sites)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        kept.close()

    assert rounds_in(tmp_path / "snapshots") == [5, 6]
    assert len(rounds_in(tmp_path / "snapshots")) == KEPT
    found = read_snapshot(tmp_path / "snapshots", 6)
    assert found is not None
    np.testing.assert_array_equal(found.state.values, run.values)
    assert peak < 2.5 * model, peak / model  # the copy, and a little
