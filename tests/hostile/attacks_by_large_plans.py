"""A coordinator that announces a plan so large that the gate has no memory or no time for anything else. The gate reads
a plan before policy and approval, so it counts before it lists, and reads in another thread."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from protos.plan import prior_plan
from protos.plan.plan import plan_from_wire
from protos.wire.messages import Announcement
from site_agent.gate import run_admission
from site_agent.gate.run_admission import Admission
from tests.federation import identity_of, masked_plan
from tests.hostile.attack import Attack, in_copy, patched

MOST_BYTES = 20 << 20


def _many_sums() -> bytes:
    sites = [{"name": name, "identity": identity_of(name)} for name in "abcd"]
    codes = [f"k{code}" for code in range(21)]
    concepts = [{"kind": "codes", "name": f"c{n}", "definition": "kind", "codes": codes} for n in range(50)]
    plan = {"kind": "prior", "study": "large", "version": 1, "sites": sites, "concepts": concepts}
    return json.dumps(plan, sort_keys=True, separators=(",", ":")).encode()


def memory_of_a_plan(weakened: bool) -> bool:
    """Announce a plan whose pairs of columns fill the memory as soon as they are listed."""
    without: Callable[[], AbstractContextManager[None]] = lambda: patched(prior_plan, MOST_SUMS=1 << 40)  # noqa: E731
    with in_copy(weakened, without):
        tracemalloc.start()
        try:
            plan = prior_plan.PriorPlan.model_validate_json(_many_sums())
            assert plan.newton_names
        except ValueError:
            assert not weakened
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    return peak > MOST_BYTES


def time_of_a_plan(weakened: bool) -> bool:
    """Announce a plan whose reading takes long, and see whether the gate does anything else in this time."""

    async def at_once(work: Callable[..., Any], *given: Any) -> Any:
        return work(*given)

    async def scene() -> bool:
        other_work = threading.Event()
        is_held: list[bool] = []

        def slowly(raw: bytes) -> Any:
            is_held.append(not other_work.wait(2.0))
            return plan_from_wire(raw)

        async def watchdog() -> None:
            other_work.set()

        plan = masked_plan("abc")
        asked: Any = dict.fromkeys(("hospital", "audit", "around", "tell", "wait", "began"))  # only the key is asked
        admission = Admission(identity_key=_Key(), **asked)
        with patched(run_admission, plan_from_wire=slowly):
            reading = asyncio.create_task(admission.announced(Announcement(plan.run_name, plan.canonical)))
            await asyncio.sleep(0)
            await asyncio.gather(reading, asyncio.create_task(watchdog()))
        return is_held == [True]

    with in_copy(weakened, lambda: patched(asyncio, to_thread=at_once)):
        return asyncio.run(scene())


class _Key:
    """An identity key that signs nothing."""

    def public_key(self) -> _Key:
        """The same."""
        return self

    def public_bytes_raw(self) -> bytes:
        """32 bytes."""
        return bytes(32)


ATTACKS = (
    Attack(name="plan-that-fills-the-memory", without="the count of sums before they are listed", run=memory_of_a_plan),
    Attack(name="plan-that-holds-the-gate", without="the other thread in which plans are read", run=time_of_a_plan),
)
