"""A coordinator that sends many requests, and reads no answer: it costs little memory and delays no withdrawal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import pytest

from host.audit_log import AuditLog
from protos.errors import UnavailableError
from protos.plan.manifest import manifest_of
from protos.wire.codec import encode_coordinator_message
from protos.wire.messages import Announcement, Bind, Chunk, CoordinatorMessage, Done
from site_agent.approving import approve, withdraw
from site_agent.gate.agent_link import MOST_LATER, AgentLink
from site_agent.gate.agent_link import Stream as GateStream
from site_agent.gate.consent import Consent, ConsentEnded
from site_agent.gate.site_rounds import Built, Rounds, Surroundings
from site_agent.gate_socket import CREDITS_AT_ONCE, WINDOW, Down, Sent, Up
from site_agent.trainer_socket import Train, Trained
from tests.federation import Site, clear_plan, masked_plan, settle
from tests.hostile.masking_coordinator import agreed
from tests.hostile.test_lying_coordinator import ALL, zeros
from tests.rehearsal.gates import NOON, policy_with, spawned
from tests.rehearsal.study import made_up_identities, offer, plan_with
from tests.scripted import announced, offered

PLAN = plan_with(made_up_identities(), parameters=10)
ATTEMPTS = 20


def test_only_one_chunk_waits_whatever_a_coordinator_requests(tmp_path: Path) -> None:
    """Each attempt stops the upload of the attempt before. The stopped upload holds no chunk."""
    waiting: list[Chunk] = []

    async def send(message: object, check: Callable[[], None] | None = None) -> None:
        if isinstance(message, Chunk):
            waiting.append(message)
            try:
                await asyncio.Event().wait()
            finally:
                waiting.remove(message)

    async def scene() -> None:
        rounds = rounds_with(tmp_path, audit, send)
        for attempt in range(ATTEMPTS):
            for message in offer(zeros(10), 0, attempt):
                await rounds.handle(message)
            await rounds.handle(Bind(0, attempt, ALL, 0))
            await asyncio.sleep(0.001)
            assert [chunk.attempt for chunk in waiting] == [attempt]
        rounds.stream_ended()
        await asyncio.sleep(0.001)
        assert waiting == []

    audit = AuditLog(tmp_path / "audit.log", site="a", now=lambda: NOON)
    asyncio.run(scene())
    audit.close()


def test_one_training_runs_and_one_waits_whatever_a_coordinator_requests(tmp_path: Path) -> None:
    """A newer request replaces the one that waits. Its result is the only one that the site still needs."""
    asked: list[Train] = []
    is_free = asyncio.Event()
    sent: list[object] = []

    async def send(message: object, check: Callable[[], None] | None = None) -> None:
        sent.append(message)

    async def scene() -> None:
        rounds = rounds_with(tmp_path, audit, send, asked, is_free)
        before = len(asyncio.all_tasks())
        for number in (0, 1) * ATTEMPTS:
            for message in offer(zeros(10, number), number, len(asked)):
                await rounds.handle(message)
        assert ([question.round for question in asked], len(asyncio.all_tasks()) - before) == ([0], 1)
        assert sent == []
        is_free.set()
        await asyncio.sleep(0.01)
        assert [question.round for question in asked] == [0, 1]
        assert sent == []

    audit = AuditLog(tmp_path / "audit.log", site="a", now=lambda: NOON)
    asyncio.run(scene())
    audit.close()


def rounds_with(
    state: Path,
    audit: AuditLog,
    send: Callable[..., object],
    asked: list[Train] | None = None,
    is_free: asyncio.Event | None = None,
) -> Rounds:
    """A run at site a. `send` sends to the coordinator. The trainer answers at once, or as soon as it `is_free`."""

    async def ask(question: Train, largest_payload: int) -> Trained:
        if asked is not None and is_free is not None:
            asked.append(question)
            await is_free.wait()
        return Trained(question.round, 0, bytes(largest_payload))

    async def deliver(built: Built) -> None:
        await rounds.built(built.contribution)

    approve(state, PLAN, by="A. Jones", at=NOON)
    rounds = Rounds(
        plan=PLAN, manifest=manifest_of(PLAN), site="a", policy=policy_with(), audit=audit,
        consent=Consent(state, PLAN, approvers=1, now=lambda: NOON), masking=None, saved=(),
        around=Surroundings(send=send, ask=ask, spawn=spawned, deliver=deliver),  # type: ignore[arg-type]
    )  # fmt: skip
    return rounds


KINDS = ("attempts", "returns", "announcements")


@pytest.mark.parametrize("kind", KINDS)
async def test_repeated_rounds_fill_the_log_slowly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """A coordinator repeats what it may repeat, as fast as it can. The site then reads slowly, and refuses nothing."""
    most, pushed, seconds = 50, 400, 100
    monkeypatch.setattr("site_agent.gate.waiting.MOST_REPETITIONS", float(most))
    plan, other = masked_plan("abc"), masked_plan("abc", rounds=2)

    sites = await agreed(plan, tmp_path)
    site, before = sites[0], asyncio.get_running_loop().time()
    approve(site.directory, other, by="a test", at=datetime.now(UTC))
    first, second = (offer(zeros(10, number), number) for number in (0, 1))
    records = {"attempts": "contribution_released", "returns": "run_went_back", "announcements": "run_joined"}[kind]
    had = len(site.records(records))
    for attempt in range(pushed):
        requests = {
            "attempts": (*offer(zeros(10), 0, attempt), Bind(0, attempt, ALL, 0)),
            "returns": (*first, *second),
            "announcements": [Announcement(each.run_name, each.canonical) for each in (other, plan)],
        }[kind]
        await site.tell(*requests)
    await asyncio.sleep(seconds - (asyncio.get_running_loop().time() - before))
    # The gate had already received some messages when the limit was reached.
    found = len(site.records(records)) - had
    assert found <= most + seconds + 20
    assert found >= (most + seconds) / 2 - 20
    assert site.error is None
    for each in sites:
        await each.stop()


class WatchedLink:
    """The gate's connection to its agent. It keeps what the gate posts."""

    def __init__(self) -> None:
        self.posted: list[Up] = []

    def begin(self, _: object) -> int:
        """The first stream."""
        return 1

    def end(self, _: object) -> None:
        """It is over."""

    def post(self, order: object, body: bytes | memoryview = b"") -> None:
        """Keep a message, without the orders to open and to shut."""
        if isinstance(order, Up):
            self.posted.append(order)


