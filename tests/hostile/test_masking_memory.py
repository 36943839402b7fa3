"""A site repeats its message exactly to the last bit, and the message does not show its update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from tests.federation import masked_plan
from tests.hostile.masking_coordinator import agree, agreed, collect, found, restart, total
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import offer


def test_a_step_that_is_repeated_after_a_restart_gives_no_new_sum(tmp_path: Path) -> None:
    """It is the same vector under new masks. A step to which the run cannot return is refused."""
    plan = masked_plan("abc")

    async def scene() -> None:
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

    play(scene())
