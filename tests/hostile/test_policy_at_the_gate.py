"""A coordinator against the hospital's own file: the real gate, one plan or person at a time, each recorded."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from protos.errors import RefusedError
from protos.wire.messages import Bind, Hello, Refusal, SiteReason
from site_agent.approving import withdraw
from site_agent.gate.consent import Consent, ConsentEnded
from site_agent.trainer_socket import Failed
from tests.federation import clear_plan
from tests.hostile.attacks_at_the_gate import Contribution, contributed
from tests.logged import facts_of
from tests.scripted import announced, begun, offered, scripted

PLAN = clear_plan()
BIND = Bind(0, 0, ("a", "b", "c"), 0)
NETWORK: dict[str, Any] = {
    "architecture": {"name": "dense", "hidden": [4, 3]}, "columns": ["a", "b"], "outputs": 1,
}  # fmt: skip
# What the plan says, and what the hospital's policy says. attacks_by_plans.py has the other rules.
REFUSED: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "a pattern that matches nothing": (NETWORK, {"private": ["haed.*"]}),
    "an allowed pattern that matches nothing": (NETWORK, {"federated": ["*", "boddy.*"]}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_beyond_the_policy_is_refused_although_a_person_approved_it(tmp_path: Path, name: str) -> None:
    """The site refuses with a record that names the rule and with status 77. The trainer never receives the plan."""
    changes, rules = REFUSED[name]
    plan = clear_plan(**changes)

    site = scripted(tmp_path, [announced(plan)], approved=(plan,), **rules)

    assert isinstance(site.error, RefusedError)
    assert site.error.exit_status == 77
    (record,) = site.records("plan_refused")
    assert record["reason"] in site.error.what
    assert (site.chunks, site.trainer.questions) == ([], [])
    assert [type(message) for message in site.said] == [Hello, Refusal]


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
    rules = {"largest_clipping_range": 4.0, "private": ["sec*"]}
    made = Contribution(policy=rules)
    monkeypatch.setattr(Consent, "why_not", lambda self: "A. Jones withdrew the approval")

    with pytest.raises(ConsentEnded):
        contributed(tmp_path, made)

    records = facts_of(tmp_path / "audit.log")
    (record,) = [one for one in records if one["event"] == "release_refused"]
    for clause in ("A. Jones withdrew", "clipping range", "keeps second private"):
        assert clause in record["reason"]
    assert not [one for one in records if one["event"] == "contribution_released"]
