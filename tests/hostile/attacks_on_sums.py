"""A hostile site, or a relay on its line, against the coordinator's sum. The coordinator cannot read a masked vector.
The attacker wants a sum that is not the sum of the sites' contributions to become the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordinator.rounds import engine
from coordinator.rounds.aggregation import RunningSum
from coordinator.rounds.run import Run
from protos.plan.plan import Plan
from protos.wire.messages import Chunk, MalformedMessage, SiteMessage
from tests.federation import Federation, masked_plan
from tests.hostile.attack import Attack, patched, played
from tests.hostile.wrong_chunks import THREE_CHUNKS, Meddle, flipped, shifted, undisturbed, wrong_masks


def plan_of(rounds: int = 1) -> Plan:
    """A masked plan whose vector has three chunks."""
    return masked_plan("abc", rounds=rounds, parameters=THREE_CHUNKS)


async def finished(folder: Path, plan: Plan, meddle: Callable[[str, SiteMessage], list[SiteMessage]]) -> Federation:
    """A run to its end while an attacker changes b's line. A disconnected site is started again once."""
    network = Federation.of_all(folder, plan)
    network.meddle = meddle
    await network.pass_time(120.0)
    if network.ended:
        await network.restart("b")
    await network.finish()
    await network.close()
    return network


def _is_spoiled(network: Federation) -> bool:
    return network.vector().tobytes() != undisturbed(network.plan).tobytes()


@contextmanager
def without_check_words() -> Iterator[None]:
    """The coordinator does not check whether all masks cancelled, and takes any number that comes of it."""
    consistent = property(lambda self: True)
    with patched(RunningSum, is_consistent=consistent), patched(Run, _is_in_range=lambda self, sums: True):
        yield


def wrong_upload(weakened: bool, wrong: Callable[[Chunk], Chunk]) -> bool:
    """Spoil b's second chunk in the first attempt."""

    def meddle(site: str, message: SiteMessage) -> list[SiteMessage]:
        is_target = site == "b" and isinstance(message, Chunk) and message.index == 1 and message.attempt == 0
        return [wrong(message) if is_target and isinstance(message, Chunk) else message]

    async def scene(folder: Path) -> bool:
        network = await finished(folder, plan_of(), meddle)
        attempts = {chunk.attempt for site in network.sites.values() for chunk in site.chunks}
        assert len(attempts) == (1 if _is_spoiled(network) else 2)  # the void attempt was made again with new keys
        return _is_spoiled(network)

    return played(scene, weakened, without_check_words)


@contextmanager
def without_order() -> Iterator[None]:
    """The coordinator adds each chunk that has a size that fits, whenever it comes; nobody checks the sum."""
    honest = RunningSum.add

    def add(self: RunningSum, site: str, index: int, body: bytes | memoryview) -> bool:
        if index >= self._layout.chunks or len(body) != self._layout.chunk_bytes(index):
            raise MalformedMessage("a chunk of the wrong size")
        before = self._arrived.get(site, 0)
        self._arrived[site] = index
        is_last = honest(self, site, index, body)
        self._arrived[site] = max(before, index + 1)
        return is_last

    with without_check_words(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunningSum, "add", add)
        yield


def chunk_out_of_order(weakened: bool, make: Callable[[], Meddle]) -> bool:
    """Repeat, replace, exchange or leave out one of b's chunks, once."""
    inner, done = make(), []

    def meddle(site: str, message: SiteMessage) -> list[SiteMessage]:
        if site != "b" or not isinstance(message, Chunk) or (message.attempt, message.round) != (0, 0) or len(done) > 2:
            return [message]
        done.append(message)
        return inner(message)

    async def scene(folder: Path) -> bool:
        network = await finished(folder, plan_of(), meddle)
        if not _is_spoiled(network):
            assert network.ended == [("b", "a chunk out of order")]
        return _is_spoiled(network)

    return played(scene, weakened, without_order)


MEDDLING: dict[str, tuple[str, Callable[[], Meddle]]] = {
    "repeated": ("repeats a chunk, so that it counts twice", lambda: lambda chunk: [chunk, chunk]),
    "replaced": ("sends a chunk again with other bytes", lambda: lambda chunk: [chunk, flipped(chunk)]),
}


def replayed_chunks(weakened: bool) -> bool:
    """Send the chunks of an earlier round once more in each later round."""
    kept: list[Chunk] = []

    def meddle(site: str, message: SiteMessage) -> list[SiteMessage]:
        if site != "b" or not isinstance(message, Chunk):
            return [message]
        old = [chunk for chunk in kept if chunk.round != message.round and chunk.index == message.index]
        kept.append(message)
        return [*old, message]

    @contextmanager
    def without_numbers() -> Iterator[None]:
        """The coordinator takes a chunk for the round that is under way, whatever round the chunk names."""
        honest = engine.hear_chunk

        def hear(run: Any, site: str, chunk: Chunk) -> Any:
            attempt = run.state.attempt
            return honest(run, site, replace(chunk, round=attempt.round, attempt=attempt.number))

        with without_order(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine, "hear_chunk", hear)
            yield

    async def scene(folder: Path) -> bool:
        plan = plan_of(rounds=2)
        quiet = await finished(folder / "quiet", plan, lambda site, message: [message])
        network = await finished(folder / "meddled", plan, meddle)
        return network.vector().tobytes() != quiet.vector().tobytes()

    return played(scene, weakened, without_numbers)


ATTACKS = (
    *(
        Attack(
            name=f"sum-with-{name}",
            tries=f"a site's upload reaches the sum with {what}",
            without="the check words and the bounds of the sum",
            run=partial(wrong_upload, wrong=wrong),
        )
        for name, what, wrong in (
            ("wrong-masks", "masks that do not cancel", wrong_masks),
            ("a-shifted-vector", "its numbers one place further on", shifted),
        )
    ),
    *(
        Attack(
            name=f"chunk-{name}",
            tries=f"a site {what}",
            without="the order of chunks, the check words and the bounds of the sum",
            run=partial(chunk_out_of_order, make=make),
        )
        for name, (what, make) in MEDDLING.items()
    ),
    Attack(
        "chunks-of-an-earlier-round",
        "the round and attempt of a chunk, the order of chunks, the check words and the bounds of the sum",
        replayed_chunks,
    ),
)
