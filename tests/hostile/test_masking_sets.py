"""A coordinator that plays sums off against each other: other sets, other attempts, other runs, other bytes.

Two sums over sets that differ by one site differ by that site's change. Each site remembers what it
masked, on disk, and trusts nobody else's memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protos.masking.masking_refusals import Reason
from protos.plan.manifest import manifest_of
from protos.wire.messages import Bind, Chunk
from tests.hostile.masking_coordinator import (
    agree,
    all_refuse,
    ask_for,
    collect,
    enter,
    found,
    masking_of,
    restart,
    strip,
    total,
)
from tests.hostile.masking_federation import DEAD, MadeUpTrainer, Site, Vector, change_of, masked_plan, sites_of
from tests.hostile.masking_weakened import (
    WEAK,
    in_copy,
    without,
    without_a_memory,
    without_a_quorum,
    without_being_a_contributor,
    without_the_position,
)
from tests.rehearsal.made_up_time import play


@WEAK
@pytest.mark.parametrize("when", ["at once", "after new keys", "after a restart"])
def test_the_same_step_under_a_smaller_set(tmp_path: Path, when: str, is_weak: bool) -> None:
    """Differencing: the step is asked for with and without d; the two sums differ by d's change."""
    plan = masked_plan("abcd")

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        first, _ = total(plan, await collect(sites, 0, 0, "abcd"))

        if when == "after a restart":
            await restart(sites[:3])
        if when != "at once":
            await agree(sites[:3], key_session=2)
        again = await collect(sites[:3], 0, 1, "abc")

        if is_weak:
            second, is_consistent = total(plan, again)
            assert is_consistent
            assert found(first - second, sites[3].change())
        else:
            assert again == [[], [], []]
            assert all_refuse(sites[:3], Reason.OTHER_SET, chunks=1)

    with in_copy(is_weak, without_a_memory):
        play(scene())


@WEAK
def test_the_next_step_with_the_same_parameters_and_a_smaller_set(tmp_path: Path, is_weak: bool) -> None:
    """Where training follows from the parameters alone, differencing needs no step twice: the coordinator sends
    the same parameters again as the next step, without d. A site left out has a price at any step."""
    plan = masked_plan("abcd", on_lost_site="continue")

    def whole_batches(site: str, number: int, redraw: int, parameters: Vector) -> Vector:
        return change_of(site, 0, redraw, parameters)

    async def scene() -> None:
        sites = [
            Site(name, plan, tmp_path / name, trainer=MadeUpTrainer(name, whole_batches)) for name in plan.site_names
        ]
        await enter(sites)
        await agree(sites)
        first, _ = total(plan, await collect(sites, 0, 0, "abcd"))
        again = await collect(sites, 1, 0, "abc")

        if is_weak:
            second, is_consistent = total(plan, again)
            assert is_consistent
            assert found(first - second, sites[3].change())
        else:
            assert again == [[], [], []]
            assert all_refuse(sites[:3], Reason.BUDGET_SPENT, chunks=1)

    with in_copy(is_weak, lambda: without(Reason.BUDGET_SPENT)):
        play(scene())


def test_a_site_left_out_is_paid_for_once_and_over_restarts(tmp_path: Path) -> None:
    """A budget of one lets a run go on without one site, from whatever step, and not without a second."""
    plan = masked_plan("abcde", rounds=4, on_lost_site="continue", assumed_colluders=0)

    async def scene() -> None:
        sites = sites_of(plan, tmp_path, {"lost_site_budget": 1})
        await enter(sites)
        await agree(sites)
        assert all(await collect(sites, 0, 0, "abcde"))
        assert all(await collect(sites, 1, 0, "abcd"))
        await restart(sites[:4])
        await agree(sites[:4], key_session=2)
        assert all(await collect(sites, 2, 0, "abcd"))

        assert await collect(sites, 3, 0, "abc") == [[], [], []]
        assert all_refuse(sites[:3], Reason.BUDGET_SPENT, chunks=3)

    play(scene())


@WEAK
def test_two_sets_in_one_attempt(tmp_path: Path, is_weak: bool) -> None:
    """Two contexts for one round: some hear of one set, then all of another."""
    plan = masked_plan("abcd")

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        first, _ = total(plan, await collect(sites, 0, 0, "abcd"))
        again = [list(await site.tell(Bind(0, 0, ("a", "b", "c"), 0))) for site in sites[:3]]

        if is_weak:
            second, _ = total(plan, [[chunk for chunk in said if isinstance(chunk, Chunk)] for said in again])
            assert found(first - second, sites[3].change())
            return
        for site in sites[:3]:
            assert site.error is not None
            assert [entry["reason"] for entry in site.records("coordinator_refused")] == [
                "two sets of contributors for one attempt"
            ]
            assert len(site.chunks) == 1

    with in_copy(is_weak, without_a_memory):
        play(scene())


