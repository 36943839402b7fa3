"""What has left in a run and that it was finished hold also where the audit log no longer says so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from protos.errors import RefusedError
from protos.exchange import Exchanges
from protos.manifest import manifest_of
from protos.messages import Bind, Stage
from protos.plan import Plan
from site_agent.approval import approve
from site_agent.boundary.allowance import Allowance
from site_agent.boundary.audit import AuditError, AuditLog
from site_agent.boundary.consent import Consent, refuse_replay
from site_agent.boundary.rounds import Rounds, Surroundings
from site_agent.boundary.spent import Spent
from tests.rehearsal.gates import NOON, policy_with
from tests.rehearsal.study import SITES, made_up_identities, plan_with

PLAN = plan_with(made_up_identities())


def allowance_of(state: Path, plan: Plan, **rules: Any) -> Allowance:
    """What is still allowed to site a when its log begins anew."""
    spent = Spent(state, plan.run_name)
    return Allowance(policy_with(**rules), plan, site="a", local_time=lambda: NOON, released=(), spent=spent)


async def nothing(*_: object) -> Any:
    """Send, ask or deliver to nobody."""


def spawned(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Begin beside the test."""
    return asyncio.create_task(work)


def test_a_run_that_was_finished_stays_finished_without_its_log(tmp_path: Path) -> None:
    """A plan that is still approved is not followed again after the log was begun anew or its files deleted."""
    approve(tmp_path, PLAN, by="A. Jones", at=NOON)
    audit = AuditLog(tmp_path / "audit.log", site="a", now=lambda: NOON)
    rounds = Rounds(
        run=PLAN.run_name,
        plan=PLAN,
        manifest=manifest_of(PLAN),
        site="a",
        policy=policy_with(),
        consent=Consent(tmp_path, PLAN, approvers=1, now=lambda: NOON),
        audit=audit,
        masking=None,
        around=Surroundings(send=nothing, ask=nothing, spawn=spawned, deliver=nothing),
        saved=(),
    )

    asyncio.run(rounds.concluded(3))

    audit.close()
    (tmp_path / "audit.log").unlink()
    patience = timedelta(seconds=PLAN.deadlines.return_seconds + PLAN.deadlines.join_seconds)
    assert refuse_replay(tmp_path, PLAN, [], NOON + patience) is None
    late = refuse_replay(tmp_path, PLAN, [], NOON + patience + timedelta(seconds=1))
    assert late == "its run was finished here on 2026-03-01"


def test_limits_count_what_left_before_the_log_began_anew(tmp_path: Path) -> None:
    """Rounds and bytes that have left count in the next process too, whatever its log still knows."""
    exchange = Exchanges(PLAN, manifest_of(PLAN)).of(0, Stage.TRAINING, b"")
    size = exchange.layout.total_bytes
    first, second = Bind(0, 0, tuple(SITES), 0), Bind(1, 0, tuple(SITES), 0)
    allowance_of(tmp_path, PLAN).take(exchange, first)

    few_rounds = allowance_of(tmp_path, PLAN, largest_rounds=1)
    few_bytes = allowance_of(tmp_path, PLAN, largest_megabytes=1.5e-6 * size)

    assert few_rounds.refuse(exchange, first, masked=False) is None
    assert few_rounds.refuse(exchange, second, masked=False) == "more rounds than the policy allows"
    assert "MB would have left" in str(few_bytes.refuse(exchange, second, masked=False))


def test_what_cannot_be_recorded_does_not_leave_and_a_damaged_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk ends a release before its first byte; a file that is none is not taken for an unused run."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    spent = Spent(tmp_path, "run")
    spent.finish(datetime.now(UTC))
    monkeypatch.setattr("site_agent.boundary.spent.require_room", full)
    with pytest.raises(AuditError, match="No space left"):
        spent.take(0, 48)
    (tmp_path / "spent" / "run.json").write_text("{")
    with pytest.raises(RefusedError, match="cannot be read"):
        Spent(tmp_path, "run")
