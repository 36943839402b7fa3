"""A coordinator that compares sums of rounds and plans: sets that grow, return, or belong to another study.

The made-up hospitals train from the parameters alone. So equal parameters give equal updates in any round of any plan,
and the difference of two sums is the update of the sites that are in one of them alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from protos.masking.masking_refusals import Reason
from protos.numbers.chunk_layout import Layout
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Announcement, Chunk
from site_agent.gate.earlier_runs import ledger_path
from tests.hostile.attack import Attack, played
from tests.hostile.masking_coordinator import agree, all_refuse, collect, enter, found, total
from tests.hostile.masking_federation import (
    Integers,
    MadeUpTrainer,
    Site,
    Vector,
    masked_plan,
    rows_of,
    settle,
    update_of,
)
from tests.hostile.masking_weakened import without
from tests.hostile.sets_weakened import with_free_growth, with_free_returns, without_other_runs

ROWS_WEIGHTED = {"name": "rows", "largest_rows": 128}


def _from_parameters(site: str, number: int, resample: int, parameters: Vector) -> Vector:
    return update_of(site, 0, 0, parameters)


def _sites(plan: Plan, folder: Path, **policy: Any) -> list[Site]:
    return [
        Site(name, plan, folder / name, trainer=MadeUpTrainer(name, _from_parameters), **policy)
        for name in plan.site_names
    ]


def _first_scalar(plan: Plan, uploads: Sequence[Sequence[Chunk]]) -> int:
    """The sum of the first number beside the updates."""
    manifest = manifest_of(plan)
    layout = Layout(manifest.parameters, len(manifest.scalars))
    words = [np.uint64(layout.words(chunk.body, chunk.index)[1]) for upload in uploads for chunk in upload[:1]]
    return int(sum(int(word) for word in words) % 2**64)


def larger_set_at_the_next_step(weakened: bool) -> bool:
    """Leave d out of round 0 and send the same parameters as round 1 with d: its update and its row count."""
    plan = masked_plan("abcd", weighting=ROWS_WEIGHTED)

    async def scene(folder: Path) -> bool:
        sites = _sites(plan, folder)
        await enter(sites)
        await agree(sites)
        first = await collect(sites, 0, 0, "abc")
        again = await collect(sites, 1, 0, "abcd")
        if not all(again):
            assert all_refuse(sites[:3], Reason.OTHER_SETS, chunks=1)
            return False
        updates = total(plan, again)[0] - total(plan, first)[0]
        rows = (_first_scalar(plan, again) - _first_scalar(plan, first)) % 2**64
        return bool(updates.any()) and rows == rows_of("d")

    return played(scene, weakened, with_free_growth)


def return_to_an_earlier_set(weakened: bool) -> bool:
    """Use the unit that was given for one round for a second pair of rounds, at other parameters."""
    plan = masked_plan("abcd", rounds=4, on_lost_site="continue")

    async def scene(folder: Path) -> bool:
        sites = _sites(plan, folder, lost_site_budget=1)
        await enter(sites)
        await agree(sites)
        assert all(await collect(sites, 0, 0, "abcd"))
        assert all(await collect(sites, 1, 0, "abc"))
        first = await collect(sites, 2, 0, "abcd")
        again = await collect(sites, 3, 0, "abc")
        if not all(again):
            assert all_refuse(sites[:3], Reason.BUDGET_SPENT, chunks=3)
            return False
        return found(total(plan, first)[0] - total(plan, again)[0], sites[3].update())

    return played(scene, weakened, with_free_returns)


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

    return played(scene, weakened, without_other_runs)


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
        name="larger-set-at-the-next-step",
        tries="the coordinator leaves a site out of round 0, repeats the parameters with it, and subtracts",
        without="the price of a larger set",
        run=larger_set_at_the_next_step,
    ),
    Attack(
        name="return-to-an-earlier-set",
        tries="the coordinator uses a unit of the budget for a second pair of rounds",
        without="the price of a return",
        run=return_to_an_earlier_set,
    ),
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
