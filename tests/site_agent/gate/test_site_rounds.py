"""Rounds at a site: the trainer's part of the result, the rules of private rounds, and one identity key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from host.audit_log import AuditLog
from pki.identity_key import identity_fingerprint, make_identity_key
from protos.errors import ConfigurationError
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Bind, Finish, MalformedMessage, Offer, Stage
from site_agent.gate.consent import Consent
from site_agent.gate.permission import GateRefusal
from site_agent.gate.privacy_ledger import PrivacyLedger
from site_agent.gate.site_rounds import Rounds, Surroundings
from site_agent.service import enrolling
from site_agent.trainer_socket import Agreed, Check, Conclude, Message, Prepared, Train, Trained
from tests.protos.privacy.private_plans import private_network_plan, private_plan
from tests.rehearsal.gates import NOON, nothing, policy_with, spawned
from tests.rehearsal.study import made_up_identities, plan_with

LAYERS = bytes(32)
AGREED = Agreed()


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditLog]:
    """An empty audit log of one site."""
    log = AuditLog(tmp_path / "audit.log", site="a", now=lambda: NOON)
    yield log
    log.close()


def _rounds_of(
    plan: Plan, site: str, state: Path, audit: AuditLog, asked: list[Conclude], answer: Message = AGREED
) -> Rounds:
    async def ask(question: Conclude, _: int) -> Message:
        asked.append(question)
        return answer

    masking = None if not plan.masking.required else object()  # is not come to
    return Rounds(
        plan=plan, manifest=manifest_of(plan), site=site, policy=policy_with(), audit=audit,
        consent=Consent(state, plan, approvers=1, now=lambda: NOON), masking=masking, saved=(),  # type: ignore[arg-type]
        around=Surroundings(send=nothing, ask=ask, spawn=spawned, deliver=nothing),  # type: ignore[arg-type]
    )  # fmt: skip


async def finish(rounds: Rounds) -> None:
    """Give the run a result whose numbers are all 1."""
    result = Finish(rounds.plan.rounds, LAYERS)
    await rounds._take_result(result, np.ones(rounds.manifest.parameters, np.float32))
    await asyncio.sleep(0)


def test_a_trainer_receives_the_total_of_its_private_layers_with_the_result(tmp_path: Path, audit: AuditLog) -> None:
    """The numbers of the federation come first. The noisy sums that the gate keeps for this site follow them."""
    plan = private_network_plan(rounds=4, hidden=(2,), method={"name": "fedper"}, outputs=None)
    ledger, manifest = PrivacyLedger(audit), manifest_of(plan)
    ledger.pay(plan, bytes(32), [0] * len(plan.private_training.names if plan.private_training else ()) + [7, 8, 9])

    asked: list[Conclude] = []

    async def scene() -> None:
        await finish(_rounds_of(plan, "ahus", tmp_path, audit, asked))

    asyncio.run(scene())

    received = np.ones(manifest.parameters, "<f4").tobytes()
    assert bytes(asked[0].payload) == received + np.array([7, 8, 9], "<i8").tobytes()


@pytest.mark.parametrize("plan", [private_network_plan(), private_plan()])
def test_a_private_round_has_all_sites_whatever_the_policy_allows(plan: Plan, tmp_path: Path, audit: AuditLog) -> None:
    """With fewer shares the sum would have too little noise."""
    asked: list[Conclude] = []
    stage = Stage.TRAINING if plan.private_training else Stage.STATISTICS
    everybody, fewer = plan.site_names, plan.site_names[:-1]

    async def scene(of: Bind) -> None:
        rounds = _rounds_of(plan, "ahus", tmp_path, audit, asked)
        rounds._offer, rounds._position = Offer(0, 1, bytes(32), stage), bytes(32)
        rounds._exchange = Exchanges(plan, rounds.manifest).of(0, stage, b"")
        rounds._accept_bind(of)

    asyncio.run(scene(Bind(0, 1, everybody, 0)))
    with pytest.raises(MalformedMessage, match="contributors"):
        asyncio.run(scene(Bind(0, 1, fewer, 0)))
    assert asked == []


@pytest.mark.parametrize(
    "answer", [Agreed(), Prepared("ab"), Trained(1, 0, b""), Trained(-1, 0, b""), Check(), Conclude(0, "", -1, b"")]
)
def test_an_answer_to_another_question_builds_nothing(tmp_path: Path, audit: AuditLog, answer: Message) -> None:
    """Whoever owns the trainer can only answer the round that the gate asks for."""
    plan = plan_with(made_up_identities())
    exchange = Exchanges(plan, manifest_of(plan)).of(0, Stage.TRAINING, b"")
    question = Train(0, int(Stage.TRAINING), "", -1, b"")

    with pytest.raises(GateRefusal):
        asyncio.run(_rounds_of(plan, "a", tmp_path, audit, [], answer)._train_and_build(question, exchange, bytes(32)))
    assert audit.head.count == 0


def test_whoever_asks_at_the_same_moment_gets_the_same_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both find no key, both make one, one of them wins: both have its fingerprint."""
    for number in range(20):
        folder, start = tmp_path / str(number), Barrier(2, timeout=10)

        def made(where: Path, start: Barrier = start) -> object:
            start.wait()
            return make_identity_key(where)

        monkeypatch.setattr(enrolling, "make_identity_key", made)
        with ThreadPoolExecutor(2) as threads:
            keys = list(threads.map(enrolling.site_identity_key, [folder, folder]))

        assert len({identity_fingerprint(key) for key in keys}) == 1


def test_a_key_that_cannot_be_made_is_still_an_error(tmp_path: Path) -> None:
    """A file where the folder should be is named."""
    (tmp_path / "gate").write_text("")

    with pytest.raises(ConfigurationError):
        enrolling.site_identity_key(tmp_path / "gate")
