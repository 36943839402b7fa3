"""A site repeats its message exactly to the last bit, and the message does not show its update."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from protos.wire.messages import Bind, Chunk
from tests.federation import Site, encoded, masked_plan, of_kind, update_of
from tests.hostile.attacks_on_memory import updates
from tests.hostile.masking_coordinator import agree, agreed, ask_for, collect, enter, found, restart, total
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import offer


def test_what_is_sent_again_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    """Asked again under the same context, over and over and from any chunk, a site repeats its bytes."""
    plan = masked_plan("abc", parameters=600_000)

    async def scene() -> None:
        sites = await agreed(plan, tmp_path)
        first = await ask_for(sites[0], 0, 0, "abc")

        for chunk in (0, 2, 1):
            again = (*offer(np.zeros(600_000, np.float32), 0), Bind(0, 0, plan.site_names, chunk))
            assert of_kind(await sites[0].tell(*again), Chunk) == list(first[chunk:])
        assert sites[0].trainer.trained == [0]

    play(scene())


def test_the_secret_is_not_in_the_chunks(tmp_path: Path) -> None:
    """A site's message shares nothing with its encoded update."""
    plan = masked_plan("abc", parameters=5000)

    async def scene() -> None:
        sites = await agreed(plan, tmp_path)
        upload = await ask_for(sites[0], 0, 0, "abc")
        secret = encoded(plan, update_of("a", 0, np.zeros(5000, np.float32)))

        assert np.count_nonzero(updates(plan, upload) == secret) <= 2

    play(scene())


def test_what_a_coordinator_can_strip_is_what_a_site_trained(tmp_path: Path) -> None:
    """The comparison that these attacks end in is with the update itself, not with zeros."""
    plan = masked_plan("abc")

    async def scene() -> None:
        victim = Site("a", plan, tmp_path)
        await enter([victim])

        assert np.count_nonzero(victim.update()) == victim.update().size
        assert not found(victim.update(0), victim.update(1))
        assert not found(encoded(plan, np.zeros(10, np.float32)), victim.update())

    play(scene())


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
