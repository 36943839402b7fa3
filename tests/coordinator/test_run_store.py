"""The store of a run: whatever happens to it, nothing is lost in silence, and the run continues with the same bits."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from coordinator.storage.history import decisions_of, history_of, store_path
from host.record_store import Store, StoreError
from protos.plan.plan import Plan
from protos.wire.messages import CoordinatorReason
from tests.coordinator.in_memory import IDENTITIES, BehavingSite, Stage, coordinator_log
from tests.for_each import for_each
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import MEAN, plan_with

ROUNDS = 5


class Killed(BaseException):  # as a signal is: no handler of the program sees it
    """The coordinator has stopped."""


def _saving_plan() -> Plan:
    return plan_with(IDENTITIES, rounds=ROUNDS, changes={"timing": {"save_every_rounds": 1}})


def begin(stage: Stage, deliveries: int) -> Stage:
    """Start a coordinator, connect three sites, and deliver this number of messages."""
    stage.engine.start()
    for name in "abc":
        stage.connect(BehavingSite(name))
    for number in range(deliveries):
        stage._deliver_one(stage.streams[number % 3])
    return stage


def continued(state: Path, before: Stage) -> Stage:
    """Another coordinator with this disk, to which the sites of the first one connect."""
    stage = Stage.started(state, _saving_plan())
    for name in "abc":
        earlier = [stream.site for stream in before.streams if stream.site.name == name]
        stage.connect(earlier[0] if earlier else BehavingSite(name))
    stage.deliver()
    return stage


def _assert_complete(stage: Stage) -> None:
    assert stage.engine.failure is None
    assert stage.engine.finished.is_set()
    np.testing.assert_array_equal(stage.vector(_saving_plan()), np.full(10, ROUNDS * MEAN, np.float32))


def full(store: Store) -> Callable[[], object]:
    """The file can have no further page. Return what undoes it."""
    store.read(f"PRAGMA max_page_count = {store.read('PRAGMA page_count')[0][0]}")
    return lambda: store.read("PRAGMA max_page_count = 1000000")


def read_only(store: Store) -> Callable[[], object]:
    """Nothing can be written. Return what undoes it."""
    store.read("PRAGMA query_only = 1")
    return lambda: store.read("PRAGMA query_only = 0")


def locked(store: Store) -> Callable[[], object]:
    """Another program never ends its transaction. Return what undoes it."""
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    return other.close


@pytest.mark.parametrize("fault", [full, read_only, locked])
@for_each("deliveries", range(3, 24, 4))
def test_a_store_that_takes_no_decision_stops_the_run_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[Store], Callable[[], object]], deliveries: int
) -> None:
    """No site receives anything that follows from a decision that is not on disk. Then the run continues."""
    monkeypatch.setattr("host.record_store.BUSY_SECONDS", 0.05)

    async def scene() -> None:
        stage = begin(Stage(tmp_path, _saving_plan()), deliveries)
        before = list(coordinator_log(tmp_path).lines())
        undo = fault(stage.engine._audit.store)
        stage.deliver()

        assert isinstance(stage.engine.failure, StoreError)
        assert stage.engine.failure.remedy
        undo()
        log = coordinator_log(tmp_path)
        written = log.head.count
        stage.engine.stop()
        assert log.head.count == written  # what was refused is not written later
        decisions = [one for one in decisions_of(log, _saving_plan().run_name) if one["event"] == "round_offered"]
        received = {(offer.round, offer.attempt) for stream in stage.streams for offer in stream.site.offers}
        assert received <= {(one["round"], one["attempt"]) for one in decisions}
        assert list(log.lines())[: len(before)] == before
        _assert_complete(continued(tmp_path, stage))

    play(scene())


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_a_kill_before_or_after_any_commit_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_before: bool
) -> None:
    """A decision, its record and the row of a snapshot are one transaction, so there is no step between them."""
    honest = Store.transaction

    async def scene(state: Path, last: int) -> bool:
        made = 0

        def kill_at_last() -> None:
            if made == last:
                raise Killed

        @contextmanager
        def transaction(store: Store, *, syncs: bool = True) -> Iterator[None]:
            nonlocal made
            is_outer = not store._depth
            with honest(store, syncs=syncs):
                yield
                made += is_outer
                if is_outer and is_before:
                    kill_at_last()
            if is_outer and not is_before:
                kill_at_last()

        stage = Stage(state, _saving_plan())
        monkeypatch.setattr(Store, "transaction", transaction)
        with suppress(Killed):
            begin(stage, 0).deliver()
        monkeypatch.setattr(Store, "transaction", honest)
        _assert_complete(stage if made < last else continued(state, stage))
        return made < last

    for last in range(1, 100):
        if is_whole := play(scene(tmp_path / str(last), last)):
            break
    assert is_whole
    assert last > 2 * ROUNDS


@for_each("deliveries", range(6, 36, 6))
def test_a_store_that_was_cut_at_any_byte_never_contradicts_itself(tmp_path: Path, deliveries: int) -> None:
    """The records are a beginning of the ones that were there, and no snapshot is of a later round than they are. The
    run continues with the same numbers, or the sites are refused, because they remember more than the store."""
    luck, run = random.Random(deliveries), _saving_plan().run_name

    async def scene() -> None:
        stage = begin(Stage(tmp_path / "whole", _saving_plan()), deliveries)
        before = list(coordinator_log(tmp_path / "whole").lines())
        newest = store_path(tmp_path / "whole").with_name("coordinator.sqlite-wal")
        size = newest.stat().st_size
        for cut in (0, size, *(luck.randrange(size) for _ in range(8))):
            copy = shutil.copytree(tmp_path / "whole", tmp_path / f"cut-{cut}")
            os.truncate(copy / newest.name, cut)
            (copy / "coordinator.sqlite-shm").unlink()
            with closing(coordinator_log(copy)) as log:
                assert list(log.lines()) == before[: log.head.count]
                has_table = log.store.read("SELECT 1 FROM sqlite_master WHERE name = 'snapshots'")
                saved = log.store.read("SELECT coalesce(max(round), 0) FROM snapshots")[0][0] if has_table else 0
                assert saved <= history_of(log, run).rounds_made
        after = continued(copy, stage)
        if after.engine.finished.is_set():
            _assert_complete(after)
        else:
            reasons = [stream.site.farewell and stream.site.farewell.reason for stream in after.streams]
            assert CoordinatorReason.NOT_ACCEPTED in reasons

    play(scene())
