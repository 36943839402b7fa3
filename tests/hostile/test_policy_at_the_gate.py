"""A coordinator against the hospital's own file: the real gate, one plan or person at a time, each recorded."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from protos.wire.messages import Bind, Refusal, SiteReason
from site_agent.approving import withdraw
from site_agent.gate.consent import Consent, ConsentEnded
from site_agent.trainer_socket import Failed
from tests.federation import clear_plan
from tests.hostile.attacks_at_the_gate import Contribution, contributed
from tests.logged import facts_of
from tests.scripted import begun, offered, scripted

PLAN = clear_plan()
BIND = Bind(0, 0, ("a", "b", "c"), 0)


@pytest.mark.parametrize("moment", ["within an upload", "while the site only waits", "while it trains"])
def test_a_withdrawal_stops_a_running_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """The coordinator gets this reason, no chunk follows, and the log has both, whichever process sees it first."""

    def take_back() -> None:
        withdraw(tmp_path, PLAN, by="A. Jones", at=datetime.now(UTC))

    def may_not_train() -> Failed:
        take_back()
        return Failed(SiteReason.PLAN_NOT_APPROVED, 77)

    script = {
        "within an upload": [*begun(PLAN), *offered(PLAN), take_back, BIND],
        "while the site only waits": [*begun(PLAN), take_back],
        "while it trains": [*begun(PLAN), *offered(PLAN)],
    }[moment]
    if moment == "while it trains":
        monkeypatch.setattr("site_agent.gate.loop.CONSENT_POLL_SECONDS", 600.0)

    site = scripted(tmp_path, script, approved=(PLAN,), fails=may_not_train if moment == "while it trains" else None)

    assert site.chunks == []
    assert isinstance(site.error, ConsentEnded)
    assert site.said[-1] == Refusal(PLAN.run_name, SiteReason.WITHDRAWN, "")
    (ended,) = site.records("participation_ended")
    assert ended["reason"] == "withdrawn"


def test_one_record_holds_every_reason_against_a_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Persons and each broken rule of the policy stand together in one record, and nothing leaves."""
    made = Contribution(policy={"largest_clipping_range": 4.0, "largest_rounds": 1})
    monkeypatch.setattr(Consent, "why_not", lambda self: "A. Jones withdrew the approval")

    with pytest.raises(ConsentEnded):
        contributed(tmp_path, made)

    records = facts_of(tmp_path / "audit.log")
    (record,) = [one for one in records if one["event"] == "release_refused"]
    for clause in ("A. Jones withdrew", "clipping range", "the policy allows 1"):
        assert clause in record["reason"]
    assert not [one for one in records if one["event"] == "contribution_released"]
