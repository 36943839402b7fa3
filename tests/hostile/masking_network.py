"""The real engine and real agents in one process, on lines that break when a test requires it.

Nothing waits: the clock is simulated. A seed draws the order in which the sites' messages reach the engine.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from coordinator.rounds.engine import Engine
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import CoordinatorMessage, CoordinatorReason, Hello, MalformedMessage, SiteMessage
from tests.hostile.masking_federation import Line, MadeUpTrainer, Site, Vector, identity_of
from tests.rehearsal.made_up_time import play
from tests.rehearsal.queued import QueuedStream


class StreamEnd(QueuedStream):
    """The engine's end of one line. `queued` is called with each message, so that nobody has to look for it."""

    def __init__(self, line: Line, queued: Callable[[], None]) -> None:
        super().__init__()
        self.line, self._queued = line, queued

    def send(self, message: CoordinatorMessage) -> None:
        """Queue a message."""
        super().send(message)
        self._queued()

    def send_parameters(self, parameters: npt.NDArray[np.float32], round_number: int, attempt: int) -> None:
        """Queue the vector."""
        super().send_parameters(parameters, round_number, attempt)
        self._queued()

    def carry_one(self) -> None:
        """Take the next message to the site."""
        if (message := self.pop()) is not None:
            self.line.push(message)


class Network:
    """A coordinator, its sites, and the order in which messages arrive.

    `meddle` sees every message that arrives from a site and may replace it, repeat it or do something
    else first; what it returns is delivered. `before` is called with the number of each message that is
    about to be carried, in either direction.
    """

    def __init__(self, directory: Path, plan: Plan, seed: int = 0) -> None:
        self.directory, self.plan = directory, plan
        self.order = random.Random(seed)
        self.engine = Engine(
            plans=[plan],
            state=directory / "coordinator",
            identity_of=identity_of,
            clock=asyncio.get_running_loop().time,
        )
        self.meddle: Callable[[str, SiteMessage], list[SiteMessage]] = lambda site, message: [message]
        self.before: Callable[[int], Coroutine[Any, Any, None]] | None = None
        self.sites: dict[str, Site] = {}
        self.ended: list[tuple[str, str]] = []
        self._ends: dict[str, StreamEnd] = {}
        self._heard: dict[str, deque[SiteMessage]] = {}
        self._something = asyncio.Event()
        self._pump = asyncio.create_task(self._carry())
        self.engine.start()

    def add(
        self,
        name: str,
        changes: Callable[[str, int, int, Vector], Vector] | None = None,
        trainer: MadeUpTrainer | None = None,
        **policy: Any,
    ) -> Site:
        """Start a hospital's agent; it connects by itself. Behind it is `trainer`, or a made-up one."""
        seconds = lambda: self.order.uniform(0.0, 1.0)  # noqa: E731
        if trainer is None:
            trainer = MadeUpTrainer(name, changes, seconds) if changes else MadeUpTrainer(name, seconds=seconds)
        site = Site(
            name,
            self.plan,
            self.directory / name,
            trainer=trainer,
            heard=self._hear,
            opened=self._open,
            **policy,
        )
        self.sites[name] = site
        return site

    def cut(self, name: str) -> None:
        """A site's line breaks; what was under way on it is lost."""
        end = self._ends.pop(name, None)
        if end is not None:
            self._heard[name].clear()
            end.line.cut()
            self.engine.disconnected(name, end)

    async def restart(self, name: str) -> None:
        """A site's machine loses power and restarts: its keys are gone, its disk is not."""
        await self.sites[name].stop()
        self.cut(name)
        self.sites[name].start()

    async def pass_time(self, seconds: float) -> None:
        """Let made-up time go by."""
        await asyncio.sleep(seconds)

    async def finish(self, seconds: float = 1e7) -> None:
        """Wait for the end of the run in made-up time."""
        await asyncio.wait_for(self.engine.finished.wait(), seconds)
        await asyncio.sleep(1.0)

    async def close(self) -> None:
        """Stop everything."""
        self._pump.cancel()
        for site in self.sites.values():
            await site.stop()
        await asyncio.wait([self._pump])
        if self._pump.done() and not self._pump.cancelled():
            self._pump.result()

    def vector(self) -> Vector:
        """The final parameters as they lie on the coordinator's disk, those that were federated to the end."""
        (path,) = (self.directory / "coordinator" / "runs").glob("*/parameters.safetensors")
        tensors = load_file(path)
        names = [tensor.name for tensor in manifest_of(self.plan).tensors if tensor.name in tensors]
        return np.concatenate([np.empty(0, np.float32)] + [tensors[name].ravel() for name in names])

    def _open(self, name: str, line: Line) -> None:
        self.cut(name)
        self._heard[name] = deque()
        self._ends[name] = StreamEnd(line, self._something.set)

    def _hear(self, name: str, message: SiteMessage) -> None:
        if name in self._ends:
            self._heard[name].append(message)
            self._something.set()

    async def _carry(self) -> None:
        """One message at a time, from or to anyone who has one, in a drawn order."""
        carried = 0
        while True:
            if self._ready():
                carried += 1
                if self.before is not None:
                    await self.before(carried)
            ready = self._ready()
            if not ready:
                self._something.clear()
                await self._something.wait()
                continue
            name, is_up = self.order.choice(ready)
            if is_up:
                self._deliver(name, self._ends[name], self._heard[name].popleft())
            else:
                self._ends[name].carry_one()
            for _ in range(self.order.randrange(3)):
                await asyncio.sleep(0)

    def _ready(self) -> list[tuple[str, bool]]:
        up = [(name, True) for name in self._ends if self._heard[name]]
        return up + [(name, False) for name, end in self._ends.items() if end.has_something]

    def _deliver(self, name: str, end: StreamEnd, message: SiteMessage) -> None:
        for arriving in self.meddle(name, message):
            if end.is_ending or self._ends.get(name) is not end:
                return
            if isinstance(arriving, Hello):
                self.engine.connected(name, end)
                continue
            try:
                self.engine.received(name, arriving)
            except MalformedMessage as malformed:  # as the service does
                self.ended.append((name, str(malformed)))
                end.end(CoordinatorReason.PROTOCOL_VIOLATED, str(malformed))


def played(folder: Path, plan: Plan, scene: Callable[[Network], Coroutine[Any, Any, None]]) -> None:
    """Run a federation of a plan's sites in made-up time."""

    async def whole() -> None:
        network = Network(folder, plan)
        try:
            await scene(network)
        finally:
            await network.close()

    play(whole())


def recorded(folder: Path) -> dict[str, Any]:
    """The coordinator's record of the one run."""
    (path,) = (folder / "coordinator" / "runs").glob("*/record.json")
    return dict(json.loads(path.read_text()))