def test_the_gate_never_waits_to_send_a_short_message(tmp_path: Path) -> None:
    """Its loop must stay free. Short messages wait in their order, before the chunks, and only a few of them."""
    link = WatchedLink()

    async def scene() -> None:
        async with GateStream(cast(AgentLink, link), lambda: "") as stream:
            chunks = [spawned(stream.send(Chunk(0, 0, index, b"body")), "") for index in range(WINDOW + 1)]
            await asyncio.sleep(0)
            for number in range(MOST_LATER):
                async with asyncio.timeout(0):
                    await stream.send(Done(f"run-{number}"))
            with pytest.raises(UnavailableError):
                await stream.send(Done("run"))
            assert len(link.posted) == WINDOW
            for _ in range(MOST_LATER // CREDITS_AT_ONCE):
                stream.take(Sent(1, CREDITS_AT_ONCE))
            assert len({bytes(up.payload) for up in link.posted[WINDOW:]}) == MOST_LATER
            assert not chunks[-1].done()
            stream.take(Sent(1, CREDITS_AT_ONCE))
            await chunks[-1]
            assert len(link.posted) == WINDOW + MOST_LATER + 1

    asyncio.run(scene())


async def test_a_withdrawal_takes_effect_although_the_coordinator_reads_nothing(tmp_path: Path) -> None:
    """The gate still has chunks and an answer to send when a person withdraws. It ends within seconds."""
    plan, link = clear_plan(parameters=WINDOW * 400_000), WatchedLink()  # more chunks than the window
    streams: list[GateStream] = []

    def connect() -> GateStream:
        streams.append(GateStream(cast(AgentLink, link), lambda: ""))
        return streams[-1]

    site = Site("a", plan, tmp_path, connect=connect, secure_aggregation="not-required")
    await settle()
    (stream,) = streams

    async def say(*messages: CoordinatorMessage) -> None:
        for message in messages:
            stream.take(Down(stream.number, encode_coordinator_message(message)))
            await settle()

    await say(announced(plan), *offered(plan), Bind(0, 0, ALL, 0), *offered(plan, 0, 1))
    assert len(link.posted) == WINDOW
    withdraw(tmp_path, plan, by="A. Jones", at=datetime.now(UTC))
    await asyncio.sleep(15)

    assert isinstance(site.error, ConsentEnded)
    (ended,) = site.records("participation_ended")
    assert ended["reason"] == "withdrawn"
    await site.stop()
