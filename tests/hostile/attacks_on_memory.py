"""A coordinator that relies on lost memory: restarts, backups, a second run, a repeated vector.

The record of masking is on the site's disk before a byte is sent, and the keys exist only in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
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
from site_agent.state_folders import gate_folder
from tests.hostile.attack import Attack, played
from tests.hostile.masking_coordinator import (
    agree,
    all_refuse,
    collect,
    enter,
    found,
    masking_of,
    restart,
    total,
)
from tests.hostile.masking_federation import Site, masked_plan, settle, sites_of, update_of
from tests.hostile.masking_weakened import (
    OF_SETS,
    with_any_run_name,
    without,
    without_a_memory,
)
from tests.rehearsal.study import offer


def ledger_from_a_backup(weakened: bool, loss: str) -> bool:
    """Restore yesterday's ledger, or delete it, and repeat a step without d."""
    plan = masked_plan("abcd")

    async def scene(folder: Path) -> bool:
        sites = sites_of(plan, folder)
        await enter(sites)
        await agree(sites)
        await collect(sites, 0, 0, "abcd")
        for site in sites:
            shutil.copytree(gate_folder(site.directory) / "masking", site.directory / "backup")
        first, _ = total(plan, await collect(sites, 1, 0, "abcd"))
        for site in sites[:3]:
            await site.stop()
            shutil.rmtree(gate_folder(site.directory) / "masking")
            if loss == "restored":
                shutil.copytree(site.directory / "backup", gate_folder(site.directory) / "masking")
            site.start()
        await settle()
        said = [await site.tell(Announcement(plan.run_name, plan.canonical)) for site in sites[:3]]
        if not all(said):
            assert said == [[], [], []]  # no refusal is sent, so the run does not end for this
            assert all_refuse(sites[:3], Reason.RECORD_OLDER, chunks=2)
            return False
        await agree(sites[:3], key_session=2)
        second, _ = total(plan, await collect(sites[:3], 1, 0, "abc"))
        return found(first - second, sites[3].update(1))

    return played(scene, weakened, lambda: without(Reason.RECORD_OLDER, *OF_SETS))


def one_forgetful_site(weakened: bool, victim: str) -> bool:
    """Restore one computer completely, including its audit log, and combine its sums with the others'.

    One computer that was restored completely cannot detect this. But every set has an honest site that remembers.
    """
    plan = masked_plan("abcd")

    async def scene(folder: Path) -> bool:
        sites = sites_of(plan, folder)
        forgetful = next(site for site in sites if site.name == victim)
        await enter(sites)
        shutil.copytree(forgetful.directory, folder / "backup")
        await agree(sites)
        first, _ = total(plan, await collect(sites, 0, 0, "abcd"))
        await forgetful.stop()
        shutil.rmtree(forgetful.directory)
        shutil.copytree(folder / "backup", forgetful.directory)
        forgetful.start()
        await enter([forgetful])
        gone = sites[3] if victim != "d" else sites[0]
        left = [site for site in sites if site is not gone]
        await agree(left, key_session=2)
        again = await collect(left, 0, 1, [site.name for site in left])
        if not all(again):
            assert [bool(upload) for upload in again] == [site is forgetful for site in left]
            assert all_refuse([site for site in left if site is not forgetful], Reason.OTHER_SET, chunks=1)
            assert not any(found(total(plan, [upload])[0], forgetful.update()) for upload in again if upload)
            return False
        second, _ = total(plan, again)
        return found(first - second, gone.update())

    return played(scene, weakened, without_a_memory)


def another_name_for_the_run(weakened: bool) -> bool:
    """Announce the plan under another run's name, which would have another ledger, and repeat the first step."""
    plan = masked_plan("abcd")

    async def scene(folder: Path) -> bool:
        sites = sites_of(plan, folder)
        await enter(sites)
        await agree(sites)
        first, _ = total(plan, await collect(sites, 0, 0, "abcd"))
        for site in sites[:3]:
            await site.tell(Announcement("another-name", plan.canonical))
        if any(site.error is not None for site in sites[:3]):
            for site in sites[:3]:
                reasons = [entry["reason"] for entry in site.records("coordinator_refused")]
                assert reasons == ["a run that is not the one of its plan"]
                assert len(site.chunks) == 1
            return False
        await agree(sites[:3])
        second, is_consistent = total(plan, await collect(sites[:3], 0, 0, "abc"))
        return is_consistent and found(first - second, sites[3].update())

    return played(scene, weakened, with_any_run_name)


