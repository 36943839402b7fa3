"""A coordinator, agents and trainers in one process. Each stops at a write to its disk, and starts again. Engine,
agents, gates, ledgers, workers and studies are the programs' own. Lines are in memory and the clock is made up. A stop
takes effect at once. Messages that were not sent are lost, the memory is lost, and the replacement has only the
disk."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from coordinator.rounds.engine import Engine
from host.audit_log import AuditLog
from host.record_store import Store
from protos.plan.plan import Plan
from protos.wire.messages import SiteMessage
from site_agent.agent.connection import Connection
from site_agent.desk import after_rounds
from site_agent.gate.loop import SiteGate
from site_agent.hospital import Hospital
from site_agent.trainer import before_rounds
from site_agent.trainer.data.dataset import Dataset, Examples
from site_agent.trainer.disk import RECORDS
from site_agent.trainer.site_network import Seeds
from site_agent.trainer.study import Study
from site_agent.trainer.worker import Worker
from site_agent.trainer_socket import Check, GateEnd, TrainerEnd, TrainerGone
from site_agent.trainer_socket import Message as TrainerMessage
from tests.coordinator.in_memory import coordinator_log
from tests.federation import Federation, Line, Site, StreamEnd, identity_key, identity_of
from tests.laws.catalogue import COLUMNS, plan_of_a_table
from tests.rehearsal.made_up_time import play
from tests.site_agent.trainer.sites import fingerprint

SITES = ("ahus", "berlin", "cluj")


class Killed(BaseException):  # as a signal is: no handler of the programs sees it
    """This part of the federation has stopped."""


class Disk:
    """Every call that makes a write durable, by its owner and name; `reached` may stop the owner there."""

    def __init__(self, patch: pytest.MonkeyPatch, directory: Path) -> None:
        self.reached: Callable[[str, str], None] = lambda owner, point: None
        self.points: list[tuple[str, str]] = []
        self._directory = directory
        replace = os.replace

        def synced(descriptor: int) -> None:
            self._at(Path(f"/proc/self/fd/{descriptor}").readlink(), "sync", lambda: None)

        def replaced(partial: Any, target: Any, **folders: int) -> None:
            folder = folders.get("dst_dir_fd")
            place = Path(target) if folder is None else Path(f"/proc/self/fd/{folder}").readlink() / target
            self._at(place, "rename", lambda: replace(partial, target, **folders))

        patch.setattr(os, "fsync", synced)
        patch.setattr(os, "replace", replaced)
        transaction = Store.transaction

        @contextmanager
        def committed(store: Store, *, syncs: bool = True) -> Iterator[None]:
            is_outer = not store._depth  # an inner one is committed with the outer one
            with transaction(store, syncs=syncs):
                yield
                if is_outer:
                    self._reach(store.path, "before commit of")
            if is_outer:
                self._reach(store.path, "after commit of")

        patch.setattr(Store, "transaction", committed)

    def _at(self, path: Path, what: str, act: Callable[[], Any]) -> None:
        self._reach(path, f"before {what} of")
        act()
        self._reach(path, f"after {what} of")

    def _reach(self, path: Path, point: str) -> None:
        place = path.relative_to(self._directory).parts if path.is_relative_to(self._directory) else ()
        if len(place) < 2:
            return
        is_trainers = "saves" in place or place[-1] == RECORDS
        role = "coordinator" if place[0] == "coordinator" else "trainer" if is_trainers else "agent"
        owner = role if role == "coordinator" else f"{role} {place[0]}"
        words = ("sqlite", "snapshots", "saves", "audit", "record")
        kind = next((word for word in words if word in "/".join(place)), "other")
        self.points.append((owner, f"{role}: {point} {kind}"))
        self.reached(*self.points[-1])


class LiveTrainer:
    """The worker of a site behind its trainer socket. After it has stopped, a request reports that."""

    def __init__(self, hospital: Hospital) -> None:
        self._worker: Worker | None = Worker(hospital, cast(TrainerEnd, _NoTrainerSocket()), after_rounds)

    async def ask(self, message: TrainerMessage, largest_payload: int = 0) -> TrainerMessage:
        """Return the worker's answer."""
        await asyncio.sleep(0)
        if self._worker is None:
            raise _gone()
        try:
            answer = self._worker._answer(message)
        except Killed:
            self._worker = None
            raise _gone() from None
        assert isinstance(message, Check) or len(answer.payload) <= largest_payload
        return answer

    def require(self) -> None:
        """A stopped worker is noticed while no request is open."""
        if self._worker is None:
            raise _gone()

    def die(self) -> None:
        """The process is gone."""
        self._worker = None

    def close(self) -> None:
        """The agent disconnects."""
        self._worker = None


