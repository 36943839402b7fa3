"""A coordinator that plays sums off against each other: other sets, other attempts, other runs, other bytes.

Two sums over sets that differ by one site differ by that site's change. Each site remembers what it
masked, on disk, and trusts nobody else's memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.manifest import manifest_of
from protos.masking.refusals import MaskingRefused, Reason
from protos.messages import Announcement, Bind, Chunk
from protos.parameters import parameters_digest, position
from protos.plan import Plan
from protos.tensors import Layout
from site_agent.boundary.gate import Gate
from tests.hostile.masking_federation import (
    DEAD,
    MadeUpTrainer,
    Site,
    Vector,
    agree,
    ask_for,
    change_of,
    encoded,
    enter,
    found,
    masked_plan,
    settle,
    sites_of,
    strip,
    total,
)
from tests.hostile.masking_weakened import (
    with_any_run_name,
    without,
    without_a_memory,
    without_a_quorum,
    without_being_a_contributor,
    without_the_position,
)
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import offer

WEAK = pytest.mark.parametrize("is_weak", [True, False], ids=["weakened", "ours"])
Weakened = Callable[[], AbstractContextManager[Any]]


def in_copy(is_weak: bool, weakened: Weakened) -> AbstractContextManager[Any]:
    """Our program, or the copy that lacks a protection."""
    return weakened() if is_weak else nullcontext()


async def collect(
    sites: Iterable[Site], number: int, attempt: int, names: Iterable[str], **more: Any
) -> list[list[Chunk]]:
    """Ask the sites of a set for one step; what each of them sends."""
    wanted = tuple(sorted(names))
    return [await ask_for(site, number, attempt, wanted) for site in sites if site.name in wanted]


async def restart(sites: Sequence[Site]) -> None:
    """All machines lose power and come back with their disks."""
    for site in sites:
        await site.stop()
        site.start()
    await enter(sites)


def all_refuse(sites: Iterable[Site], reason: Reason, chunks: int) -> bool:
    """Whether all stopped for this reason, wrote it down, and sent nothing after their first `chunks`."""
    return all(
        site.error is not None
        and [entry.get("because") for entry in site.records("participation_ended")] == [str(reason)]
        and len(site.chunks) == chunks
        for site in sites
    )


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
            await agree(sites[:3], epoch=2)
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
@pytest.mark.parametrize("loss", ["restored", "deleted"])
def test_a_ledger_from_a_backup(tmp_path: Path, loss: str, is_weak: bool) -> None:
    """Whoever brings back yesterday's ledger, or deletes it, makes a site forget; its audit log remembers."""
    plan = masked_plan("abcd")

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        await collect(sites, 0, 0, "abcd")
        for site in sites:
            shutil.copytree(site.directory / "masking", site.directory / "backup")
        first, _ = total(plan, await collect(sites, 1, 0, "abcd"))

        for site in sites[:3]:
            await site.stop()
            shutil.rmtree(site.directory / "masking")
            if loss == "restored":
                shutil.copytree(site.directory / "backup", site.directory / "masking")
            site.start()
        await settle()
        if not is_weak:
            for site in sites[:3]:
                assert await site.tell(Announcement(plan.run_name, plan.canonical)) != []
            assert all_refuse(sites[:3], Reason.RECORD_OLDER, chunks=2)
            return
        await enter(sites[:3])
        await agree(sites[:3], epoch=2)
        second, _ = total(plan, await collect(sites[:3], 1, 0, "abc"))
        assert found(first - second, sites[3].change(1))

    with in_copy(is_weak, lambda: without(Reason.RECORD_OLDER, Reason.BUDGET_SPENT)):
        play(scene())


@pytest.mark.parametrize("victim", "abcd")
def test_one_site_that_forgets_everything_gives_nothing_away(tmp_path: Path, victim: str) -> None:
    """One machine restored whole, audit log and all, cannot know. But every set that it could be played off in
    has an honest site that remembers, so the coordinator gets no second sum."""
    plan = masked_plan("abcd")

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        forgetful = next(site for site in sites if site.name == victim)
        await enter(sites)
        shutil.copytree(forgetful.directory, tmp_path / "backup")
        await agree(sites)
        await collect(sites, 0, 0, "abcd")

        await forgetful.stop()
        shutil.rmtree(forgetful.directory)
        shutil.copytree(tmp_path / "backup", forgetful.directory)
        forgetful.start()
        await enter([forgetful])
        left = [site for site in sites if site.name != ("d" if victim != "d" else "a")]
        await agree(left, epoch=2)
        again = await collect(left, 0, 1, [site.name for site in left])

        assert [bool(upload) for upload in again] == [site is forgetful for site in left]
        assert all_refuse([site for site in left if site is not forgetful], Reason.OTHER_SET, chunks=1)
        assert not any(found(total(plan, [upload])[0], forgetful.change()) for upload in again if upload)

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
        await agree(sites[:4], epoch=2)
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
        for site in sites:
            assert [entry["reason"] for entry in site.records("coordinator_refused")] == [
                "other parameters for the same step"
            ]
        await restart(sites)
        await agree(sites, epoch=2)
        assert [await ask_for(site, 0, 1, "abcd", dead) for site in sites] == [[], [], [], []]
        assert all_refuse(sites, Reason.OTHER_POSITION, chunks=1)

    with in_copy(is_weak, without_a_memory):
        play(scene())


