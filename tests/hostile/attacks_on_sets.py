"""A coordinator that compares sums with each other: other sets, other attempts, other keys, other bytes. Two sums over
sets that differ by one site differ by that site's update. Each site records on disk its masked answers, and trusts no
other program's memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import site_agent.gate.policy
from protos.masking.mask_stream import Masker
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.plan_head import PlanHead
from protos.wire.messages import Announcement, Bind, Chunk, Join, KeyAdvert, KeySessionOpen
from tests.federation import DEAD, MadeUpTrainer, Site, Vector, masked_plan, of_kind, settle, sites_of, update_from
from tests.hostile.attack import Attack, as_attack, played
from tests.hostile.masking_coordinator import (
    agree,
    among,
    ask_for,
    collect,
    enter,
    found,
    masking_of,
    restart,
    strip,
    total,
)
from tests.hostile.masking_weakened import (
    OF_SETS,
    without,
    without_a_memory,
    without_a_quorum,
    without_being_a_contributor,
    without_the_position,
)


@among("abcd", without_a_memory)
async def same_step_for_a_smaller_set(plan: Plan, sites: list[Site], when: str) -> bool:
    """Ask for a step with and without d: the two sums differ by d's update."""
    first, _ = total(plan, await collect(sites, 0, 0, "abcd"))
    if when == "after a restart":
        await restart(sites[:3])
    if when != "at once":
        opened = [await site.tell(KeySessionOpen(2, ("a", "b", "c"))) for site in sites[:3]]
        if not any(of_kind(answer, KeyAdvert) for answer in opened):
            for site in sites[:3]:
                _refused(site, "a key session of other sites than those of the plan", chunks=1)
            return False
        await agree(sites[:3], key_session=3)
    again = await collect(sites[:3], 0, 1, "abc")
    return _is_found(plan, sites, first, again)


@as_attack(without_a_quorum)
async def next_step_for_a_smaller_set(folder: Path) -> bool:
    """Send the same parameters again as the next step, without d, where training follows from the parameters alone."""
    plan = masked_plan("abcd")
    sites = [Site(name, plan, folder / name, trainer=MadeUpTrainer(name, update_from)) for name in "abcd"]
    await enter(sites)
    await agree(sites)
    first, _ = total(plan, await collect(sites, 0, 0, "abcd"))
    again = await collect(sites, 1, 0, "abc")
    return _is_found(plan, sites, first, again)


@among("abcd", without_a_memory)
async def two_sets_in_one_attempt(plan: Plan, sites: list[Site]) -> bool:
    """Bind a second set of contributors in the same attempt, after the first has been answered."""
    first, _ = total(plan, await collect(sites, 0, 0, "abcd"))
    again = [of_kind(await site.tell(Bind(0, 0, ("a", "b", "c"), 0)), Chunk) for site in sites[:3]]
    if not all(again):
        for site in sites[:3]:
            assert site.error is not None
            _refused(site, "the contributors a second time for one attempt at a round", chunks=1)
        return False
    second, _ = total(plan, again)
    return found(first - second, sites[3].update())


def _is_found(plan: Plan, sites: Sequence[Site], first: Vector, again: Sequence[Sequence[Chunk]]) -> bool:
    """Whether a sum without the last site shows its update; otherwise all other sites have refused it."""
    if not all(again):
        assert again == [[], [], []]
        for site in sites[:3]:
            _refused(site, chunks=1)
        return False
    second, is_consistent = total(plan, again)
    return is_consistent and found(first - second, sites[3].update())


def _refused(site: Site, reason: str = "other contributors than the sites of the plan", *, chunks: int = 0) -> None:
    (record,) = site.records("coordinator_refused")
    assert record["reason"] == reason
    assert len(site.chunks) == chunks


@among("abcd", without_a_quorum)
async def two_disjoint_sets(plan: Plan, sites: list[Site]) -> bool:
    """Split the round in pairs, one with a colluding site, whose partner is then alone."""
    halves = await collect(sites, 0, 0, "ab"), await collect(sites, 0, 0, "cd")
    if not all(halves[0]):
        assert halves == ([[], []], [[], []])
        for site in sites:
            _refused(site)
        return False
    pair, is_consistent = total(plan, halves[0])
    other_is_consistent = total(plan, halves[1])[1]
    alone = found(pair - sites[1].update(), sites[0].update())  # b reports its own update
    return is_consistent and other_is_consistent and alone


@among("abcd", without_a_quorum)
async def two_sets_at_once(plan: Plan, sites: list[Site]) -> bool:
    """Show a and b a set of their own, and all others the whole set, in one attempt; b reports its own update."""
    uploads = [await ask_for(site, 0, 0, "ab" if site.name in "ab" else "abcd") for site in sites]
    if not all(uploads):
        assert uploads[:2] == [[], []]
        for site in sites[:2]:
            _refused(site)
        assert not total(plan, uploads[2:])[1]  # the masks with a and b remain
        return False
    pair, is_consistent = total(plan, uploads[:2])
    return is_consistent and found(pair - sites[1].update(), sites[0].update())


@contextmanager
def without_company() -> Iterator[None]:
    """A site contributes with any number of others, and without masks if it is alone."""
    honest = Masker.masked

    def masked(self: Masker, body: memoryview, index: int) -> memoryview:
        return honest(self, body, index) if self._streams else body

    with without_a_quorum(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Masker, "masked", masked)
        yield


