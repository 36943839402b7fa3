"""The budget of a private run of many rounds: paid at once before the first, and again for every repeated draw."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from host.audit_log import AuditLog
from protos.plan.exchange import Exchange, Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Bind, SiteReason, Stage
from site_agent.gate.door import Contribution, Gate
from site_agent.gate.permission import PolicyForbids, decide_plan
from site_agent.gate.privacy_ledger import PrivacyLedger, with_noise
from site_agent.hospital import Hospital, Policy
from tests.for_each import for_each
from tests.protos.privacy.private_plans import local_plan, private_network_plan, private_plan
from tests.rehearsal.gates import Unmasked, gate_for, policy_with

PLAN = private_network_plan(rounds=4)


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditLog]:
    """An empty audit log of one site."""
    log = AuditLog(tmp_path / "audit.log", site="ahus", now=lambda: datetime.now(UTC))
    yield log
    log.close()


def policy(largest: float) -> Policy:
    """Everything is allowed, up to an epsilon per study and year."""
    limits = {"largest_epsilon_per_study": largest, "largest_epsilon_per_year": largest, "delta": 1e-5}
    return policy_with(privacy=limits)


def released(gate: Gate, position: bytes, exchange: Exchange, payload: memoryview) -> Contribution:
    """The contribution that a gate makes of an answer, and releases."""
    contribution = gate.build(position, exchange, payload, rows=0)
    gate.release(contribution, Bind(0, 0, PLAN.site_names, 0))
    return contribution


def sent(number: int, audit: AuditLog, state: Path, *, plan: Plan = PLAN, largest: float = 1.0) -> Contribution:
    """What a gate that was just started makes of a trainer's zeros in a round, and releases."""
    stage = Stage.STATISTICS if plan.private_training is None else Stage.TRAINING
    exchange = Exchanges(plan, manifest_of(plan)).of(number, stage, b"")
    gate = gate_for(plan, audit, state, policy=policy(largest), site="ahus", masking=Unmasked())
    payload = memoryview(np.zeros(len(exchange.scalars), "<i8").tobytes())
    return released(gate, _position(number), exchange, payload)


def _position(number: int) -> bytes:
    return bytes([number + 1]) * 32


def spent(audit: AuditLog) -> list[float]:
    """The epsilon of every known payment."""
    return [payment.epsilon for payment in PrivacyLedger(audit).payments()]


def test_the_first_round_pays_for_all_and_the_last_one_needs_nothing_more(tmp_path: Path, audit: AuditLog) -> None:
    """A limit that the whole run just meets lets every round out, each by a gate that was restarted in between."""
    digests = set()
    for number in range(4):
        digests.add(sent(number, audit, tmp_path).digest)
        assert spent(audit) == [1.0]

    assert len(digests) == 4


