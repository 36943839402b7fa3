"""A coordinator that compares the sums of two plans with different sites.

The made-up hospitals train from the parameters alone. So equal parameters give equal updates in any round of any plan,
and the difference of two sums is the update of the sites that are in one of them alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protos.masking.masking_refusals import Reason
from protos.plan.plan import Plan
from protos.wire.messages import Announcement
from site_agent.gate.earlier_runs import ledger_path
from tests.federation import (
    Integers,
    MadeUpTrainer,
    Site,
    Vector,
    masked_plan,
    settle,
    update_of,
)
from tests.hostile.attack import Attack, played
from tests.hostile.masking_coordinator import agree, all_refuse, collect, enter, found, total
from tests.hostile.masking_weakened import without


def _from_parameters(site: str, number: int, parameters: Vector) -> Vector:
    return update_of(site, 0, parameters)


def _sites(plan: Plan, folder: Path, **policy: Any) -> list[Site]:
    return [
        Site(name, plan, folder / name, trainer=MadeUpTrainer(name, _from_parameters), **policy)
        for name in plan.site_names
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


def second_study_after_its_ledger_was_deleted(weakened: bool) -> bool:
    """As above, after somebody has deleted the first study's ledgers; the audit logs remember the study."""
    before, after = masked_plan("abcde"), masked_plan("abcd", study="another")

    async def scene(folder: Path) -> bool:
        first, secret = await _first_study(before, folder)
        for name in after.site_names:
            ledger_path(folder / name, before.run_name).unlink()
        sites = _sites(after, folder)
        await settle()
        answers = [await site.tell(Announcement(after.run_name, after.canonical)) for site in sites]
        if not all(answers):
            assert all_refuse(sites, Reason.RECORD_OLDER, chunks=0)
            return False
        await agree(sites)
        again = await collect(sites, 0, 0, "abcd")
        return all(again) and found(first - total(after, again)[0], secret)

    return played(scene, weakened, lambda: without(Reason.RECORD_OLDER))


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
    Attack(
        name="second-study-without-a-site",
        tries="the coordinator has a second study approved, with the same seed and one site fewer, and subtracts",
        without="the memory of other plans",
        run=second_study_without_a_site,
    ),
    Attack(
        name="second-study-after-a-deletion",
        tries="the ledger of the first study is deleted before the second one, with one site fewer, begins",
        without="the comparison of ledgers with the audit log",
        run=second_study_after_its_ledger_was_deleted,
    ),
)
