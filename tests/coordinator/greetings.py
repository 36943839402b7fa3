"""How a site greets a coordinator, and how a run over TLS has to end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from protos.plan.plan import Plan
from protos.wire.messages import PROTOCOL_VERSION, Announcement, Hello
from protos.wire.upkeep_messages import LogHeads
from tests.rehearsal.federation import Caller
from tests.rehearsal.study import MEAN

HELLO = Hello(PROTOCOL_VERSION, "test")


async def announced_to(caller: Caller) -> Announcement:
    """The run that the coordinator announces, after the heads of the logs."""
    assert isinstance(await caller.receive(), LogHeads)
    announced = await caller.receive()
    assert isinstance(announced, Announcement)
    return announced


class WithoutUpkeep:
    """The handler of messages outside the rounds, for sites that send none: it records nothing."""

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


WITHOUT_UPKEEP: Any = WithoutUpkeep()


def assert_right_bits(state: Path, plan: Plan) -> None:
    """The one run of a state directory ended with rounds times the mean."""
    (path,) = (state / "runs").glob("*/parameters.safetensors")
    for values in load_file(path).values():
        np.testing.assert_array_equal(values, np.float32(plan.schedule.rounds * MEAN))
