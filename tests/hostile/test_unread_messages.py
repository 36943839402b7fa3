"""A coordinator that sends requests and reads no answer costs a site little memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from audit.own_log import AuditLog
from protos.plan.manifest import manifest_of
from protos.wire.messages import Bind, Chunk
from site_agent.approving import approve
from site_agent.gate.consent import Consent
from site_agent.gate.site_rounds import Built, Rounds, Surroundings
from site_agent.trainer_socket import Train, Trained
from tests.hostile.lies import ALL, zeros
from tests.rehearsal.gates import NOON, policy_with
from tests.rehearsal.study import made_up_identities, offer, plan_with
from tests.site_agent.gate.test_spent import spawned

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


def rounds_with(state: Path, audit: AuditLog, send: Callable[..., object]) -> Rounds:
    """A run at site a, whose trainer answers at once. `send` sends to the coordinator."""

    async def ask(question: Train, largest_payload: int) -> Trained:
        return Trained(question.round, 0, bytes(largest_payload))

    async def deliver(built: Built) -> None:
        await rounds.built(built.contribution)

    approve(state, PLAN, by="A. Jones", at=NOON)
    rounds = Rounds(
        run=PLAN.run_name, plan=PLAN, manifest=manifest_of(PLAN), site="a", policy=policy_with(), audit=audit,
        consent=Consent(state, PLAN, approvers=1, now=lambda: NOON), masking=None, saved=(), released=(),
        around=Surroundings(send=send, ask=ask, spawn=spawned, deliver=deliver),  # type: ignore[arg-type]
    )  # fmt: skip
    return rounds
