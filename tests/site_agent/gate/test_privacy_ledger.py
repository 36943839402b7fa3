"""The patients' privacy budget: a payment is written before data are sent and is never refunded.

Noise has the size that was paid for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from host.audit_log import AuditLog
from host.record_store import StoreError
from protos.errors import RefusedError
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.privacy.accounting import epsilon_of, ratio_of
from protos.wire.messages import Stage
from site_agent.approvals import keep_plan
from site_agent.gate import privacy_ledger
from site_agent.gate.door import Contribution
from site_agent.gate.permission import PolicyForbids
from site_agent.gate.policy import refusals
from site_agent.gate.privacy_ledger import PrivacyLedger, with_noise
from site_agent.gate.spent import Release, Spent
from site_agent.hospital import Policy, PrivacyLimits
from site_agent.state_folders import gate_folder
from tests.for_each import for_each
from tests.protos.privacy.private_plans import private_plan
from tests.rehearsal.gates import gate_for, policy_with
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


def built(plan: Plan, audit: AuditLog, state: Path, step: bytes = STEP, **limits: float) -> Contribution:
    """Return a restarted gate's answer to a trainer's zeros."""
    exchange = Exchanges(plan, manifest_of(plan)).of(0, Stage.STATISTICS, b"")
    gate = gate_for(plan, audit, state, policy=policy(**limits), site="ahus", masking=object())  # type: ignore[arg-type]
    payload = memoryview(np.zeros(len(exchange.scalars), "<i8").tobytes())
    return gate.build(step, exchange, payload, rows=0)


def spent(state: Path, audit: AuditLog) -> list[float]:
    """The epsilon of every known payment."""
    return [payment.epsilon for payment in PrivacyLedger(state, audit).payments()]


def files(state: Path) -> list[Path]:
    """The ledger's files."""
    return sorted((state / "gate" / "privacy").glob("*.json"))


def test_a_payment_is_on_disk_and_in_the_log_before_anything_can_leave(tmp_path: Path, audit: AuditLog) -> None:
    """Building a contribution spends; the file and the audit log have the same payment."""
    built(PLAN, audit, tmp_path)

    (draw,) = json.loads(files(tmp_path)[0].read_bytes())["draws"]
    (record,) = audit.records("privacy_spent")
    assert (record["epsilon"], record["delta"], record["run"]) == (1.0, 1e-5, PLAN.run_name)
    assert draw["payment"]["identifier"] == record["identifier"]
    assert spent(tmp_path, audit) == [1.0]


def test_after_a_restart_the_same_noise_is_sent_and_nothing_is_paid_again(tmp_path: Path, audit: AuditLog) -> None:
    """Another draw for the same step would let somebody average the noise away."""
    first = built(PLAN, audit, tmp_path)
    again = built(PLAN, audit, tmp_path)

    assert first.digest == again.digest
    assert spent(tmp_path, audit) == [1.0]


def test_noise_that_is_drawn_again_is_paid_again(tmp_path: Path, audit: AuditLog) -> None:
    """If the file with the numbers is lost, the payment stays in the audit log and the next draw costs once more."""
    first = built(PLAN, audit, tmp_path)
    files(tmp_path)[0].unlink()

    assert spent(tmp_path, audit) == [1.0]
    again = built(PLAN, audit, tmp_path)
    assert first.digest != again.digest
    assert spent(tmp_path, audit) == [1.0, 1.0]


def test_either_of_file_and_log_is_enough_and_the_higher_spending_counts(tmp_path: Path, clock: Clock) -> None:
    """A restarted log and a ledger restored from an earlier time refund nothing."""
    other = private_plan(study="other")
    with_both = AuditLog(tmp_path / "audit.log", site="ahus", now=clock)
    built(PLAN, with_both, tmp_path)
    before = {path: path.read_bytes() for path in files(tmp_path)}
    built(other, with_both, tmp_path)
    restarted = AuditLog(tmp_path / "restarted.log", site="ahus", now=clock)

    assert spent(tmp_path, restarted) == [1.0, 1.0]
    for path in files(tmp_path):
        path.unlink()
    for path, content in before.items():
        path.write_bytes(content)
    assert spent(tmp_path, with_both) == [1.0, 1.0]


@pytest.mark.parametrize("left", [True, False])
def test_a_run_of_which_something_left_counts_without_any_payment(left: bool, tmp_path: Path, audit: AuditLog) -> None:
    """With ledger and log lost, the file of what left and the kept plan still say what was spent."""
    keep_plan(tmp_path, PLAN)
    if left:
        release = Release(round=0, attempt=0, position="00", stage="statistics", offered_layers="", masked=True)
        Spent(tmp_path, PLAN.run_name).take(100, release)

    assert spent(tmp_path, audit) == ([1.0] if left else [])


@pytest.mark.parametrize("has_sent", [True, False])
def test_a_plan_that_cannot_be_read_stops_private_runs_only_if_its_run_sent_data(
    has_sent: bool, tmp_path: Path, audit: AuditLog
) -> None:
    """A plan that an earlier version announced, and that this one refuses, says nothing about other runs."""
    release = Release(round=0, attempt=0, position="00", stage="statistics", offered_layers="", masked=True)
    keep_plan(tmp_path, PLAN)
    (kept,) = (gate_folder(tmp_path) / "plans").iterdir()
    kept.write_bytes(kept.read_bytes().replace(b'"seed"', b'"former_seed"'))
    Spent(tmp_path, PLAN.run_name if has_sent else "other-v1-0123456789ab").take(100, release)

    if has_sent:
        with pytest.raises(RefusedError, match=f"plan of the run {PLAN.run_name} cannot be read"):
            spent(tmp_path, audit)
    else:
        assert spent(tmp_path, audit) == []


