"""The audit log is synced while a round is on the wire. A power cut in between loses no decision."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.own_log import AuditError, AuditLog, Limits
from coordinator.network.outgoing import Caller, StreamPeer
from coordinator.operations.coordinator_log import RunRecords
from coordinator.rounds.engine import Engine
from coordinator.storage.journal import read_journal
from coordinator.storage.keeping import Kept
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Join
from tests.coordinator.in_memory import IDENTITIES, Stage
from tests.for_each import for_each
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import BehavingSite, plan_with

PLAN = plan_with(IDENTITIES, rounds=4)
KEY = Ed25519PrivateKey.generate()


def log_of(folder: Path, limits: Limits | None = None) -> AuditLog:
    """The coordinator's audit log, as a process opens it."""
    now = datetime(2026, 3, 1, tzinfo=UTC)
    return AuditLog(folder / "audit.log", site=None, now=lambda: now, identity_key=KEY, limits=limits)


def facts_of(folder: Path) -> list[dict[str, Any]]:
    """The facts of every record of the log."""
    return [json.loads(line)["facts"] for line in (folder / "audit.log").read_text().splitlines()]


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

        before = {facts["line"] for facts in facts_of(tmp_path) if "line" in facts}
        (journal,) = tmp_path.glob("runs/*/journal.jsonl")
        made = sum(1 for _ in read_journal(journal))
        again = log_of(tmp_path)
        engine_of(tmp_path, again).start()
        recorded = [facts for facts in facts_of(tmp_path) if "line" in facts]
        times = {entry["line"]: entry["time"] for entry in read_journal(journal)}
        assert [facts["line"] for facts in recorded] == list(times)
        is_copy = [facts["line"] not in before and facts["line"] < made for facts in recorded]
        assert [facts.get("journal_time") for facts in recorded] == [
            times[facts["line"]] if copied else None for facts, copied in zip(recorded, is_copy, strict=True)
        ]

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
        for name in sites:
            await asyncio.sleep(0.01)  # what earlier events left to do
            happened.clear()
            engine.received(name, Join(run.name, PLAN.digest, manifest_of(PLAN).digest, 0))
        await asyncio.sleep(0.01)
        for task in writing:
            task.cancel()

    asyncio.run(scene())

    first, last = happened.index("sent"), len(happened) - 1 - happened[::-1].index("sent")
    assert happened[first - 1] == "journal.jsonl"
    assert "audit.log" not in happened[first:last]
    assert happened[-1] == "audit.log"


def test_a_run_goes_on_although_an_older_file_of_the_log_is_gone(tmp_path: Path) -> None:
    """A file that somebody moved to an archive stops no study at the next restart."""

    async def scene() -> None:
        log = log_of(tmp_path, Limits(largest_bytes=500))
        stage = Stage(tmp_path, PLAN)
        stage.engine = engine_of(tmp_path, log)
        stage.engine.start()
        streams = [stage.connect(BehavingSite(name)) for name in "abc"]
        for _ in range(5):
            for stream in streams:
                stage._deliver_one(stream)
        stage.engine.stop()
        log.close()
        full = sorted(tmp_path.glob("audit.log.0*"))
        assert len(full) > 2
        full[1].unlink()

        engine_of(tmp_path, log_of(tmp_path)).start()

    play(scene())


def test_a_record_without_a_message_is_synced_too(tmp_path: Path, synced: dict[int, int]) -> None:
    """The log is synced directly after each decision, also if the decision sends nothing."""

    async def scene() -> None:
        log = log_of(tmp_path)
        stage = Stage(tmp_path, PLAN)
        stage.engine = engine_of(tmp_path, log)
        stage.engine.start()
        stage.connect(BehavingSite("a"))
        stage.deliver()
        await asyncio.sleep(60)
        path = tmp_path / "audit.log"
        assert "site_joined" in path.read_text()
        assert synced[path.stat().st_ino] == path.stat().st_size

    play(scene())


def test_the_last_decisions_of_a_run_survive_a_power_cut_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: dict[int, int]
) -> None:
    """The record of the run is on disk, and the power fails before the log is synced."""

    class Cut(BaseException):
        """The power fails."""

    def cut(*_: object) -> None:
        raise Cut

    async def scene() -> None:
        log = log_of(tmp_path)
        stage = Stage(tmp_path, PLAN)
        stage.engine = engine_of(tmp_path, log)
        stage.engine.start()
        for name in "abc":
            stage.connect(BehavingSite(name))
        monkeypatch.setattr(Kept, "end", cut)
        with pytest.raises(Cut):
            stage.deliver()
        monkeypatch.undo()
        path = tmp_path / "audit.log"
        os.truncate(path, synced[path.stat().st_ino])

        again = log_of(tmp_path)
        engine_of(tmp_path, again).start()
        recorded = [facts["site"] for facts in again.records("result_taken")]
        (journal,) = tmp_path.glob("runs/*/journal.jsonl")
        assert recorded == [entry["site"] for entry in read_journal(journal) if entry["kind"] == "done"]

    play(scene())


def test_an_error_of_the_log_names_what_the_journal_has_and_what_may_have_been_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the journal was synced, a decision has taken effect. An error of the audit log does not deny this."""

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    records = RunRecords(log_of(tmp_path), "run")
    entry = {"kind": "started", "time": "2026-03-01T12:00:00.000+00:00", "line": 0}
    records.record([entry], syncs=False)
    monkeypatch.setattr(os, "fdatasync", broken)

    with pytest.raises(AuditError, match=r"Input/output error.*in the journal.*may already have sent them to sites"):
        records.sync()
    with pytest.raises(AuditError, match=r"Input/output error.*could not copy them\. It did not continue this run"):
        records.copy([entry])
