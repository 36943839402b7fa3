"""Snapshots of large models, which a thread writes during rounds: a death in between, and their memory."""

from __future__ import annotations

import threading
import time
import tracemalloc
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from coordinator.rounds.phases import Gathering
from coordinator.rounds.run import Run, new_run, terms_of
from coordinator.storage.history import History
from coordinator.storage.run_store import LARGE_BYTES, RunStore
from coordinator.storage.snapshots import KEPT, Snapshot, SnapshotRow, begin_snapshot, end_snapshot, read_snapshot
from protos.plan.plan import Plan
from tests.coordinator.in_memory import IDENTITIES, coordinator_log
from tests.rehearsal.study import plan_with

_LARGEST_TENSOR = 1 << 20
JUST_LARGE = LARGE_BYTES // 4 + 100_000
SIZES = [JUST_LARGE, pytest.param(25_000_000, marks=pytest.mark.slow)]


def rows_of(state: Path) -> list[SnapshotRow]:
    """The snapshots that the store names."""
    with closing(coordinator_log(state)) as log:
        return [SnapshotRow(*row) for row in log.store.read("SELECT round, course, digest FROM snapshots")]


def rounds_in(snapshots: Path) -> list[int]:
    """The rounds before which there is a whole file of a snapshot."""
    return sorted(int(path.stem.removeprefix("before-")) for path in snapshots.glob("before-*.safetensors"))


def large_plan(parameters: int, rounds: int) -> Plan:
    """Saved after every round, where the disk keeps up."""
    shapes = [min(_LARGEST_TENSOR, parameters - start) for start in range(0, parameters, _LARGEST_TENSOR)]
    tensors = [{"name": f"tensor-{number}", "shape": [size], "bound": 0.0} for number, size in enumerate(shapes)]
    changes = {
        "timing": {"save_every_rounds": 1, "save_every_seconds": None},
        "architecture": {"name": "named-tensors", "tensors": tensors},
    }
    return plan_with(IDENTITIES, rounds=rounds, changes=changes)


def test_a_death_in_the_middle_of_a_write_loses_no_earlier_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a snapshot is only partly on disk, the store names whole files alone."""
    may_end = threading.Event()

    def slow(folder: Path, row: SnapshotRow) -> SnapshotRow:
        assert may_end.wait(60)
        return end_snapshot(folder, row)

    with ThreadPoolExecutor(1) as aside:
        run, store = stored_run(tmp_path, JUST_LARGE, aside)
        for number in range(2):
            close(run, store, number)
            assert store._writing is not None
            store._writing[1].result()
        monkeypatch.setattr("coordinator.storage.run_store.end_snapshot", slow)
        close(run, store, 2)
        assert store._writing is not None
        store._writing[0].result()
        rows = rows_of(tmp_path)  # as a process that starts after a kill reads them
        assert list((tmp_path / "snapshots").glob("*.partial"))
        assert rows
        assert all(read_snapshot(tmp_path / "snapshots", row) is not None for row in rows)
        may_end.set()
        store.close()

    assert len(rows_of(tmp_path)) == KEPT


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