class _NoTrainerSocket:
    largest_payload = 0


def _gone() -> TrainerGone:
    return TrainerGone(what="The trainer is gone.", consequence="Nothing is lost.", remedy="You need not do anything.")


class MortalSite(Site):
    """A hospital whose agent starts trainers."""

    live: LiveTrainer

    def start(self) -> None:
        """The operator starts the agent; it starts a trainer."""
        self.error = None
        self.audit = AuditLog(self.directory / "audit.jsonl", site=self.name, now=lambda: datetime.now(UTC))
        self.live = LiveTrainer(self._hospital)
        self.gate = SiteGate(
            self._hospital,
            identity_key=identity_key(self.name),
            trainer=cast(GateEnd, self.live),
            audit=self.audit,
            connect=lambda: cast(Connection, Line(self._hear, self._open)),
            software="test",
        )
        self._task = asyncio.create_task(self._live(self.gate))

    async def _live(self, gate: SiteGate) -> None:
        with suppress(Killed):
            await super()._live(gate)
        self.error = None if isinstance(self.error, TrainerGone) else self.error  # it is started again


class Mortal(Federation):
    """A network in which every part may stop and is started again after a while."""

    def __init__(self, directory: Path, plan: Plan, disk: Disk, seed: int = 0) -> None:
        self.is_down = False
        self.deaths: list[str] = []
        self._plan, self.disk = plan, disk
        self._reviving: set[asyncio.Task[None]] = set()
        self._cutting: set[str] = set()
        self.luck = random.Random(seed)
        disk.reached = self._reached
        self.strikes: Callable[[str, str], bool] = lambda owner, point: False
        super().__init__(directory, plan, seed)

    def add_site(self, name: str, **policy: Any) -> None:
        """Start a hospital's agent; it connects by itself."""
        allowed = {"smallest_sites": 1, "secure_aggregation": "not-required"} | policy
        self.sites[name] = MortalSite(
            name, self._plan, self.directory / name, heard=self._hear, opened=self._open, **allowed
        )

    async def finish(self, seconds: float = 1e7) -> None:
        """Wait for the end of the run, in whichever engine it comes."""
        async with asyncio.timeout(seconds):
            while self.is_down or not self.engine.finished.is_set():
                errors = {name: site.error for name, site in self.sites.items() if site.error is not None}
                assert errors == {}
                assert self.engine.failure is None
                await asyncio.sleep(1.0)
        await asyncio.sleep(1.0)

    async def close(self) -> None:
        """Stop everything."""
        for task in self._reviving:
            task.cancel()
        await super().close()

    def cut(self, name: str) -> None:
        """A site's line breaks."""
        if name in self._cutting:
            return
        self._cutting.add(name)
        try:
            super().cut(name)
        except Killed:
            pass
        finally:
            self._cutting.discard(name)

    def kill(self, owner: str) -> None:
        """Stop a part now. Messages that it has not yet sent are lost."""
        self.deaths.append(owner)
        role, _, site = owner.partition(" ")
        if role == "coordinator":
            self.is_down = True
            engine = self.engine
            if engine._timer is not None:
                engine._timer.cancel()
            ends, self._ends = self._ends, {}
            for name, end in ends.items():
                self._heard[name].clear()
                end.is_ending = True
                end.line.cut()
        else:  # without its trainer a gate ends, too
            self._silence(site)
            self.sites[site].live.die()  # type: ignore[attr-defined]  # sites here are mortal
        task = asyncio.ensure_future(self._revive(role, site))
        self._reviving.add(task)
        task.add_done_callback(self._reviving.discard)

    def _silence(self, name: str) -> None:
        end = self._ends.pop(name, None)
        if end is not None:
            self._heard[name].clear()
            end.line.cut()
            if not self.is_down:
                with suppress(Killed):
                    self.engine.disconnected(name, end)

    async def _revive(self, role: str, name: str) -> None:
        await asyncio.sleep(self.luck.uniform(0.1, 5.0))
        if role != "coordinator":
            await self.sites[name].stop()
            self._silence(name)
            try:
                self.sites[name].start()
            except Killed:
                return
            return
        self.engine = Engine(
            plans=[self._plan],
            log=coordinator_log(self.directory / "coordinator"),
            identity_of=identity_of,
            clock=asyncio.get_running_loop().time,
        )
        self.is_down = False
        try:
            self.engine.start()
        except Killed:
            return

    def _reached(self, owner: str, point: str) -> None:
        is_dead = self.is_down if owner == "coordinator" else False
        if is_dead or (owner != "coordinator" and owner.partition(" ")[2] not in self.sites):
            return
        if self.strikes(owner, point):
            self.kill(owner)
            raise Killed

    def _open(self, name: str, line: Line) -> None:
        if not self.is_down:
            super()._open(name, line)
        if self.is_down:  # now, too: what it hears of the line before may have killed it
            self._ends.pop(name, None)
            line.cut()

    def _deliver(self, name: str, end: StreamEnd, message: SiteMessage) -> None:
        try:
            if not self.is_down:
                super()._deliver(name, end, message)
        except Killed:
            pass