def test_an_unreadable_ledger_stops_private_runs(tmp_path: Path, audit: AuditLog) -> None:
    """Nobody then knows what was spent, so nothing more is spent."""
    built(PLAN, audit, tmp_path)
    files(tmp_path)[0].write_text("{")

    with pytest.raises(RefusedError, match="cannot be read"):
        built(private_plan(study="other"), audit, tmp_path)


def test_without_a_record_there_is_no_contribution(
    tmp_path: Path, audit: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk ends the round before anything is built."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(privacy_ledger, "keep_record", full)

    with pytest.raises(StoreError, match="cannot be recorded"):
        built(PLAN, audit, tmp_path)
    assert spent(tmp_path, audit) == []


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
    """A run that would exceed a limit is refused at the door, and nothing is spent.

    A run that meets it exactly is allowed.
    """
    if words is None:
        built(PLAN, audit, tmp_path, **limits)
        return
    with pytest.raises(PolicyForbids, match=words):
        built(PLAN, audit, tmp_path, **limits)
    assert spent(tmp_path, audit) == []
    assert [facts["reason"] for facts in audit.records("release_refused")]


def test_runs_add_up_as_the_closed_form_says_and_old_ones_leave_the_year_alone(
    tmp_path: Path, audit: AuditLog, clock: Clock
) -> None:
    """Three versions at epsilon 1 are together one draw with noise smaller by the root of 3; the year forgets after
    365 days, and the study never does."""
    versions = [private_plan(version=number) for number in (1, 2, 3)]
    for plan in versions[:2]:
        built(plan, audit, tmp_path)
    together = epsilon_of(ratio_of(1.0, 1e-5) * sqrt(3), 1e-5)
    assert 1.5 < together < 2.0

    with pytest.raises(PolicyForbids, match=f"would be {together:.3g}"):
        built(versions[2], audit, tmp_path, largest_epsilon_per_study=1.5)
    assert PrivacyLedger(tmp_path, audit).refuse(None, versions[2]) is not None  # no limits are no permission
    clock.now += timedelta(days=364)
    with pytest.raises(PolicyForbids, match=f"epsilon of all studies of one year would be {together:.3g}"):
        built(versions[2], audit, tmp_path, largest_epsilon_per_year=1.5)
    clock.now += timedelta(days=2)
    with pytest.raises(PolicyForbids, match=f"epsilon of the study prior would be {together:.3g}"):
        built(versions[2], audit, tmp_path, largest_epsilon_per_study=1.5, largest_epsilon_per_year=1.0)
    built(versions[2], audit, tmp_path, largest_epsilon_per_year=1.0)


def test_a_clock_that_was_set_back_forgets_nothing(tmp_path: Path, audit: AuditLog, clock: Clock) -> None:
    """A payment that seems to lie in the future counts in every year."""
    built(PLAN, audit, tmp_path)
    clock.now -= timedelta(days=3650)

    with pytest.raises(PolicyForbids, match="all studies of one year"):
        built(private_plan(study="other"), audit, tmp_path, largest_epsilon_per_year=1.0)


def test_the_end_of_a_run_removes_the_numbers_and_no_payment(tmp_path: Path, audit: AuditLog) -> None:
    """The sent numbers are no longer needed, but their cost remains."""
    built(PLAN, audit, tmp_path)
    ledger = PrivacyLedger(tmp_path, audit)

    ledger.forget_numbers(PLAN)

    assert ledger.kept(PLAN.run_name, STEP) is None
    assert spent(tmp_path, audit) == [1.0]


@for_each("seed", range(3))
def test_the_noise_of_a_site_has_the_variance_of_its_share(seed: int) -> None:
    """Over 300 draws of every number the variance is the plan's within the limits of chance."""
    assert PLAN.prior is not None
    assert PLAN.prior.private is not None
    size, generator = len(PLAN.prior.private.names), np.random.default_rng(seed)

    drawn = np.array([with_noise(PLAN, [7] * size, generator.bytes) for _ in range(300)], np.float64) - 7

    ratio = drawn.var() / PLAN.prior.private.share_variance
    assert abs(ratio - 1) < 5 * sqrt(2 / drawn.size)
    assert abs(drawn.mean()) < 5 * sqrt(PLAN.prior.private.share_variance / drawn.size)


@pytest.mark.parametrize("has_limits", [True, False])
@pytest.mark.parametrize("is_private", [True, False])
def test_a_policy_and_a_plan_agree_on_privacy_or_nothing_runs(*, has_limits: bool, is_private: bool) -> None:
    """A limit of epsilon means nothing beside sums without noise, and a promise needs a limit."""
    plan: Any = PLAN if is_private else prior_plan("breast-cancer")
    rules = policy() if has_limits else policy_with()

    reasons = refusals(rules, plan, manifest_of(plan), site="ahus", identity=None)

    assert (reasons == ()) is (has_limits == is_private)