@WEAK
def test_two_disjoint_sets_in_one_round(tmp_path: Path, is_weak: bool) -> None:
    """The round is split in pairs, one with a colluding site, whose partner is then alone. A quorum is more than
    half, so the second set cannot exist, and it is more than the colluders and one."""
    plan = masked_plan("abcd")

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        halves = await collect(sites, 0, 0, "ab"), await collect(sites, 0, 0, "cd")

        if is_weak:
            pair, is_consistent = total(plan, halves[0])
            assert is_consistent
            assert found(pair - sites[1].change(), sites[0].change())  # b tells its own
            assert total(plan, halves[1])[1]
            return
        assert halves == ([[], []], [[], []])
        for site in sites:
            assert site.error is not None
            (record,) = site.records("coordinator_refused")
            assert record["reason"] == "contributors that the plan or the policy does not allow"
            assert site.chunks == []

    with in_copy(is_weak, without_a_quorum):
        play(scene())


@WEAK
def test_a_set_without_the_site_itself(tmp_path: Path, is_weak: bool) -> None:
    """A site that masks for others only has masks that they can all take off."""
    plan = masked_plan("abcd")

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        upload = await ask_for(sites[0], 0, 0, "bcd")

        if not is_weak:
            assert upload == []
            (record,) = sites[0].records("coordinator_refused")
            assert record["reason"] == "contributors that the plan or the policy does not allow"
            return
        # b, c and d each tell the key that they share with a.
        keys = {site.name: masking_of(site)._secret.pair_keys["a"] for site in sites[1:]}
        assert found(
            strip(plan, "a", ("b", "c", "d"), keys, masking_of(sites[0])._transcript, upload), sites[0].change()
        )

    with in_copy(is_weak, without_being_a_contributor):
        play(scene())


@WEAK
def test_other_parameters_for_other_sites(tmp_path: Path, is_weak: bool) -> None:
    """Units are dead in what all but the victim get, so their changes are zero and the sum is the victim's.
    Source: Pasquini et al., Eluding Secure Aggregation in Federated Learning via Model Inconsistency, 2022."""
    plan = masked_plan("abcd")
    dead = np.full(manifest_of(plan).parameters, 2 * DEAD, np.float32)

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        uploads = [await ask_for(sites[0], 0, 0, "abcd")]
        uploads += [await ask_for(site, 0, 0, "abcd", dead) for site in sites[1:]]
        sums, is_consistent = total(plan, uploads)

        if is_weak:
            assert is_consistent
            assert found(sums, sites[0].change())
        else:
            assert not is_consistent  # the round is void
            near = np.abs((sums - sites[0].change()).astype(np.int64)) < 1 << 20
            assert np.count_nonzero(near) < sums.size / 2  # and what arrived is noise

    with in_copy(is_weak, without_the_position):
        play(scene())


@WEAK
def test_other_parameters_for_the_same_step(tmp_path: Path, is_weak: bool) -> None:
    """After the real sum the same step comes with dead units for all but one: refused, now and after a restart."""
    plan = masked_plan("abcd")
    dead = np.full(manifest_of(plan).parameters, 2 * DEAD, np.float32)

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        await collect(sites, 0, 0, "abcd")
        uploads = [await ask_for(site, 0, 1, "abcd", dead) for site in sites]

        if is_weak:
            assert all(uploads)
            assert not total(plan, uploads)[0].any()  # what a site sends is the coordinator's choice
            return
        assert uploads == [[], [], [], []]
        await restart(sites)
        await agree(sites, key_session=2)
        assert [await ask_for(site, 0, 1, "abcd", dead) for site in sites] == [[], [], [], []]
        for site in sites:
            reasons = [entry["reason"] for entry in site.records("coordinator_refused")]
            assert reasons == ["other parameters for the same step"] * 2
            assert len(site.chunks) == 1

    with in_copy(is_weak, without_a_memory):
        play(scene())


def test_a_plan_on_disjoint_sets_has_no_second_quorum() -> None:
    """For every number of sites and colluders two quorums share more sites than there are colluders."""
    for count in range(3, 101):
        for colluders in range(count - 1):
            names = [f"s{number}" for number in range(count)]
            quorum = max(3, colluders + 2, (count + colluders) // 2 + 1)
            if quorum > count:
                continue
            assert 2 * quorum - count > colluders
            if count <= 12:
                assert masked_plan(names, assumed_colluders=colluders).quorum == quorum
                with pytest.raises(ValueError, match="needs a quorum"):
                    masked_plan(names, assumed_colluders=colluders, quorum=quorum - 1)
