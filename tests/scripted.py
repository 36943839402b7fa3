"""Site a with a coordinator that follows a script, honest or not: the real gate on a line in memory. A script is a list
of steps, one list for each stream that the site opens."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.codec import encode_coordinator_message
from protos.wire.messages import Announcement, CoordinatorMessage, Join, SiteMessage
from site_agent.trainer_socket import Failed
from tests.federation import Line, MadeUpTrainer, Site, clear_plan
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import offer

Step = CoordinatorMessage | bytes | type | float | Callable[[], object] | None


class Scripted(Site):
    """Site a with a coordinator that follows the next script on each new stream. A script is a list of steps: a message
    or bytes to send, a kind of message to wait for, seconds to wait, something to call, or None to hang up."""

    is_waiting = False  # it was still running when the test stopped it

    def __init__(
        self, directory: Path, scripts: Sequence[Sequence[Step]], approved: Sequence[Plan], **given: Any
    ) -> None:
        self.connections, self._scripts, self._tasks = 0, scripts, list[asyncio.Task[None]]()
        plan = next(iter(approved), clear_plan())
        rules = {"secure_aggregation": "not-required"} | given
        super().__init__("a", plan, directory, approved=approved, opened=self._begin, heard=self._pass_on, **rules)

    def _begin(self, _: str, line: Line) -> None:
        script = self._scripts[min(self.connections, len(self._scripts) - 1)]
        self.connections += 1
        self._came = asyncio.Queue[SiteMessage]()
        self._tasks.append(asyncio.create_task(self._follow(script, line, self._came)))

    def _pass_on(self, _: str, message: SiteMessage) -> None:
        self._came.put_nowait(message)

    async def _follow(self, script: Sequence[Step], line: Line, came: asyncio.Queue[SiteMessage]) -> None:
        for step in script:
            if step is None:
                line.cut()
            elif isinstance(step, type):
                while not isinstance(await came.get(), step):
                    continue
            elif isinstance(step, bytes):
                line.push(step)
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif callable(step):
                step()
            else:
                line.push(encode_coordinator_message(step))

    async def stop(self) -> None:
        """The coordinator ends too."""
        await super().stop()
        for task in self._tasks:
            if task.done():
                task.result()
            task.cancel()


def scripted(
    folder: Path,
    *scripts: Sequence[Step],
    approved: Sequence[Plan] = (),
    change: float = 1.0,
    fails: Callable[[], Failed] | None = None,
    scalar: int = 1,
    too_much: bytes = b"",
    **policy: Any,
) -> Scripted:
    """Site a after these scripts, one for each stream: as it ended by itself, or after a minute. Its trainer changes
    every parameter by `change`."""

    async def scene() -> Scripted:
        trainer = MadeUpTrainer("a", lambda _site, _number, parameters: np.full_like(parameters, change))
        trainer.fails, trainer.scalar, trainer.too_much = fails, scalar, too_much
        site = Scripted(folder, scripts, approved, trainer=trainer, **policy)
        await asyncio.sleep(60.0)
        site.is_waiting = site.is_running
        await site.stop()
        return site

    return play(scene())


def announced(plan: Plan) -> Announcement:
    """The beginning of a run."""
    return Announcement(plan.run_name, plan.canonical)


def begun(plan: Plan) -> list[Step]:
    """A run's announcement, and the wait until the site has joined."""
    return [announced(plan), Join]


def offered(plan: Plan, number: int = 0, attempt: int = 0, value: float | None = None) -> list[CoordinatorMessage]:
    """A round whose parameters are all `value`, or the number of the round."""
    vector = np.full(manifest_of(plan).parameters, number if value is None else value, np.float32)
    return offer(vector, number, attempt)
