"""The patients' privacy budget: a payment is written before data are sent and is never refunded. Noise has the size
that was paid for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from host.audit_log import AuditLog
from host.record_store import StoreError
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.privacy.accounting import epsilon_of, ratio_of
from protos.wire.messages import Bind, Stage
from site_agent.gate.door import Contribution
from site_agent.gate.permission import PolicyForbids
from site_agent.gate.policy import refusals
from site_agent.gate.privacy_ledger import PrivacyLedger
from site_agent.hospital import Policy, PrivacyLimits
from tests.protos.privacy.private_plans import private_plan
from tests.rehearsal.gates import Unmasked, gate_for, policy_with
from tests.site_agent.trainer.prior.prior_federation import prior_plan

START = datetime(2026, 3, 1, tzinfo=UTC)
LIMITS = PrivacyLimits(largest_epsilon_per_study=2.0, largest_epsilon_per_year=3.0, delta=1e-5)
PLAN = private_plan()
STEP = bytes(32)


class Clock:
    """The time that records have."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        """The time now."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """At the start."""
    return Clock()


@pytest.fixture
def audit(tmp_path: Path, clock: Clock) -> Iterator[AuditLog]:
    """An empty audit log of one site."""
    log = AuditLog(tmp_path / "audit.log", site="ahus", now=clock)
    yield log
    log.close()


def policy(**limits: float) -> Policy:
    """Everything is allowed, and epsilon is limited."""
    return policy_with(privacy=LIMITS.model_copy(update=limits).model_dump())


def sent(plan: Plan, audit: AuditLog, state: Path, step: bytes = STEP, **limits: float) -> Contribution:
    """What a restarted gate makes of a trainer's zeros, and releases."""
    exchange = Exchanges(plan, manifest_of(plan)).of(0, Stage.STATISTICS, b"")
    gate = gate_for(plan, audit, state, policy=policy(**limits), site="ahus", masking=Unmasked())
    payload = memoryview(np.zeros(len(exchange.scalars), "<i8").tobytes())
    contribution = gate.build(step, exchange, payload, rows=0)
    gate.release(contribution, Bind(0, 0, plan.site_names, 0))
    return contribution


def spent(audit: AuditLog) -> list[float]:
    """The epsilon of every known payment."""
    return [payment.epsilon for payment in PrivacyLedger(audit).payments()]


@pytest.mark.parametrize("act", ["DELETE FROM noise", "UPDATE noise SET payment = ''"])
def test_no_noise_is_changed_or_deleted_before_its_run_is_finished(tmp_path: Path, audit: AuditLog, act: str) -> None:
    """The store itself refuses it."""
    sent(PLAN, audit, tmp_path)
    audit.write("run_finished", run="another")

    with pytest.raises(StoreError):
        audit.store.write(act)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"largest_epsilon_per_study": 0.9}, "epsilon of the study prior would be 1, and the policy allows 0.9"),
        ({"largest_epsilon_per_year": 0.9}, "epsilon of all studies of one year would be 1, and the policy allows 0.9"),
        ({"delta": 1e-6}, None),
        ({"delta": 1e-6, "largest_epsilon_per_study": 1.0}, "and the policy allows 1"),
        ({"largest_epsilon_per_study": 1.0, "largest_epsilon_per_year": 1.0}, None),
    ],
)
def test_a_limit_refuses_what_passes_it(
    limits: dict[str, float], words: str | None, tmp_path: Path, audit: AuditLog
) -> None:
    """A run that would exceed a limit is refused at the door, and nothing is spent. A run that meets it exactly is
    allowed."""
    if words is None:
        sent(PLAN, audit, tmp_path, **limits)
        return
    with pytest.raises(PolicyForbids, match=words):
        sent(PLAN, audit, tmp_path, **limits)
    assert spent(audit) == []
    assert [facts["reason"] for facts in audit.records("release_refused")]


def test_runs_add_up_as_the_closed_form_says_and_old_ones_leave_the_year_alone(
    tmp_path: Path, audit: AuditLog, clock: Clock
) -> None:
    """Three versions at epsilon 1 are together one draw with noise smaller by the root of 3; the year forgets after
    365 days, and the study never does."""
    versions = [private_plan(version=number) for number in (1, 2, 3)]
    for plan in versions[:2]:
        sent(plan, audit, tmp_path)
    together = epsilon_of(ratio_of(1.0, 1e-5) * sqrt(3), 1e-5)
    assert 1.5 < together < 2.0

    with pytest.raises(PolicyForbids, match=f"would be {together:.3g}"):
        sent(versions[2], audit, tmp_path, largest_epsilon_per_study=1.5)
    assert PrivacyLedger(audit).refuse(None, versions[2]) is not None  # no limits are no permission
    clock.now += timedelta(days=364)
    with pytest.raises(PolicyForbids, match=f"epsilon of all studies of one year would be {together:.3g}"):
        sent(versions[2], audit, tmp_path, largest_epsilon_per_year=1.5)
    clock.now += timedelta(days=2)
    with pytest.raises(PolicyForbids, match=f"epsilon of the study prior would be {together:.3g}"):
        sent(versions[2], audit, tmp_path, largest_epsilon_per_study=1.5, largest_epsilon_per_year=1.0)
    sent(versions[2], audit, tmp_path, largest_epsilon_per_year=1.0)


def test_a_clock_that_was_set_back_forgets_nothing(tmp_path: Path, audit: AuditLog, clock: Clock) -> None:
    """A payment that seems to lie in the future counts in every year."""
    sent(PLAN, audit, tmp_path)
    clock.now -= timedelta(days=3650)

    with pytest.raises(PolicyForbids, match="all studies of one year"):
        sent(private_plan(study="other"), audit, tmp_path, largest_epsilon_per_year=1.0)


@pytest.mark.parametrize("has_limits", [True, False])
@pytest.mark.parametrize("is_private", [True, False])
def test_a_policy_and_a_plan_agree_on_privacy_or_nothing_runs(*, has_limits: bool, is_private: bool) -> None:
    """A limit of epsilon means nothing beside sums without noise, and a promise needs a limit."""
    plan: Any = PLAN if is_private else prior_plan("breast-cancer")
    rules = policy() if has_limits else policy_with()

    reasons = refusals(rules, plan, manifest_of(plan), site="ahus", identity=None)

    assert (reasons == ()) is (has_limits == is_private)