@pytest.mark.parametrize("plan", [PLAN, private_plan()])
def test_a_gate_draws_its_noise_from_the_operating_system(
    plan: Plan, tmp_path: Path, audit: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has the plan and the program cannot compute it, and no number leaves without a draw."""
    drawn: list[tuple[int, int, object]] = []

    def draw(count: int, variance: int, random_bytes: object) -> np.ndarray:
        drawn.append((count, variance, random_bytes))
        return np.zeros(count, np.int64)

    monkeypatch.setattr("site_agent.gate.privacy_ledger.discrete_gaussian", draw)
    exchange = sent(0, audit, tmp_path, plan=plan).exchange

    assert drawn == [(len(exchange.scalars), plan.noise_variance, os.urandom)]
    assert exchange.updates == 0


def test_a_round_that_is_asked_for_again_sends_the_same_bytes(tmp_path: Path, audit: AuditLog) -> None:
    """Also rounds long past, after a restart, and in any order."""
    first = [sent(number, audit, tmp_path).digest for number in range(3)]

    again = [sent(number, audit, tmp_path).digest for number in (2, 0, 1)]

    assert again == [first[2], first[0], first[1]]
    assert spent(audit) == [1.0]


def test_a_draw_beyond_the_rounds_of_the_plan_pays_again(tmp_path: Path, audit: AuditLog) -> None:
    """A request at other parameters gets a fifth draw only at the price of a run, or none."""
    for number in range(4):
        sent(number, audit, tmp_path)

    with pytest.raises(PolicyForbids, match="and the policy allows 1"):
        sent(0, audit, tmp_path, plan=private_network_plan(rounds=4, version=9))
    exchange = Exchanges(PLAN, manifest_of(PLAN)).of(0, Stage.TRAINING, b"")
    gate = gate_for(PLAN, audit, tmp_path, policy=policy(9.0), site="ahus", masking=Unmasked())
    released(gate, bytes([99]) * 32, exchange, memoryview(np.zeros(len(exchange.scalars), "<i8").tobytes()))
    assert spent(audit) == [1.0, 1.0]


def test_local_noise_is_paid_for_by_rounds_and_the_first_answer_stays(tmp_path: Path, audit: AuditLog) -> None:
    """One payment is for as many rounds as the plan has, not for as many as it has steps. The gate adds no noise of its
    own. A trainer's second draw for a paid step is not sent."""
    plan = local_plan(rounds=2, steps=3)
    exchange = Exchanges(plan, manifest_of(plan)).of(0, Stage.TRAINING, b"")

    def made(place: int, filling: int, largest: float = 1.0) -> list[int]:
        gate = gate_for(plan, audit, tmp_path, policy=policy(largest), site="ahus", masking=Unmasked())
        payload = memoryview(np.full(len(exchange.scalars), filling, "<i8").tobytes())
        buffer = released(gate, _position(place), exchange, payload).buffer
        return np.frombuffer(buffer, "<i8")[1 : 1 + len(exchange.scalars)].tolist()

    assert set(made(0, 5)) == {5}
    assert set(made(0, 6)) == {5}
    assert set(made(1, 7)) == {7}
    assert spent(audit) == [1.0]
    with pytest.raises(PolicyForbids, match="and the policy allows 1"):
        made(2, 8)
    assert set(made(2, 8, largest=9.0)) == {8}
    assert spent(audit) == [1.0, 1.0]


def test_sums_of_private_layers_are_kept_once_and_never_leave(tmp_path: Path, audit: AuditLog) -> None:
    """What leaves is as long as the shared layers. A step is always made from the same total, also after a restart."""
    plan = private_network_plan(rounds=4, hidden=(2,), method={"name": "fedper"}, outputs=None)
    exchange = Exchanges(plan, manifest_of(plan)).of(0, Stage.TRAINING, b"")
    sent, own = len(exchange.scalars), exchange.own_numbers

    def made(place: int, filling: int) -> Contribution:
        gate = gate_for(plan, audit, tmp_path, policy=policy(1.0), site="ahus", masking=Unmasked())
        payload = memoryview(np.repeat([0, filling], [sent, own]).astype("<i8").tobytes())
        return released(gate, _position(place), exchange, payload)

    def total(place: int | None) -> list[int]:
        gate = gate_for(plan, audit, tmp_path, policy=policy(1.0), site="ahus", masking=Unmasked())
        return np.frombuffer(gate.own_sums(None if place is None else _position(place)), "<i8").tolist()

    before = total(0)
    first, second = made(0, 5), made(1, 7)

    assert (own, before) == (3, [0, 0, 0])
    assert len(np.frombuffer(first.buffer, "<i8")) == len(np.frombuffer(second.buffer, "<i8")) == 1 + sent
    assert made(0, 6).digest == first.digest  # a trainer that started again drew other noise
    assert (total(0), total(1), total(2), total(None)) == ([0] * 3, [5] * 3, [12] * 3, [12] * 3)
    assert spent(audit) == [1.0]
    assert made(3, 1 << 62).void is SiteReason.TRAINER_FAILED
    assert total(None) == [12] * 3


@pytest.mark.parametrize("largest", [0.9, 1.0])
def test_a_run_that_the_budget_does_not_reach_is_refused_before_its_first_round(
    largest: float, tmp_path: Path, audit: AuditLog
) -> None:
    """The price of all rounds is compared with the limits when the plan is announced."""
    data = {"table": "table.csv", "contract": "contract.yaml", "split": {"seed": 3}}
    content = {"site": "ahus", "state": str(tmp_path), "policy": policy(largest).model_dump(mode="json"), "data": data}
    hospital = Hospital.model_validate(content, strict=False)

    reasons = decide_plan(hospital, PLAN, manifest_of(PLAN), identity=None, audit=audit)

    assert ("epsilon of the study" in "".join(reasons)) is (largest < 1.0)


def test_the_end_of_a_run_removes_the_numbers_of_all_rounds(tmp_path: Path, audit: AuditLog) -> None:
    """The sent numbers are no longer needed, but their cost remains."""
    for number in range(4):
        sent(number, audit, tmp_path)
    ledger = PrivacyLedger(audit)
    audit.write("run_finished", run=PLAN.run_name)

    ledger.forget_numbers(PLAN)

    assert ledger.kept(PLAN.run_name, _position(1)) is None
    assert spent(audit) == [1.0]


@for_each("seed", range(3))
def test_noise_has_the_variance_of_one_round_s_share(seed: int) -> None:
    """Over many draws the variance is that of the plan's share for each of its rounds, within the limits of chance."""
    generator, training = np.random.default_rng(seed), PLAN.private_training
    assert training is not None

    drawn = np.array([with_noise(PLAN, [7] * len(training.names), generator.bytes) for _ in range(500)], np.float64) - 7

    ratio = drawn.var() / training.share_variance
    assert abs(ratio - 1) < 5 * np.sqrt(2 / drawn.size)
    single = private_network_plan(rounds=1).private_training
    assert single is not None
    assert training.share_variance / single.share_variance == pytest.approx(4.0, rel=1e-9)


def test_a_payment_from_before_a_loss_covers_no_further_step(tmp_path: Path, audit: AuditLog) -> None:
    """A restored older state may have drawn the next step before. It draws no second noise from the same payment."""
    plan = private_network_plan()
    ledger = PrivacyLedger(audit)
    ledger.pay(plan, bytes([1]) * 32, [0] * 1000)
    assert ledger.covering(plan)

    audit.declare_restored(by="A. Jones", because="disk", account="root")

    assert not ledger.covering(plan)
