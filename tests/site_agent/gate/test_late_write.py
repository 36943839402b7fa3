"""A write that fails after its stream has ended, as in gRPC, does not end the next stream."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from host.audit_log import AuditLog
from protos.errors import UnavailableError
from protos.plan.manifest import manifest_of
from protos.wire.messages import Bind, Chunk
from site_agent.gate.consent import Consent
from site_agent.gate.site_rounds import Rounds, Surroundings
from tests.rehearsal.gates import NOON, nothing, policy_with, spawned
from tests.rehearsal.study import made_up_identities, plan_with

NAMES = ("a", "b", "c")
PLAN = plan_with(made_up_identities(NAMES))


@pytest.mark.parametrize("has_ended", [True, False])
def test_the_write_of_an_ended_stream_fails_in_silence(tmp_path: Path, *, has_ended: bool) -> None:
    """Whose stream is still there ends it; whose stream has ended says nothing more."""

    async def scene() -> None:
        failing = asyncio.Event()

        async def fails(*_: object, **__: object) -> None:
            await failing.wait()
            raise UnavailableError(what="It broke.", consequence="Nothing is lost.", remedy="Wait.")

        rounds = Rounds(
            plan=PLAN, manifest=manifest_of(PLAN), site=NAMES[0], policy=policy_with(),
            consent=Consent(tmp_path, PLAN, approvers=1, now=lambda: NOON), audit=audit, masking=None,
            around=Surroundings(send=fails, ask=nothing, spawn=spawned, deliver=nothing), saved=(),
        )  # fmt: skip
        bind, contribution = Bind(0, 0, NAMES, 0), SimpleNamespace(buffer=b"")
        released = SimpleNamespace(require_open=nothing, release=lambda *_: [Chunk(0, 0, 0, b"")])
        rounds._gate = released  # type: ignore[assignment]
        rounds._upload = upload = spawned(rounds._send_chunks(contribution, bind, b""), "")  # type: ignore[arg-type]
        await asyncio.sleep(0)
        if has_ended:
            rounds.stream_ended()
        failing.set()
        if has_ended:
            with pytest.raises(asyncio.CancelledError):
                await upload
        else:
            with pytest.raises(UnavailableError):
                await upload

    audit = AuditLog(tmp_path / "audit.log", site=NAMES[0], now=lambda: NOON)
    asyncio.run(scene())
    audit.close()
