"""A coordinator that counts on forgetting: restarts, backups, a second run, a vector trained again.

What a site masked is on its disk before a byte leaves; its keys are nowhere but in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.numbers.chunk_layout import Layout
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Announcement, Bind, Chunk, Offer, Stage
from protos.wire.positions import parameters_digest, position
from site_agent.gate.door import Gate
from tests.hostile.masking_coordinator import (
    agree,
    all_refuse,
    ask_for,
    collect,
    enter,
    found,
    masking_of,
    restart,
    total,
)
from tests.hostile.masking_federation import Site, change_of, encoded, masked_plan, settle, sites_of
from tests.hostile.masking_weakened import (
    WEAK,
    in_copy,
    with_any_run_name,
    without,
    without_a_memory,
)
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import offer


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
                assert await site.tell(Announcement(plan.run_name, plan.canonical)) == []  # the run is not ended for it
            assert all_refuse(sites[:3], Reason.RECORD_OLDER, chunks=2)
            return
        await enter(sites[:3])
        await agree(sites[:3], key_session=2)
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
        await agree(left, key_session=2)
        again = await collect(left, 0, 1, [site.name for site in left])

        assert [bool(upload) for upload in again] == [site is forgetful for site in left]
        assert all_refuse([site for site in left if site is not forgetful], Reason.OTHER_SET, chunks=1)
        assert not any(found(total(plan, [upload])[0], forgetful.change()) for upload in again if upload)

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
        here = position(plan.run_name, Offer(0, 0, parameters_digest(zeros)))
        exchange = Exchanges(plan, manifest).of(0, Stage.TRAINING, b"")
        trained = gate.build(here, exchange, change_of("a", 0, 0, zeros).data.cast("B"), rows=0, redraw=0)
        retrained = gate.build(here, exchange, zeros.data.cast("B"), rows=0, redraw=0)

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

        for chunk in (0, 2, 1):
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
