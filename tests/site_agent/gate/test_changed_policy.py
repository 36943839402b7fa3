"""A policy that changes, or a withdrawal, during a run: what is sent afterwards follows it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.audit_log import AuditLog
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Chunk, Ready, Refusal, SiteReason
from site_agent.gate import loop
from site_agent.gate.agent_link import Stream
from site_agent.gate.consent import Consent, ConsentEnded
from site_agent.gate.site_masking import SiteMasking
from site_agent.gate.site_rounds import Rounds, Surroundings
from site_agent.gate_socket import WINDOW, Sent
from site_agent.hospital import Policy
from tests.rehearsal.gates import NOON, nothing, policy_with, spawned
from tests.rehearsal.study import made_up_identities, plan_with

CHANGES = {"smallest_sites": 4, "smallest_training_rows": 30}


def rounds_under(plan: Plan, policy: Policy, folder: Path, audit: AuditLog) -> Rounds:
    """A masked run under a policy."""
    manifest = manifest_of(plan)
    masking = SiteMasking(
        run=plan.run_name, plan=plan, manifest=manifest, site="a", identity_key=Ed25519PrivateKey.generate(),
        store=audit.store, policy=policy,
    )  # fmt: skip
    return Rounds(
        run=plan.run_name, plan=plan, manifest=manifest, site="a", policy=policy, audit=audit, masking=masking,
        consent=Consent(folder, plan, approvers=1, now=lambda: NOON), saved=(),
        around=Surroundings(send=nothing, ask=nothing, spawn=spawned, deliver=nothing),  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("key", CHANGES)
def test_masks_and_building_follow_a_changed_policy(tmp_path: Path, key: str) -> None:
    """A run whose policy changes has the limits of a run that begins under the new policy."""
    plan = plan_with(made_up_identities(), changes={"masking": {"required": True}})
    changed = policy_with(secure_aggregation="required").model_copy(update={key: CHANGES[key]})
    log = AuditLog(tmp_path / "audit.log", site="a", now=lambda: NOON)
    rounds = rounds_under(plan, policy_with(secure_aggregation="required"), tmp_path, log)
    new = rounds_under(plan, changed, tmp_path, log)
    assert limits_of(rounds) != limits_of(new)

    rounds.follow(changed)

    assert limits_of(rounds) == limits_of(new)
    log.close()


def limits_of(rounds: Rounds) -> tuple[object, ...]:
    """Everything that a policy limits while a contribution is built and masked."""
    masking, gate = rounds._masking, rounds._gate
    assert masking is not None
    assert gate is not None
    return masking._quorum, masking._why_not, gate._builder.smallest_rows


def test_a_chunk_that_waited_is_checked_again_before_it_is_sent() -> None:
    """The coordinator does not read, a person withdraws, and then the coordinator reads: the chunk does not leave."""
    posted: list[object] = []
    link = SimpleNamespace(post=lambda *message: posted.append(message), begin=None, end=None)
    stream = Stream(link, lambda: "", nothing)  # type: ignore[arg-type]
    withdrawn: list[str] = []

    def check() -> None:
        if withdrawn:
            raise ConsentEnded("heart", withdrawn[0], "run")

    async def scene() -> None:
        for _ in range(WINDOW):
            await stream.send(Ready(0, 0))
        waiting = asyncio.create_task(stream.send(Chunk(0, 0, 0, b"x" * 8), check=check))
        await asyncio.sleep(0)
        withdrawn.append("A. Jones withdrew")
        stream.take(Sent(stream.number, 1))
        with pytest.raises(ConsentEnded):
            await waiting
        assert len(posted) == WINDOW
        await asyncio.wait_for(stream.send(Ready(0, 0)), 5)  # its place is free again

    asyncio.run(scene())

    assert len(posted) == WINDOW + 1


def test_a_refusal_that_nobody_reads_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that does not read cannot prevent that the site ends the stream."""
    monkeypatch.setattr(loop, "PARTING_SECONDS", 0.01)

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    gate = SimpleNamespace(_send=never, _connection=None)
    refusal = Refusal("heart-1", SiteReason.WITHDRAWN)

    asyncio.run(asyncio.wait_for(loop.SiteGate._tell(gate, refusal), 30))  # type: ignore[arg-type]
