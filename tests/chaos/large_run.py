"""A coordinator with a large model, to be killed: `python -m tests.chaos.large_run STATE PARAMETERS ROUNDS`.

Engine, store, snapshots and the thread that writes them are the coordinator's own. Sites answer in memory. The disk
takes its time for a snapshot. Prints a line for each closed round, with whether a snapshot was being written, and at
the end the largest memory of this process in bytes.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from coordinator.rounds.engine import Engine
from protos.plan.plan import Plan
from protos.wire.messages import CoordinatorMessage, Join, SiteMessage
from tests.coordinator.in_memory import IDENTITIES, Stage, coordinator_log
from tests.rehearsal.study import BehavingSite, plan_with

SLOW_SECONDS = 0.25
_LARGEST_TENSOR = 1 << 20


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


class LargeSite(BehavingSite):
    """Keeps no vector, and holds every state that the coordinator may go back to."""

    def __init__(self, name: str, snapshots: Path) -> None:
        super().__init__(name)
        self._snapshots = snapshots

    def answer(self, message: CoordinatorMessage) -> list[SiteMessage]:
        """As every site, and forgets."""
        said = super().answer(message)
        self.vectors.clear()
        held = tuple(number for number in sorted({0, *rounds_in(self._snapshots)}))
        return [
            Join(word.run, word.plan_digest, word.manifest_digest, key_session=0, next_round=None, saved=held)
            if isinstance(word, Join)
            else word
            for word in said
        ]


def slow_disk() -> None:
    """A snapshot is on disk later than other disks would have it."""
    quick = os.fsync

    def sync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".partial":
            time.sleep(SLOW_SECONDS)
        quick(descriptor)

    os.fsync = sync


async def run(state: Path, plan: Plan, aside: ThreadPoolExecutor) -> None:
    """Begin the run or take it up, until it is over."""
    stage = Stage(state, plan)
    clock = asyncio.get_running_loop().time
    log = coordinator_log(state)
    stage.engine = Engine(plans=[plan], log=log, identity_of=IDENTITIES.get, clock=clock, aside=aside)
    stage.engine.start()
    for name in IDENTITIES:
        stage.connect(LargeSite(name, state / "runs" / plan.run_name / "snapshots"))
    told = -1
    while not stage.engine.finished.is_set():
        moved = sum(stage._deliver_one(stream) for stream in list(stage.streams))
        store, now = stage.engine._store, stage.engine.status()["run"]
        if store is not None and now is not None and now["rounds_made"] != told:
            told = now["rounds_made"]
            print(told, int(store._writing is not None and not store._writing[1].done()), flush=True)
        await asyncio.sleep(0 if moved else 0.01)
    assert stage.engine.failure is None


def main() -> None:
    """Run the command line."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    slow_disk()
    state, parameters, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    with ThreadPoolExecutor(1) as aside:
        asyncio.run(run(state, large_plan(parameters, rounds), aside))
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)


if __name__ == "__main__":
    main()
