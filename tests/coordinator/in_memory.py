"""The coordinator's loop and honest sites, on streams in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from coordinator.rounds.engine import Engine
from coordinator.storage.ending import INFORMED
from coordinator.storage.history import store_path
from host.audit_log import AuditLog
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from tests.rehearsal.queued import QueuedStream
from tests.rehearsal.study import BehavingSite, made_up_identities

IDENTITIES = made_up_identities()


class Stream(QueuedStream):
    """A site's stream; what the engine queues is delivered when the scene requires it."""

    def __init__(self, site: BehavingSite) -> None:
        super().__init__()
        self.site = site


def coordinator_log(state: Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> AuditLog:
    """Open the log of a coordinator with this state directory."""
    return AuditLog(store_path(state), site=None, now=now)


class Stage:
    """An engine, its sites, and the order in which messages arrive."""

    def __init__(self, state: Path, *plans: Plan, identities: Mapping[str, str] = IDENTITIES) -> None:
        self.state = state
        clock = asyncio.get_running_loop().time
        self.engine = Engine(plans=plans, log=coordinator_log(state), identity_of=identities.get, clock=clock)
        self.streams: list[Stream] = []

    @classmethod
    def started(cls, state: Path, *plans: Plan, sites: str = "", identities: Mapping[str, str] = IDENTITIES) -> Stage:
        """A started engine, and a stream of each of these honest sites."""
        stage = cls(state, *plans, identities=identities)
        stage.engine.start()
        for name in sites:
            stage.connect(BehavingSite(name))
        return stage

    def connect(self, site: BehavingSite) -> Stream:
        """Open a stream and send Hello."""
        stream = Stream(site)
        self.streams.append(stream)
        self.engine.connected(site.name, stream)
        return stream

    def deliver(self) -> None:
        """Deliver messages in both directions, one from each stream in turn, until none remains."""
        while sum(self._deliver_one(stream) for stream in list(self.streams)):
            pass

    def cut(self, stream: Stream) -> None:
        """The network between a site and the coordinator breaks."""
        self.streams.remove(stream)
        self.engine.disconnected(stream.site.name, stream)

    def records(self) -> list[dict[str, object]]:
        """The record of each run, in order of their names."""
        return [json.loads(path.read_text()) for path in sorted((self.state / "runs").glob("*/record.json"))]

    def vector(self, plan: Plan) -> npt.NDArray[np.float32]:
        """A finished run's parameters as they lie on the disk."""
        (path,) = (self.state / "runs").glob(f"{plan.study}-v*/parameters.safetensors")
        tensors = load_file(path)
        return np.concatenate([tensors[tensor.name].ravel() for tensor in manifest_of(plan).tensors])

    def _deliver_one(self, stream: Stream) -> bool:
        message = stream.pop()
        if message is None:
            return False
        for answer in stream.site.answer(message):
            if not stream.is_ending:
                self.engine.received(stream.site.name, answer)
        return True


async def a_run_whose_end_is_heard_by(state: Path, plan: Plan, informed: str) -> None:
    """Run the plan to its end. Only these sites are still there when the coordinator informs all of the end."""
    stage = Stage(state, plan)
    stage.engine.ending.record = lambda _: None  # type: ignore[method-assign]  # this one coordinator
    stage.engine.start()
    for name in "abc":
        stage.connect(BehavingSite(name))
    stage.deliver()
    coordinator_log(state).write(INFORMED, run=plan.run_name, sites=list(informed))


async def a_whole_run(state: Path, plan: Plan, order: str) -> Stage:
    """Sites connect in this order and run the plan to its end."""
    stage = Stage.started(state, plan, sites=order)
    stage.deliver()
    return stage
