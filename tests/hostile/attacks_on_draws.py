"""A coordinator that names another draw of batches to each site of one attempt.

In a second draw a site sends the numbers that it has measured as zero, because it sends them only once. If the masks of
two draws cancelled, the sum would have the measured numbers of a single site.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import protos.masking.mask_context
import site_agent.gate.site_masking
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Bind, Chunk, Stage
from site_agent.gate.site_rounds import Rounds
from tests.hostile.attack import Attack, played
from tests.hostile.masking_coordinator import agree, enter
from tests.hostile.masking_federation import masked_plan, measured_by, of_kind, sites_of
from tests.rehearsal.study import offer

MEASURED = 1  # the round in which sites measure the validation loss


@contextmanager
def without_the_draw() -> Iterator[None]:
    """The draw is not bound into the masks, and any plan may have a second one."""
    honest = protos.masking.mask_context.round_context

    def context(transcript: bytes, position: bytes, attempt: int, resample: int, *others: Any) -> bytes:
        return honest(transcript, position, attempt, 0, *others)

    def accept(self: Any, bind: Bind) -> None:
        self._bind = bind

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(site_agent.gate.site_masking, "round_context", context)
        patch.setattr(Rounds, "_accept_bind", accept)
        yield


async def _sum_of_draws(plan: Plan, folder: Path) -> bool:
    """Return whether the coordinator gets what site a alone has measured."""
    sites, exchanges = sites_of(plan, folder, {"lost_site_budget": 1}), Exchanges(plan, manifest_of(plan))
    await enter(sites)
    await agree(sites)
    exchange = exchanges.of(MEASURED, Stage.TRAINING, b"")
    numbers = np.zeros(1 + len(exchange.scalars), np.uint64)
    for number in range(MEASURED + 1):
        for site in sites:
            draw = 0 if site.name == "a" or number < MEASURED else 1
            await site.tell(*offer(np.full(10, number, np.float32), number, 1))
            (chunk,) = of_kind(await site.tell(Bind(number, 1, plan.site_names, 0, draw)), Chunk) or (None,)
            if chunk is None:
                assert draw
                assert plan.on_lost_site == "wait"
                assert site.error is not None
                return False
            if number == MEASURED:
                numbers += exchange.layout.words(chunk.body, 0).astype(np.uint64)  # wraps on purpose
    own = measured_by("a", MEASURED, exchange)
    return list(numbers[1:]) == [own[scalar.name] for scalar in exchange.scalars]


def another_draw_for_each_site(weakened: bool, on_lost_site: str) -> bool:
    """Name the ordinary draw to one site and a second draw to all others, in one attempt with one set."""
    plan = masked_plan("abcd", rounds=3, checkpoint="global", on_lost_site=on_lost_site)
    return played(partial(_sum_of_draws, plan), weakened, without_the_draw)


ATTACKS = tuple(
    Attack(
        name=f"draw-of-its-own-for-each-site-if-plans-{word}",
        tries="one site's numbers are those of the first draw, and all others send zeros in a second draw",
        without="the draw in the masks' context and in the plan's limits",
        run=partial(another_draw_for_each_site, on_lost_site=word),
    )
    for word in ("wait", "continue")
)
