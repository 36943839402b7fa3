"""The audit log is synced while a round is on the wire. A power cut in between loses no decision."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from audit.own_log import AuditLog
from coordinator.network.outgoing import Caller, StreamPeer
from coordinator.operations.coordinator_log import RunRecords
from coordinator.rounds.engine import Engine
from coordinator.storage.journal import read_journal
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Join
from tests.coordinator.in_memory import IDENTITIES, Stage
from tests.for_each import for_each
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import BehavingSite, plan_with

PLAN = plan_with(IDENTITIES, rounds=4)


def log_of(folder: Path) -> AuditLog:
    """The coordinator's audit log, as a process opens it."""
    return AuditLog(folder / "audit.log", site=None, now=lambda: datetime(2026, 3, 1, tzinfo=UTC))


def engine_of(folder: Path, log: AuditLog, plan: Plan = PLAN) -> Engine:
    """An engine whose decisions go to this log."""
    clock = asyncio.get_running_loop().time
    records = partial(RunRecords, log)
    return Engine(plans=[plan], state=folder, identity_of=IDENTITIES.get, clock=clock, audit=records)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
    """How many bytes of each file a power cut would leave, by the file's number."""
    sizes, sync = dict[int, int](), os.fdatasync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        found = os.fstat(descriptor)
        sizes[found.st_ino] = found.st_size

    monkeypatch.setattr(os, "fdatasync", noted)
    return sizes


@for_each("seed", range(20))
def test_after_a_power_cut_the_log_has_each_decision_once(tmp_path: Path, seed: int, synced: dict[int, int]) -> None:
    """Whenever the power fails, the next process adds to the log what only the journal still has."""
    generator = np.random.default_rng(seed)

    async def scene() -> None:
        log = log_of(tmp_path)
        stage = Stage(tmp_path, PLAN)
        stage.engine = engine_of(tmp_path, log)
        stage.engine.start()
        streams = [stage.connect(BehavingSite(name)) for name in "abc"]
        for _ in range(int(generator.integers(1, 40))):
            stage._deliver_one(streams[int(generator.integers(3))])
            if generator.random() < 0.2:
                await asyncio.sleep(0)  # the loop has time to sync
        path = tmp_path / "audit.log"
        os.truncate(path, synced[path.stat().st_ino])

        again = log_of(tmp_path)
        engine_of(tmp_path, again).start()
        recorded = [facts["line"] for facts in again.records() if "line" in facts]
        (journal,) = tmp_path.glob("runs/*/journal.jsonl")
        assert recorded == [entry["line"] for entry in read_journal(journal)]

    play(scene())


def test_the_journal_is_synced_before_a_message_leaves_and_the_log_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no site waits for the second sync, and nobody acts on a decision that a power cut could undo."""
    happened, sync = list[str](), os.fdatasync

    def noted(descriptor: int) -> None:
        sync(descriptor)
        happened.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    class Wire:
        """A connection that takes everything."""

        async def write(self, message: bytes) -> None:
            """Send."""
            happened.append("sent")

    async def scene() -> None:
        log = log_of(tmp_path)
        engine = engine_of(tmp_path, log)
        engine.start()
        sites = {name: BehavingSite(name) for name in "abc"}
        peers = {name: StreamPeer(Wire(), Caller(name, "")) for name in sites}
        writing = [asyncio.create_task(peer.write()) for peer in peers.values()]
        for name, peer in peers.items():
            engine.connected(name, peer)
        run = engine._run
        assert run is not None
        monkeypatch.setattr(os, "fdatasync", noted)
        await asyncio.sleep(0.01)
        happened.clear()
        for name in sites:
            engine.received(name, Join(run.name, PLAN.digest, manifest_of(PLAN).digest, 0))
        await asyncio.sleep(0.01)
        for task in writing:
            task.cancel()

    asyncio.run(scene())

    first, last = happened.index("sent"), len(happened) - 1 - happened[::-1].index("sent")
    assert happened[first - 1] == "journal.jsonl"
    assert "audit.log" not in happened[first:last]
    assert happened[-1] == "audit.log"
