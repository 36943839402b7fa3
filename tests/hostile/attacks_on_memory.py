"""A coordinator that relies on lost memory: restarts, backups, a second run, a repeated vector. The record of masking
is on the site's disk before a byte is sent, and the keys exist only in memory."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.numbers.chunk_layout import Layout
from protos.plan.exchange import Exchanges
from protos.plan.manifest import Manifest, manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Announcement, Bind, Chunk, Offer, Stage
from protos.wire.positions import parameters_digest, position
from site_agent.gate import masked_steps
from site_agent.gate.door import Gate
from site_agent.gate.itinerary import Itinerary
from tests.federation import DEAD, Site, Vector, masked_plan, settle, sites_of, update_of
from tests.hostile.attack import Attack, as_attack, patched
from tests.hostile.masking_coordinator import (
    agree,
    all_refuse,
    among,
    ask_for,
    collect,
    enter,
    found,
    masking_of,
    restart,
    total,
)
from tests.hostile.masking_weakened import with_any_run_name, without, without_a_memory
from tests.rehearsal.study import offer


@contextmanager
def without_triggers() -> Iterator[None]:
    """The tables of the gate's store can be changed, and a site does not read its audit log before it masks."""
    honest = Itinerary.__init__

    def begin(self: Itinerary, plan: Plan, manifest: Manifest, released: Any, **more: Any) -> None:
        honest(self, plan, manifest, (), **more)

    schema = re.sub(r"CREATE TRIGGER.*?END;", "", masked_steps._SCHEMA, flags=re.DOTALL)
    with patched(masked_steps, _SCHEMA=schema), patched(Itinerary, __init__=begin):
        yield


@among("abcd", without_triggers)
async def deleted_rows(plan: Plan, sites: list[Site], act: str) -> bool:
    """Delete or change what all sites masked in the newest step, and repeat the step with parameters of dead units."""
    for number in range(2):
        assert all(await collect(sites, number, 0, "abcd"))
    for site in sites:
        await site.stop()
        with closing(sqlite3.connect(site.directory / "audit.jsonl", isolation_level=None)) as store:
            try:
                store.execute(act)
            except sqlite3.IntegrityError:
                return False
        site.start()
    await settle()
    await enter(sites)
    await agree(sites, key_session=2)
    return _is_chosen(plan, [await ask_for(site, 1, 1, "abcd", _dead(plan)) for site in sites])


def _dead(plan: Plan) -> Vector:
    return np.full(manifest_of(plan).parameters, 2 * DEAD, np.float32)


def _is_chosen(plan: Plan, uploads: Sequence[Sequence[Chunk]]) -> bool:
    """Return whether every site answered the dead units, so that the coordinator chose what each sent."""
    sums, is_consistent = total(plan, uploads)
    return is_consistent and not sums.any()


@as_attack(without_a_memory)
async def one_forgetful_site(folder: Path, victim: str) -> bool:
    """Restore one computer completely, including its audit log, and repeat the step with parameters of dead units. One
    computer that was restored completely cannot detect this. But every sum has the other sites, which remember."""
    plan = masked_plan("abcd")
    sites = sites_of(plan, folder)
    forgetful = next(site for site in sites if site.name == victim)
    await enter(sites)
    await agree(sites)
    assert all(await collect(sites, 0, 0, "abcd"))
    shutil.copytree(forgetful.directory, folder / "backup")
    assert all(await collect(sites, 1, 0, "abcd"))
    await forgetful.stop()
    shutil.rmtree(forgetful.directory)
    shutil.copytree(folder / "backup", forgetful.directory)
    forgetful.start()
    await enter([forgetful])
    await agree(sites, key_session=2)
    again = [await ask_for(site, 1, 1, "abcd", _dead(plan)) for site in sites]
    if not all(again):
        assert [bool(upload) for upload in again] == [site is forgetful for site in sites]
        assert not any(total(plan, [upload])[1] for upload in again if upload)  # it stays masked
        return False
    return _is_chosen(plan, again)


@among("abcd", with_any_run_name)
async def another_name_for_the_run(plan: Plan, sites: list[Site]) -> bool:
    """Announce the plan under another run's name, which would have another ledger, and repeat the first step."""
    first, _ = total(plan, await collect(sites, 0, 0, "abcd"))
    for site in sites:
        await site.tell(Announcement("another-name", plan.canonical))
    if any(site.error is not None for site in sites):
        for site in sites:
            reasons = [entry["reason"] for entry in site.records("coordinator_refused")]
            assert reasons == ["a run that is not the one of its plan"]
            assert len(site.chunks) == 1
        return False
    await agree(sites)
    second, is_consistent = total(plan, await collect(sites, 0, 0, "abcd"))
    return is_consistent and found(first, second)  # the step was answered twice


@among("abcd", without_a_memory)
async def run_again(plan: Plan, sites: list[Site]) -> bool:
    """Begin the same run again, after each agent was restarted."""
    first, _ = total(plan, await collect(sites, 0, 0, "abcd"))
    await restart(sites)
    await agree(sites)
    again = await collect(sites, 0, 0, "abcd")
    if not all(again):
        assert again == [[]] * 4
        assert all_refuse(sites, Reason.NOT_INCREASING, chunks=1)
        return False
    second, _ = total(plan, again)
    return found(first, second)  # the step was answered twice


@among("abc", lambda: without(Reason.OTHER_VECTOR))
async def two_time_pad(plan: Plan, sites: list[Site]) -> bool:
    """Have two vectors masked under one context: their difference is the whole update of the victim's step."""
    manifest = manifest_of(plan)
    bind = Bind(0, 0, plan.site_names, 0)
    zeros = np.zeros(manifest.parameters, np.float32)
    await sites[0].tell(*offer(zeros, 0))
    gate = gate_of(sites[0])
    here = position(plan.run_name, Offer(0, 0, parameters_digest(zeros)))
    exchange = Exchanges(plan, manifest).of(0, Stage.TRAINING, b"")
    trained = gate.build(here, exchange, update_of("a", 0, zeros).data.cast("B"), rows=0)
    retrained = gate.build(here, exchange, zeros.data.cast("B"), rows=0)
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
            name=f"masked-steps-{kind}",
            tries=f"what was masked is {kind} in the stores of all sites, and a step is repeated with dead units",
            without="the triggers that refuse changes",
            run=partial(deleted_rows, act=act),
        )
        for kind, act in (
            ("deleted", "DELETE FROM masked WHERE step = 1"),
            ("moved", "UPDATE masked SET run = 'another' WHERE step = 1"),
        )
    ),
    *(
        Attack(
            name=f"machine-{victim}-restored-whole",
            tries=f"machine {victim} is restored whole, audit log and all, and the step is repeated with dead units",
            without="the memory of what was masked",
            run=partial(one_forgetful_site, victim=victim),
        )
        for victim in "ad"
    ),
    Attack("run-under-another-name", "the check that a run's name holds its plan's digest", another_name_for_the_run),
    Attack("run-again", "the memory of what was masked", run_again),
    Attack("two-time-pad", "the digest of the frozen vector", two_time_pad),
)
