"""Every site receives the end of all studies, whenever it connects, from any coordinator of this state directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

from coordinator.commands.serve import _until_over
from host.record_store import StoreError
from protos.wire.messages import CoordinatorReason
from tests.coordinator.in_memory import IDENTITIES, BehavingSite, Stage, a_run_whose_end_is_heard_by
from tests.rehearsal.study import plan_with


async def test_a_site_that_was_away_hears_of_the_end_whenever_it_calls(tmp_path: Path) -> None:
    """Each site is informed once of each run's end, by the coordinator of the run or by a later one."""
    plan = plan_with(IDENTITIES)

    await a_run_whose_end_is_heard_by(tmp_path, plan, "b")

    for name, still in (("a", ["c"]), ("c", [])):
        again = Stage.started(tmp_path, plan)
        assert again.engine.finished.is_set()
        assert not again.engine.ending.all_heard.is_set()
        stream = again.connect(BehavingSite(name))
        again.deliver()
        assert stream.site.farewell is not None
        assert stream.site.farewell.reason is CoordinatorReason.ALL_RUNS_OVER
        assert again.engine.status()["yet_to_hear_of_the_end"] == still
        assert again.engine.ending.all_heard.is_set() == (not still)
    last = Stage.started(tmp_path, plan)
    assert last.engine.ending.all_heard.is_set()


async def test_a_site_is_told_of_the_end_only_once_that_is_on_record(tmp_path: Path) -> None:
    """If the store cannot be written, the program ends with its error, and nobody was told."""
    plan = plan_with(IDENTITIES)

    await a_run_whose_end_is_heard_by(tmp_path, plan, "")
    again = Stage.started(tmp_path, plan)
    again.engine._audit.store.read("PRAGMA query_only = 1")
    stream = again.connect(BehavingSite("a"))

    assert isinstance(again.engine.failure, StoreError)
    assert stream.pop() is None


async def test_the_coordinator_stays_its_time_for_them_and_no_longer(tmp_path: Path) -> None:
    """It ends when all sites are informed, or after `stay_seconds`."""
    plan = plan_with(IDENTITIES)

    await a_run_whose_end_is_heard_by(tmp_path, plan, "")
    stage, never = Stage(tmp_path, plan), asyncio.Event()
    stop, watch = (asyncio.create_task(never.wait()) for _ in range(2))
    stage.engine.start()
    clock = asyncio.get_running_loop().time
    began = clock()
    await _until_over(stage.engine, stop, watch, 3600.0)  # type: ignore[arg-type]  # nobody reads what it watches
    assert 3600.0 <= clock() - began < 3700.0

    waiting = asyncio.create_task(_until_over(stage.engine, stop, watch, 1e6))  # type: ignore[arg-type]
    await asyncio.sleep(10.0)
    for name in "abc":
        stage.connect(BehavingSite(name))
    await asyncio.wait_for(waiting, 10.0)
    stop.cancel()
    watch.cancel()
