"""The messages of a coordinator to masked sites, honest or not, and what it can compute from their answers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from protos.masking.mask_stream import Masker, encoding_name, round_context
from protos.masking.masking_refusals import Reason
from protos.numbers.chunk_layout import Layout
from protos.plan.exchange import Exchange
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import (
    Announcement,
    Bind,
    Chunk,
    Join,
    KeyAdvert,
    KeySessionAcknowledgement,
    KeySessionOpen,
    KeySessionRoster,
    KeySessionSeal,
    Offer,
)
from protos.wire.positions import parameters_digest, position
from tests.federation import Integers, Site, Vector, masked_plan, of_kind, settle, sites_of
from tests.hostile.attack import Weakened, as_attack
from tests.protos.masking.whole_vectors import mask_whole
from tests.rehearsal.study import offer

Scene: TypeAlias = Callable[..., Coroutine[Any, Any, bool]]  # of a plan, its sites and what else the attack is given


async def enter(sites: Sequence[Site]) -> None:
    """All sites join the run of their plan."""
    await settle()
    for site in sites:
        (join,) = of_kind(await site.tell(Announcement(site.plan.run_name, site.plan.canonical)), Join)
        assert join.plan_digest == site.plan.digest


async def agree(sites: Sequence[Site], key_session: int = 1) -> None:
    """An honest agreement on keys among these sites, in the order of their names."""
    names = tuple(site.name for site in sites)
    adverts = [of_kind(await site.tell(KeySessionOpen(key_session, names)), KeyAdvert)[0] for site in sites]
    roster = KeySessionRoster(key_session, tuple(adverts))
    acknowledgements = [of_kind(await site.tell(roster), KeySessionAcknowledgement)[0] for site in sites]
    for site in sites:
        await site.tell(KeySessionSeal(key_session, tuple(acknowledgements)))


async def agreed(plan: Plan, folder: Path) -> list[Site]:
    """A running gate for every site of the plan, in a run, with masking keys."""
    sites = sites_of(plan, folder)
    await enter(sites)
    await agree(sites)
    return sites


def among(names: str, weakened: Weakened) -> Callable[[Scene], Callable[..., bool]]:
    """Make an attack of a scene among these sites, once they have masking keys in a run."""

    def made(scene: Scene) -> Callable[..., bool]:
        @as_attack(weakened)
        @wraps(scene)
        async def begun(folder: Path, **more: Any) -> bool:
            plan = masked_plan(names)
            return await scene(plan, await agreed(plan, folder), **more)

        return begun

    return made


async def ask_for(
    site: Site, number: int, attempt: int, contributors: Iterable[str | Site], parameters: Vector | None = None
) -> list[Chunk]:
    """Offer a step, from the plan's first parameters unless others are named, and bind a set; what the site sends."""
    vector = manifest_of(site.plan).initial_parameters(site.plan.seed) if parameters is None else parameters
    names = tuple(sorted(entry if isinstance(entry, str) else entry.name for entry in contributors))
    await site.tell(*offer(vector, number, attempt))
    if site.error is not None:
        return []
    return of_kind(await site.tell(Bind(number, attempt, names, 0)), Chunk)


def total(plan: Plan, uploads: Iterable[Sequence[Chunk]], exchange: Exchange | None = None) -> tuple[Integers, bool]:
    """What a coordinator gets from these uploads: the sum of the updates, and whether all masks cancelled. Without an
    `exchange`, everything of the manifest is sent."""
    manifest = manifest_of(plan)
    layout = exchange.layout if exchange else Layout(manifest.parameters, len(manifest.scalars))
    updates = np.zeros(layout.parameters, np.int32)
    checks = np.zeros(layout.chunks, np.int64)
    count = 0
    for upload in uploads:
        count += 1
        assert [chunk.index for chunk in upload] == list(range(layout.chunks))
        for chunk in upload:
            updates[layout.updates_slice(chunk.index)] += layout.updates(chunk.body, chunk.index)
            checks[chunk.index : chunk.index + 1] += layout.words(chunk.body, chunk.index)[:1]  # wraps
    return updates, bool((checks == count).all())


def strip(
    plan: Plan, victim: str, names: tuple[str, ...], keys: Mapping[str, bytes], seen: bytes, upload: list[Chunk]
) -> Integers:
    """Take the victim's masks off its upload, for one who holds the keys of all its pairs.

    Args:
        keys: peer -> key of its pair with the victim.
        seen: T as the victim saw it.
    """
    manifest = manifest_of(plan)
    layout = Layout(manifest.parameters, len(manifest.scalars))
    zeros = np.zeros(manifest.parameters, np.float32)
    context = round_context(
        seen,
        position(plan.run_name, Offer(0, 0, parameters_digest(zeros))),
        0,
        names,
        manifest.digest,
        layout.total_bytes,
        encoding_name(plan.masking.clipping_range, len(plan.sites), plan.bits),
    )
    masks = bytearray(layout.total_bytes)
    mask_whole(Masker(own=victim, contributors=names, pair_keys=keys, context=context, layout=layout), layout, masks)
    updates = np.empty(manifest.parameters, np.int32)
    for chunk in upload:
        updates[layout.updates_slice(chunk.index)] = layout.updates(chunk.body, chunk.index) - layout.updates(
            layout.body(masks, chunk.index), chunk.index
        )
    return updates


def found(recovered: Integers, secret: Integers) -> bool:
    """Whether a coordinator with this result has learnt the secret."""
    return bool(np.array_equal(recovered, secret))


async def collect(sites: Iterable[Site], number: int, attempt: int, names: Iterable[str]) -> list[list[Chunk]]:
    """Ask the sites of a set for one step; what each of them sends."""
    wanted = tuple(sorted(names))
    return [await ask_for(site, number, attempt, wanted) for site in sites if site.name in wanted]


async def restart(sites: Sequence[Site]) -> None:
    """All computers lose power and restart with their disks."""
    for site in sites:
        await site.stop()
        site.start()
    await enter(sites)


def all_refuse(sites: Iterable[Site], reason: Reason, chunks: int) -> bool:
    """Whether all stopped for this reason, recorded it, and sent nothing after their first `chunks`."""
    return all(
        site.error is not None
        and [entry.get("because") for entry in site.records("participation_ended")] == [str(reason)]
        and len(site.chunks) == chunks
        for site in sites
    )


def masking_of(site: Site) -> Any:
    """The secrets of a running agent."""
    rounds = site.gate._rounds
    assert rounds is not None
    return rounds._masking