def rows_at(site: str) -> Dataset:
    """Rows of three columns with an outcome that follows two of them, others at each site."""
    generator = np.random.default_rng(list(site.encode()))

    def examples(count: int) -> Examples:
        features = generator.normal(size=(count, len(COLUMNS))).astype(np.float32)
        hidden = features[:, 0] - features[:, 1 + len(site) % 2] + 0.3 * generator.normal(size=count)
        return Examples(features=features, targets=(hidden > 0).astype(np.float32))

    return Dataset(
        training=examples(13), validation=examples(7), test=examples(5), columns=COLUMNS,
        task="binary", classes=("no", "yes"),
    )  # fmt: skip


def plan_of(name: str, sites: tuple[str, ...] = SITES, **changes: Any) -> Plan:
    """A method's plan for three sites with real identities, or for others."""
    listed = [{"name": site, "identity": identity_of(site)} for site in sites]
    return plan_of_a_table(name, dropout=0.2, **({"sites": listed} | changes))


class Results:
    """The result of every site's study, by site. A repeated report replaces the earlier one."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.of: dict[str, str] = {}

        def begin(hospital: Hospital, plan: Plan, state: Path) -> tuple[Study, Any]:
            seeds = Seeds.published(plan.seed, hospital.site)  # so that federations in two folders can be compared
            return Study(plan, rows_at(hospital.site), seeds=seeds), None

        def report(hospital: Hospital, study: Study, preprocessing: Any, run: str) -> None:
            self.of[hospital.site] = fingerprint(study.conclude())

        patch.setattr(before_rounds, "begin_study", begin)
        patch.setattr(after_rounds, "make_report", report)
        patch.setattr(after_rounds, "watch", lambda *_: lambda *_: None)


def to_the_end(
    directory: Path,
    plan: Plan,
    seed: int,
    strikes: Callable[[Mortal], Callable[[str, str], bool]] | None = None,
    **policy: Any,
) -> tuple[dict[str, str], Mortal, Disk]:
    """Run a plan with all its sites in simulated time, with stops of its parts. Return results and events."""
    found: list[tuple[dict[str, str], Mortal, Disk]] = []

    async def scene() -> None:
        with pytest.MonkeyPatch.context() as patch:
            results = Results(patch)
            directory.mkdir()
            disk = Disk(patch, directory)
            random.seed(seed)
            network = Mortal(directory, plan, disk, seed)
            if strikes is not None:
                network.strikes = strikes(network)
            for site in plan.site_names:
                network.add_site(site, **policy)
            await network.finish()
            await network.close()
            found.append((results.of | what_came_out(network), network, disk))

    play(scene())
    return found[0]


def what_came_out(network: Mortal) -> dict[str, str]:
    """The run's last parameters, and the decisions from its sums."""
    (path,) = (network.directory / "coordinator" / "runs").glob("*/record.json")
    record = json.loads(path.read_text())
    assert record["is_complete"], record["reason"]
    keys = ("shared_parameters_sha256", "validation_curve", "best_round", "training_rounds", "sensitivities")
    return {key: json.dumps(record[key]) for key in keys}
