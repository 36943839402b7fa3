"""A coordinator that compares the sums of two plans with different sites.

The made-up hospitals train from the parameters alone. So equal parameters give equal updates in any round of any plan,
and the difference of two sums is the update of the sites that are in one of them alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protos.masking.masking_refusals import Reason
from protos.plan.plan import Plan
from tests.federation import Integers, MadeUpTrainer, Site, masked_plan, update_from
from tests.hostile.attack import Attack, played
from tests.hostile.masking_coordinator import agree, all_refuse, collect, enter, found, total
from tests.hostile.masking_weakened import without


def _sites(plan: Plan, folder: Path, **policy: Any) -> list[Site]:
    return [
        Site(name, plan, folder / name, trainer=MadeUpTrainer(name, update_from), **policy) for name in plan.site_names
    ]


def second_study_without_a_site(weakened: bool) -> bool:
    """Subtract the first sum of a second study, with another name and one site fewer, from the first study's."""
    before, after = masked_plan("abcde"), masked_plan("abcd", study="another")

    async def scene(folder: Path) -> bool:
        first, secret = await _first_study(before, folder)
        sites = _sites(after, folder)
        await enter(sites)
        await agree(sites)
        again = await collect(sites, 0, 0, "abcd")
        if not all(again):
            assert all_refuse(sites, Reason.OTHER_SETS, chunks=0)
            return False
        # Plans for four and for five sites encode with the same scale.
        return found(first - total(after, again)[0], secret)

    return played(scene, weakened, lambda: without(Reason.OTHER_SETS))


async def _first_study(plan: Plan, folder: Path) -> tuple[Integers, Integers]:
    """Run a round with all sites and stop; the sum, and the last site's update."""
    sites = _sites(plan, folder)
    await enter(sites)
    await agree(sites)
    first, _ = total(plan, await collect(sites, 0, 0, plan.site_names))
    for site in sites:
        await site.stop()
    return first, sites[-1].update()


ATTACKS = (
    Attack(name="second-study-without-a-site", without="the memory of other plans", run=second_study_without_a_site),
)