def run_again_on_another_set(weakened: bool) -> bool:
    """Begin the same run again for another set, after each agent was restarted."""
    plan = masked_plan("abcde")

    async def scene(folder: Path) -> bool:
        sites = sites_of(plan, folder)
        await enter(sites)
        await agree(sites)
        first, _ = total(plan, await collect(sites, 0, 0, "abcde"))
        await restart(sites[:4])
        await agree(sites[:4])
        again = await collect(sites[:4], 0, 0, "abcd")
        if not all(again):
            assert again == [[]] * 4
            assert all_refuse(sites[:4], Reason.NOT_INCREASING, chunks=1)
            return False
        second, _ = total(plan, again)
        return found(first - second, sites[4].update())

    return played(scene, weakened, without_a_memory)


def two_time_pad(weakened: bool) -> bool:
    """Have two vectors masked under one context: their difference is the whole update of the victim's step."""
    plan = masked_plan("abc")
    manifest = manifest_of(plan)

    async def scene(folder: Path) -> bool:
        sites = sites_of(plan, folder)
        await enter(sites)
        await agree(sites)
        bind = Bind(0, 0, plan.site_names, 0)
        zeros = np.zeros(manifest.parameters, np.float32)
        await sites[0].tell(*offer(zeros, 0))
        gate = gate_of(sites[0])
        here = position(plan.run_name, Offer(0, 0, parameters_digest(zeros)))
        exchange = Exchanges(plan, manifest).of(0, Stage.TRAINING, b"")
        trained = gate.build(here, exchange, update_of("a", 0, 0, zeros).data.cast("B"), rows=0, resample=0)
        retrained = gate.build(here, exchange, zeros.data.cast("B"), rows=0, resample=0)
        first = list(gate.release(trained, bind))
        try:
            second = list(gate.release(retrained, bind))
        except MaskingRefused as refusal:
            reason = refusal.reason
        else:
            return found(updates(plan, first) - updates(plan, second), sites[0].update())
        assert reason is Reason.OTHER_VECTOR
        assert len(sites[0].records("contribution_released")) == 1
        masking_of(sites[0]).forget()
        with pytest.raises(MaskingRefused):
            gate.release(trained, bind)  # destroyed keys cannot be restored
        return False

    return played(scene, weakened, lambda: without(Reason.OTHER_VECTOR))


def gate_of(site: Site) -> Gate:
    """Return the gate of a running agent, to open it without the agent's consent."""
    rounds = site.gate._rounds
    assert rounds is not None
    return rounds._gate


def updates(plan: Plan, upload: Sequence[Chunk]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return the 32-bit integers of one site's upload as it stands."""
    manifest = manifest_of(plan)
    layout = Layout(manifest.parameters, len(manifest.scalars))
    return np.concatenate([layout.updates(chunk.body, chunk.index) for chunk in upload])


ATTACKS = (
    *(
        Attack(
            name=f"ledger-{loss}",
            tries=f"the ledger is {loss} at three sites, and a step is repeated without the fourth",
            without="the comparison of the ledger with the audit log",
            run=partial(ledger_from_a_backup, loss=loss),
        )
        for loss in ("restored", "deleted")
    ),
    *(
        Attack(
            name=f"machine-{victim}-restored-whole",
            tries=f"machine {victim} is restored whole, audit log and all, and played off against the others",
            without="the memory of what was masked",
            run=partial(one_forgetful_site, victim=victim),
        )
        for victim in "ad"
    ),
    Attack(
        name="run-under-another-name",
        tries="the coordinator announces a plan again under another run's name",
        without="the check that a run's name holds its plan's digest",
        run=another_name_for_the_run,
    ),
    Attack(
        name="run-again-on-another-set",
        tries="the coordinator begins the same run again without one site, after a restart of all others",
        without="the memory of what was masked",
        run=run_again_on_another_set,
    ),
    Attack(
        name="two-time-pad",
        tries="a gate is asked to mask a second vector with the masks of the first",
        without="the digest of the frozen vector",
        run=two_time_pad,
    ),
)
