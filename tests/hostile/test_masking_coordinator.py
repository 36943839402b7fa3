"""Sites that mask wrongly, and steps that come again after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protos.wire.messages import Chunk, SiteMessage
from tests.federation import Federation, masked_plan
from tests.hostile.masking_coordinator import agree, agreed, collect, found, restart, total
from tests.hostile.wrong_chunks import wrong_masks
from tests.rehearsal.study import offer


@pytest.mark.parametrize("losses", [0, 1, 4])
async def test_three_corrupted_attempts_end_the_run_with_a_reason(tmp_path: Path, losses: int) -> None:
    """A site that always masks wrongly ends the run after three attempts, however many were lost before for
    other reasons, and nothing is applied."""
    plan = masked_plan("abc", rounds=1)

    network = Federation.of_all(tmp_path, plan)
    seen: set[int] = set()

    def meddle(site: str, message: SiteMessage) -> list[SiteMessage]:
        if site == "b" and isinstance(message, Chunk):
            seen.add(message.attempt)
            return [wrong_masks(message)]
        return [message]

    for _ in range(losses):
        network.meddle = lambda site, message: [] if isinstance(message, Chunk) else [message]
        await network.pass_time(20.0)
        await network.restart("c")
    network.meddle = meddle
    await network.finish(3 * 86_400)
    await network.close()

    assert [(outcome.is_complete, outcome.reason) for outcome in network.engine.outcomes] == [
        (False, "the contributions do not add up")
    ]
    assert sorted(seen) == list(range(losses, losses + 3))
    assert not network.vector().any()


async def test_a_step_that_is_repeated_after_a_restart_gives_no_new_sum(tmp_path: Path) -> None:
    """It is the same vector under new masks. A step to which the run cannot return is refused."""
    plan = masked_plan("abc")

    sites = await agreed(plan, tmp_path)
    await collect(sites, 0, 0, "abc")
    first, _ = total(plan, await collect(sites, 1, 0, "abc"))
    await restart(sites)
    await agree(sites)

    again, cancels = total(plan, await collect(sites, 1, 1, "abc"))
    for site in sites:
        announced, *chunks = offer(np.zeros(10, np.float32), 2, 0)
        await site.tell(replace(announced, oldest=2), *chunks)
    late = await collect(sites, 1, 2, "abc")

    assert cancels
    assert found(again, first)
    assert late == [[], [], []]