@among("abcd", without_company)
async def set_of_one_site(plan: Plan, sites: list[Site]) -> bool:
    """Bind a site alone, so that it has no peer and no mask."""
    upload = await ask_for(sites[0], 0, 0, "a")
    if not upload:
        _refused(sites[0])
        return False
    return found(total(plan, [upload])[0], sites[0].update())


@contextmanager
def without_two_honest_sites() -> Iterator[None]:
    """A plan may assume so many colluding sites that only one honest site remains."""
    with without(*OF_SETS) as patch:
        patch.setattr(PlanHead, "_of_sites", lambda self: ())
        patch.setattr(site_agent.gate.policy, "smallest_set", lambda plan, smallest_sites: smallest_sites)
        yield


def one_honest_site(weakened: bool) -> bool:
    """Announce a plan of four sites that assumes three colluding ones, which subtract their updates from the sum."""
    with without_two_honest_sites():
        plan = masked_plan("abcd", assumed_colluders=3)

    async def scene(folder: Path) -> bool:
        sites = sites_of(plan, folder)
        await settle()
        said = [await site.tell(Announcement(plan.run_name, plan.canonical)) for site in sites]
        if not all(of_kind(answer, Join) for answer in said):
            assert not any(of_kind(answer, Join) for answer in said)
            return False
        await agree(sites)
        left, is_consistent = total(plan, await collect(sites, 0, 0, "abcd"))
        for site in sites[1:]:
            left -= site.update()
        return is_consistent and found(left, sites[0].update())

    return played(scene, weakened, without_two_honest_sites)


@among("abcd", without_being_a_contributor)
async def set_without_the_site_itself(plan: Plan, sites: list[Site]) -> bool:
    """Have a mask for a set that it is not in: the others can take off all its masks."""
    upload = await ask_for(sites[0], 0, 0, "bcd")
    if not upload:
        _refused(sites[0])
        return False
    # b, c and d each report the key that they share with a.
    keys = {site.name: masking_of(site)._secret.pair_keys["a"] for site in sites[1:]}
    seen = masking_of(sites[0])._transcript
    return found(strip(plan, "a", ("b", "c", "d"), keys, seen, upload), sites[0].update())


@among("abcd", without_the_position)
async def other_parameters_for_other_sites(plan: Plan, sites: list[Site]) -> bool:
    """Send all but the victim parameters with dead units: their updates are zero, and the sum is the victim's.

    Source: Pasquini et al., Eluding Secure Aggregation in Federated Learning via Model Inconsistency, 2022.
    """
    dead = np.full(manifest_of(plan).parameters, 2 * DEAD, np.float32)
    await collect(sites, 0, 0, "abcd")  # each site computes the first parameters itself
    uploads = [await ask_for(sites[0], 1, 1, "abcd")]
    uploads += [await ask_for(site, 1, 1, "abcd", dead) for site in sites[1:]]
    sums, is_consistent = total(plan, uploads)
    if not is_consistent:  # the round is void, and the received bytes are noise
        near = np.abs((sums - sites[0].update(1)).astype(np.int64)) < 1 << 20
        assert np.count_nonzero(near) < sums.size / 2
    return is_consistent and found(sums, sites[0].update(1))


@among("abcd", without_a_memory)
async def other_parameters_for_the_same_step(plan: Plan, sites: list[Site]) -> bool:
    """After the real sum, repeat the step with dead units, at once and after a restart."""
    dead = np.full(manifest_of(plan).parameters, 2 * DEAD, np.float32)
    await collect(sites, 0, 0, "abcd")
    uploads = [await ask_for(site, 0, 1, "abcd", dead) for site in sites]
    if all(uploads):
        return not total(plan, uploads)[0].any()  # the coordinator chose what each site sent
    assert uploads == [[], [], [], []]
    await restart(sites)
    await agree(sites, key_session=2)
    assert [await ask_for(site, 0, 1, "abcd", dead) for site in sites] == [[], [], [], []]
    for site in sites:
        reasons = [entry["reason"] for entry in site.records("coordinator_refused")]
        assert reasons == ["other parameters for the same step"] * 2
        assert len(site.chunks) == 1
    return False


ATTACKS = (
    *(
        Attack(
            name=f"smaller-set-{when.replace(' ', '-')}",
            tries=f"the coordinator repeats a step without one site, {when}, and subtracts the two sums",
            without="the memory of what was masked",
            run=partial(same_step_for_a_smaller_set, when=when),
        )
        for when in ("at once", "after new keys", "after a restart")
    ),
    Attack(
        "smaller-set-at-the-next-step", "the check that all sites of the plan contribute", next_step_for_a_smaller_set
    ),
    Attack("two-sets-in-one-attempt", "the memory of what was masked", two_sets_in_one_attempt),
    Attack("two-disjoint-sets", "the check that all sites of the plan contribute", two_disjoint_sets),
    Attack("two-sets-at-once", "the check that all sites of the plan contribute", two_sets_at_once),
    Attack("set-of-one-site", "the check that all sites of the plan contribute", set_of_one_site),
    Attack(
        "plan-with-one-honest-site",
        "the check that a sum has two sites more than the assumed colluders",
        one_honest_site,
    ),
    Attack(
        "set-without-the-site-itself", "the check that a site is among the contributors", set_without_the_site_itself
    ),
    Attack("other-parameters-for-other-sites", "the position in the masks", other_parameters_for_other_sites),
    Attack("other-parameters-for-the-same-step", "the memory of what was masked", other_parameters_for_the_same_step),
)