@WEAK
def test_a_plan_runs_once_under_one_name(tmp_path: Path, is_weak: bool) -> None:
    """Another name for the run of a plan would be another ledger: the same first step for another set."""
    plan = masked_plan("abcd")

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        first, _ = total(plan, await collect(sites, 0, 0, "abcd"))
        for site in sites[:3]:
            await site.tell(Announcement("another-name", plan.canonical))

        if not is_weak:
            for site in sites[:3]:
                assert site.error is not None
                assert [entry["reason"] for entry in site.records("coordinator_refused")] == [
                    "a run that is not the one of its plan"
                ]
                assert len(site.chunks) == 1
            return
        await agree(sites[:3])
        second, is_consistent = total(plan, await collect(sites[:3], 0, 0, "abc"))
        assert is_consistent
        assert found(first - second, sites[3].change())

    with in_copy(is_weak, with_any_run_name):
        play(scene())


@WEAK
def test_a_plan_runs_once_on_overlapping_sets(tmp_path: Path, is_weak: bool) -> None:
    """The same run from its first step for another set, after every agent was restarted in between."""
    plan = masked_plan("abcde")

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        first, _ = total(plan, await collect(sites, 0, 0, "abcde"))
        await restart(sites[:4])
        await agree(sites[:4])
        again = await collect(sites[:4], 0, 0, "abcd")

        if is_weak:
            second, _ = total(plan, again)
            assert found(first - second, sites[4].change())
        else:
            assert again == [[]] * 4
            assert all_refuse(sites[:4], Reason.NOT_INCREASING, chunks=1)

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


@WEAK
def test_a_retrained_vector_under_a_frozen_context(tmp_path: Path, is_weak: bool) -> None:
    """Two vectors under the same masks give their difference, here the whole change of the victim's step."""
    plan = masked_plan("abc")
    manifest = manifest_of(plan)

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        bind = Bind(0, 0, plan.site_names, 0)
        zeros = np.zeros(manifest.parameters, np.float32)
        await sites[0].tell(*offer(zeros, 0))
        gate = gate_of(sites[0])
        here = position(plan.run_name, 0, parameters_digest(zeros))
        trained = gate.build(here, change_of("a", 0, 0, zeros).data.cast("B"), rows=0, redraw=0)
        retrained = gate.build(here, zeros.data.cast("B"), rows=0, redraw=0)

        first = list(gate.release(trained, bind))
        if not is_weak:
            with pytest.raises(MaskingRefused) as refusal:
                gate.release(retrained, bind)
            assert refusal.value.reason is Reason.OTHER_VECTOR
            assert len(sites[0].records("contribution_released")) == 1
            masking_of(sites[0]).forget()
            with pytest.raises(MaskingRefused):
                gate.release(trained, bind)  # keys that are gone never come back
            return
        second = list(gate.release(retrained, bind))
        assert found(changes(plan, first) - changes(plan, second), sites[0].change())

    with in_copy(is_weak, lambda: without(Reason.OTHER_VECTOR)):
        play(scene())


def masking_of(site: Site) -> Any:
    """What a running agent keeps to itself."""
    rounds = site.agent._rounds
    assert rounds is not None
    return rounds._masking


def gate_of(site: Site) -> Gate:
    """The gate of a running agent, to open it without the agent's consent."""
    rounds = site.agent._rounds
    assert rounds is not None
    return rounds._gate


def changes(plan: Plan, upload: Sequence[Chunk]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """The 32-bit integers of one site's upload as it stands."""
    manifest = manifest_of(plan)
    layout = Layout(manifest.parameters, len(manifest.scalars))
    return np.concatenate([layout.changes(chunk.body, chunk.index) for chunk in upload])


def test_what_is_sent_again_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    """Asked again under the same context, over and over and from any chunk, a site repeats its bytes."""
    plan = masked_plan("abc", parameters=300_000)

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        first = await ask_for(sites[0], 0, 0, "abc")

        for chunk in (0, 2, 1, 3):
            said = await sites[0].tell(Bind(0, 0, plan.site_names, chunk))
            assert said == list(first[chunk:])
        assert sites[0].trainer.trained == [(0, 0)]

    play(scene())


def test_the_secret_is_not_in_the_chunks(tmp_path: Path) -> None:
    """What one site sends shares nothing with its encoded change."""
    plan = masked_plan("abc", parameters=5000)

    async def scene() -> None:
        sites = sites_of(plan, tmp_path)
        await enter(sites)
        await agree(sites)
        upload = await ask_for(sites[0], 0, 0, "abc")
        secret = encoded(plan, change_of("a", 0, 0, np.zeros(5000, np.float32)))

        assert np.count_nonzero(changes(plan, upload) == secret) <= 2

    play(scene())
