"""Pausing, resuming, ending and listing runs, and continuing a run after the program has died."""

from __future__ import annotations

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from coordinator.network.control_socket import control_server, stop_run
from coordinator.storage.history import known_runs, store_path
from host.record_store import StoreDamaged
from protos.errors import UnavailableError, UsageError
from tests.coordinator.in_memory import IDENTITIES, BehavingSite, Stage
from tests.for_each import for_each
from tests.rehearsal.made_up_time import play
from tests.rehearsal.programs import called
from tests.rehearsal.study import MEAN, plan_with


def connect(stage: Stage) -> None:
    """The three sites, each with a stream."""
    for name in "abc":
        stage.connect(BehavingSite(name))


@for_each("seed", range(12))
def test_what_is_damaged_is_refused_or_gone_back_behind(tmp_path: Path, seed: int) -> None:
    """A store with a changed or missing record ends the start with a clear error; a damaged snapshot costs rounds."""
    plan = plan_with(IDENTITIES, rounds=5, changes={"timing": {"save_every_rounds": 1}})
    luck = np.random.default_rng(seed)

    async def scene() -> None:
        stage = Stage.started(tmp_path / "one", plan)
        connect(stage)
        for number in range(30):
            stage._deliver_one(stage.streams[number % 3])
        for fault in ("changed", "lost"):
            shutil.copytree(tmp_path / "one", tmp_path / fault)
            with closing(sqlite3.connect(store_path(tmp_path / fault))) as store:
                place = int(luck.integers(1, store.execute("SELECT count(*) FROM records").fetchone()[0] - 1))
                store.executescript("DROP TRIGGER records_UPDATE; DROP TRIGGER records_DELETE")
                change = "UPDATE records SET line = replace(line, '1', '2')"
                store.execute(f"{'DELETE FROM records' if fault == 'lost' else change} WHERE number = {place}")
                store.commit()
            with pytest.raises(StoreDamaged):
                Stage(tmp_path / fault, plan).engine.start()
        (newest := sorted((tmp_path / "one").rglob("before-*"))[-1]).write_bytes(newest.read_bytes()[:-1])
        again = Stage.started(tmp_path / "one", plan)
        for stream in stage.streams:
            again.connect(stream.site)
        again.deliver()

        np.testing.assert_array_equal(again.vector(plan), np.full(10, 5 * MEAN, np.float32))

    play(scene())


def test_a_run_is_ended_over_the_socket(tmp_path: Path) -> None:
    """`stop` reaches the run; a coordinator without one is reported, and so is one that is not there."""

    async def scene() -> None:
        stage = Stage(tmp_path, plan_with(IDENTITIES))
        with pytest.raises(UnavailableError):
            await stop_run(tmp_path)
        server = await control_server(stage.engine, stage.engine.status, tmp_path)
        with pytest.raises(UsageError, match="`coordinator stop` has no effect"):
            await stop_run(tmp_path)
        stage.engine.start()
        connect(stage)

        assert (await stop_run(tmp_path)).startswith("study-v1-")
        (record,) = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/record.json")]
        assert record["reason"] == "it was stopped by a person"
        ((name, run),) = known_runs(tmp_path).items()
        assert run.standing == "ended: it was stopped by a person"
        (tmp_path / "runs/old").mkdir()
        (tmp_path / "runs/old/results.json").write_text('{"study":"study","version":0,"run":"old","analyses":[]}')
        (file := tmp_path / "c.yaml").write_text("{listen: 'a:1', enrolment_listen: 'a:2', authority: a, state: .}")
        assert f"{name} ended without results." in called("coordinator", "results", "--config", file).stdout
        server.close()

    asyncio.run(scene())
