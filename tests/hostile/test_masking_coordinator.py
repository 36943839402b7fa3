"""Wrong chunks, sites that mask wrongly, and steps that come again after a restart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from protos.wire.messages import Chunk, SiteMessage
from tests.federation import Federation, masked_plan
from tests.hostile.masking_coordinator import agree, agreed, collect, found, restart, total
from tests.hostile.wrong_chunks import THREE_CHUNKS, Meddle, flipped, swapped, undisturbed, wrong_masks
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import offer

MEDDLING: dict[str, tuple[Callable[[], Meddle], str]] = {
    "duplicated": (lambda: lambda chunk: [chunk, chunk], "a chunk out of order"),
    "duplicated with other bytes": (lambda: lambda chunk: [chunk, flipped(chunk)], "a chunk out of order"),
    "reordered": (swapped, "a chunk out of order"),
    "left out": (lambda: lambda chunk: [] if chunk.index == 1 else [chunk], "a chunk out of order"),
    "truncated": (lambda: lambda chunk: [replace(chunk, body=chunk.body[:-4])], "a chunk of the wrong size"),
    "lengthened": (
        lambda: lambda chunk: [replace(chunk, body=bytes(chunk.body) + bytes(4))],
        "a chunk of the wrong size",
    ),
    "beyond the last": (
        lambda: lambda chunk: [replace(chunk, index=3)] if chunk.index == 2 else [chunk],
        "a chunk out of order",
    ),
}


@pytest.mark.parametrize("kind", MEDDLING)
async def test_a_chunk_that_is_not_the_next_one_ends_its_stream_and_counts_for_nothing(
    tmp_path: Path, kind: str
) -> None:
    """If an attacker changes b's chunks once, b's stream ends. After a restart b completes exactly the same sum."""
    plan = masked_plan("abc", rounds=1, parameters=THREE_CHUNKS)
    make, reason = MEDDLING[kind]
    meddle = make()

    network = Federation.of_all(tmp_path, plan)

    def once(site: str, message: SiteMessage) -> list[SiteMessage]:
        if site == "b" and isinstance(message, Chunk) and not network.ended:
            return meddle(message)
        return [message]

    network.meddle = once
    await network.pass_time(60.0)
    assert network.ended == [("b", reason)]
    assert network.engine.outcomes == []
    await network.restart("b")
    await network.finish()
    await network.close()

    assert network.vector().tobytes() == undisturbed(plan).tobytes()


def test_a_replay_from_a_void_attempt_counts_for_nothing(tmp_path: Path) -> None:
    """Chunks of an attempt that became void, or of a round that is over, are dropped: never added to another."""
    plan = masked_plan("abc", rounds=3, parameters=THREE_CHUNKS)

    async def scene() -> None:
        network = Federation.of_all(tmp_path, plan)
        kept: list[Chunk] = []

        def replay(site: str, message: SiteMessage) -> list[SiteMessage]:
            if site != "b" or not isinstance(message, Chunk):
                return [message]
            old = [chunk for chunk in kept if (chunk.round, chunk.attempt) != (message.round, message.attempt)]
            kept.append(message)
            return [*old, message]

        network.meddle = replay
        for _ in range(10_000):
            if kept:
                break
            await network.pass_time(0.01)
        await network.restart("c")  # the attempt is void
        await network.finish()
        await network.close()

        attempts = {(chunk.round, chunk.attempt) for chunk in kept}
        assert len(attempts) >= 3
        assert network.ended == []
        assert [outcome.is_complete for outcome in network.engine.outcomes] == [True]

    play(scene())


@pytest.mark.parametrize("losses", [0, 1, 4])
async def test_three_corrupted_attempts_end_the_run_with_a_reason(tmp_path: Path, losses: int) -> None:
    """A site that always masks wrongly ends the run after three attempts, however many were lost before for
    other reasons, and nothing is applied."""
    plan = masked_plan("abc", rounds=1)

    network = Federation.of_all(tmp_path, plan)
    seen: set[int] = set()

    def meddle(site: str, message: SiteMessage) -> list[SiteMessage]:
        if site == "b" and isinstance(message, Chunk):
            seen.add(message.attempt)
            return [wrong_masks(message)]
        return [message]

    for _ in range(losses):
        network.meddle = lambda site, message: [] if isinstance(message, Chunk) else [message]
        await network.pass_time(20.0)
        await network.restart("c")
    network.meddle = meddle
    await network.finish(3 * 86_400)
    await network.close()

    assert [(outcome.is_complete, outcome.reason) for outcome in network.engine.outcomes] == [
        (False, "the contributions do not add up")
    ]
    assert sorted(seen) == list(range(losses, losses + 3))
    assert not network.vector().any()


async def test_a_step_that_is_repeated_after_a_restart_gives_no_new_sum(tmp_path: Path) -> None:
    """It is the same vector under new masks. A step to which the run cannot return is refused."""
    plan = masked_plan("abc")

    sites = await agreed(plan, tmp_path)
    await collect(sites, 0, 0, "abc")
    first, _ = total(plan, await collect(sites, 1, 0, "abc"))
    await restart(sites)
    await agree(sites)

    again, cancels = total(plan, await collect(sites, 1, 1, "abc"))
    for site in sites:
        announced, *chunks = offer(np.zeros(10, np.float32), 2, 0)
        await site.tell(replace(announced, oldest=2), *chunks)
    late = await collect(sites, 1, 2, "abc")

    assert cancels
    assert found(again, first)
    assert late == [[], [], []]
