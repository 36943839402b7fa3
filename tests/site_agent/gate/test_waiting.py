"""An agent waits for more than its stream: the end of the policy's hours ends its work."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from audit.own_log import AuditLog
from protos.errors import RefusedError
from protos.wire.messages import CoordinatorReason, Farewell
from site_agent.gate.consent import Consent
from site_agent.gate.permission import OutsideHours
from site_agent.gate.waiting import await_approval, require_hours, watch
from site_agent.hospital import Hours
from tests.rehearsal.federation import Office
from tests.rehearsal.lying import Stream, evidence_of
from tests.rehearsal.study import made_up_identities, plan_with


def hours_around(*, begin: float, end: float) -> Hours:
    """Hours from and to so many hours from now."""
    now = datetime.now()
    begins, ends = (f"{now + timedelta(hours=hours):%H:%M}" for hours in (begin, end))
    return Hours(begin=begins, end=ends)


OPEN, CLOSED = hours_around(begin=-2, end=2), hours_around(begin=2, end=4)


def test_the_watch_ends_with_the_hours() -> None:
    """As long as something may leave, or at any time, it watches on; then it raises what hangs up."""
    given = iter([OPEN, None, OPEN, CLOSED])

    with pytest.raises(OutsideHours):
        asyncio.run(watch(lambda: require_hours(next(given)), 0.0))

    assert list(given) == []


def test_nobody_waits_for_an_approval_on_a_stream_outside_of_the_hours(tmp_path: Path) -> None:
    """The stream on which a plan came is not kept only because nobody has approved the plan yet."""
    audit = AuditLog(tmp_path / "audit.log", site="a", now=lambda: datetime.now(UTC))
    plan = plan_with(made_up_identities())
    consent = Consent(tmp_path, plan, approvers=1, now=lambda: datetime.now(UTC))

    with pytest.raises(OutsideHours):
        asyncio.run(await_approval(consent, audit, lambda: None, lambda: CLOSED, lambda: None))

    audit.close()


def test_a_stream_ends_with_the_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent in the middle of a run disconnects when the hours end, and reconnects when they begin."""
    office, are_over = Office.found(tmp_path / "heart"), asyncio.Event()
    plan = plan_with(office.identities)

    def require(_: object) -> None:
        if are_over.is_set():
            raise OutsideHours

    async def until_hung_up(stream: Stream) -> None:
        await stream.joined(plan)
        are_over.set()
        await stream.to_the_end()
        are_over.clear()

    async def again(stream: Stream) -> None:
        await stream.send(Farewell(CoordinatorReason.ALL_RUNS_OVER, ""))

    monkeypatch.setattr("site_agent.gate.loop.require_hours", require)
    evidence = evidence_of(office, tmp_path, until_hung_up, again, approved=(plan,))

    assert isinstance(evidence.error, RefusedError)  # all was over before this site's run was
    assert (evidence.connections, evidence.is_waiting) == (2, False)
