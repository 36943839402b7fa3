"""Misbehaviour ends a site's own stream and has no other effect."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from coordinator.network import service as service_module
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import PROTOCOL_VERSION, Bind, Chunk, CoordinatorReason, Farewell, Hello, Join
from tests.coordinator.greetings import HELLO, announced_to, assert_right_bits
from tests.rehearsal.federation import Caller, Office, Running, as_channel, calling, eventually, serving, take_part
from tests.rehearsal.study import BehavingSite, contribution, plan_with

Misbehaviour = Callable[[Caller, Plan], Awaitable[None]]


async def _up_to(caller: Caller, kind: type[object]) -> BehavingSite:
    site = BehavingSite("c")
    await caller.send(HELLO)
    while (message := await caller.receive()) is not None:
        if isinstance(message, kind):
            return site
        for answer in site.answer(message):
            await caller.send(answer)
    raise AssertionError(f"the stream ended before {kind.__name__}")


def _saying(*messages: Hello | Chunk | Join | bytes) -> Misbehaviour:
    async def misbehave(caller: Caller, _: Plan) -> None:
        for message in messages:
            await caller.send(message)

    return misbehave


def sending(*chunks: Callable[[list[bytes]], Chunk]) -> Misbehaviour:
    """Behave until bound, then send chunks made from the honest ones."""

    async def misbehave(caller: Caller, plan: Plan) -> None:
        await _up_to(caller, Bind)
        honest = contribution(plan, 6.0)
        for make in chunks:
            await caller.send(make(honest))

    return misbehave


async def _join_with_other_digests(caller: Caller, plan: Plan) -> None:
    await caller.send(HELLO)
    announced = await announced_to(caller)
    await caller.send(Join(announced.run, bytes(32), manifest_of(plan).digest, 0))


def garbage(seed: int) -> bytes:
    """A few random bytes that are no message."""
    return b"\xff" + random.Random(seed).randbytes(200)


HOSTILE: dict[str, tuple[Misbehaviour, CoordinatorReason]] = {
    "no hello": (_saying(Chunk(0, 0, 0, b"")), CoordinatorReason.PROTOCOL_VIOLATED),
    "an empty message": (_saying(b""), CoordinatorReason.PROTOCOL_VIOLATED),
    "a second hello": (_saying(HELLO, HELLO), CoordinatorReason.PROTOCOL_VIOLATED),
    "another protocol": (_saying(Hello(PROTOCOL_VERSION + 1, "x")), CoordinatorReason.NOT_ACCEPTED),
    "garbage first": (_saying(garbage(1)), CoordinatorReason.PROTOCOL_VIOLATED),
    "garbage later": (_saying(HELLO, garbage(2)), CoordinatorReason.PROTOCOL_VIOLATED),
    "garbage inside a known message": (_saying(HELLO, b"\x0a\x05" + garbage(3)), CoordinatorReason.PROTOCOL_VIOLATED),
    "a chunk before joining": (_saying(HELLO, Chunk(0, 0, 0, b"")), CoordinatorReason.PROTOCOL_VIOLATED),
    "another plan": (_join_with_other_digests, CoordinatorReason.NOT_ACCEPTED),
    "a chunk that skips one": (sending(lambda honest: Chunk(0, 0, 1, honest[1])), CoordinatorReason.PROTOCOL_VIOLATED),
    "a chunk twice": (
        sending(lambda honest: Chunk(0, 0, 0, honest[0]), lambda honest: Chunk(0, 0, 0, honest[0])),
        CoordinatorReason.PROTOCOL_VIOLATED,
    ),
}


async def _others_at_work(running: Running, office: Office) -> list[asyncio.Task[None]]:
    tasks = [
        asyncio.create_task(take_part(running.address, office.credentials(name), BehavingSite(name))) for name in "ab"
    ]
    await eventually(lambda: all(running.engine.status()["sites"][name]["joined"] for name in "ab"))
    return tasks


def _run_beside(scene: Callable[[Caller], Awaitable[None]], folder: Path, office: Office, plan: Plan) -> None:
    async def run() -> None:
        async with serving(office, plan, folder) as running:
            others = await _others_at_work(running, office)
            async with calling(running.address, as_channel(office.credentials("c"))) as caller:
                await scene(caller)
            await take_part(running.address, office.credentials("c"), BehavingSite("c"))
            await asyncio.gather(*others)

    asyncio.run(run())
    assert_right_bits(folder, plan)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_misbehaving_site_ends_its_own_stream_only(tmp_path: Path, office: Office, plan: Plan, name: str) -> None:
    """The stream ends with its reason, the others continue, and the run ends with the right bits."""
    misbehave, reason = HOSTILE[name]

    async def is_shown_out(caller: Caller) -> None:
        await misbehave(caller, plan)
        farewell = (await caller.rest())[-1]
        assert isinstance(farewell, Farewell)
        assert farewell.reason is reason

    _run_beside(is_shown_out, tmp_path, office, plan)


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_message_above_the_limit_ends_the_stream_before_it_is_read(
    tmp_path: Path, office: Office, plan: Plan, is_joined: bool
) -> None:
    """Three mebibytes are refused by their length; the run goes on and ends with the right bits."""

    async def is_cut_off(caller: Caller) -> None:
        if is_joined:
            await _up_to(caller, Bind)
        else:
            await caller.send(HELLO)
        await caller.send(bytes(3 << 20))
        await caller.rest()
        assert await caller.status() is grpc.StatusCode.RESOURCE_EXHAUSTED

    _run_beside(is_cut_off, tmp_path, office, plan)


def test_a_silent_caller_is_shown_out(
    tmp_path: Path, office: Office, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that opens a stream and says nothing loses it after the time for a greeting, with a reason."""
    usual_seconds = service_module.GREETING_SECONDS
    monkeypatch.setattr(service_module, "GREETING_SECONDS", 0.2)

    async def scene() -> None:
        async with (
            serving(office, plan, tmp_path) as running,
            calling(running.address, as_channel(office.credentials("c"))) as caller,
        ):
            began = time.monotonic()
            (farewell,) = await caller.rest()

            assert time.monotonic() - began < usual_seconds
            assert isinstance(farewell, Farewell)
            assert not farewell.reason.is_final  # a slow network is no misbehaviour

    asyncio.run(scene())


def test_a_caller_that_does_not_read_its_farewell_is_cut_off(
    tmp_path: Path, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that the peer neither reads nor closes ends all the same, and its place is free."""
    monkeypatch.setattr(service_module, "FAREWELL_SECONDS", 0.2)
    plan = plan_with(office.identities, parameters=4_000_000)  # more than the buffers of a connection hold

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            others = await _others_at_work(running, office)
            credentials = as_channel(office.credentials("c"))
            async with calling(running.address, credentials) as caller:
                await caller.send(HELLO)
                announced = await announced_to(caller)
                await caller.send(Join(announced.run, plan.digest, manifest_of(plan).digest, 0))
                await eventually(lambda: running.engine.status()["run"]["phase"] == "training")
                await caller.send(HELLO)  # a violation, whose answer is never read

                await eventually(lambda: len(running.service._peers) == 2)
                assert not running.engine.status()["sites"]["c"]["connected"]
            for task in others:
                task.cancel()

    asyncio.run(scene())
