"""A lying coordinator against the hospital's own file: the real agent, real TLS, one lie at a time, each recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.errors import RefusedError
from protos.wire.messages import Announcement, Bind, Chunk, Join, Ready, Refusal, SiteReason
from site_agent.approving import approve, withdraw
from site_agent.gate.consent import Consent, ConsentEnded, refuse_replay
from site_agent.trainer_socket import Failed
from tests.hostile.attacks_at_the_gate import Contribution, contributed
from tests.logged import facts_of
from tests.rehearsal.federation import Office
from tests.rehearsal.gates import NOON
from tests.rehearsal.lying import Evidence, Stream, evidence_of, hospital_for
from tests.rehearsal.study import SITES, made_up_identities, offer, plan_with

ALL = tuple(SITES)
BIND = Bind(0, 0, ALL, 0)
NAMES = made_up_identities()
NETWORK: dict[str, Any] = {
    "architecture": {"name": "dense", "hidden": [4, 3]}, "columns": ["a", "b"], "outputs": 1,
}  # fmt: skip
MEASURING: dict[str, Any] = {"checkpoint": "global"}


REFUSED: dict[str, tuple[Mapping[str, Any], Mapping[str, Any], str]] = {
    "a pattern that matches nothing": (NETWORK, {"private": ["haed.*"]}, "pattern haed.* matches no tensor"),
    "an allowed pattern that matches nothing": (
        NETWORK, {"federated": ["*", "boddy.*"]}, "pattern boddy.* matches no tensor",
    ),
    "a number that is not allowed": (MEASURING, {"scalars": ["rows"]}, "the number validation weight"),
    "training at a site that only evaluates": ({}, {"tier": "evaluation"}, "the policy allows at most evaluation"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_plan_beyond_the_policy_is_refused_although_a_person_approved_it(
    tmp_path: Path, office: Office, name: str
) -> None:
    """The agent refuses with a record that names the rule, and the trainer never receives the plan."""
    changes, rules, reason = REFUSED[name]
    plan = plan_with(office.identities, changes=changes)

    async def announce(stream: Stream) -> None:
        await stream.send(Announcement(plan.run_name, plan.canonical))

    hospital = hospital_for(tmp_path, policy={"methods": ["fedavg", "local"]} | dict(rules))
    evidence = evidence_of(office, tmp_path, announce, approved=(plan,), hospital=hospital)

    assert isinstance(evidence.error, RefusedError)
    (record,) = evidence.events("plan_refused")
    assert reason in record["reason"]
    assert (evidence.chunks, evidence.questions) == ([], [])


ALLOWED: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "every tensor by patterns": (NETWORK, {"federated": ["input.*", "body.*", "head.layer?.*"]}),
    "inner layers of global-layers": (
        {"method": {"name": "global-layers"}, "architecture": {"name": "dense", "hidden": [4, 3]}},
        {"federated": ["body.*"], "private": ["head.*", "input.*"], "methods": ["global-layers"]},
    ),
    "the numbers of the plan": (MEASURING, {"scalars": ["validation *", "still improving"]}),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_a_plan_within_the_policy_is_joined(tmp_path: Path, office: Office, name: str) -> None:
    """The same patterns, where they fit, keep nobody out."""
    changes, rules = ALLOWED[name]
    plan = plan_with(office.identities, changes=changes)

    async def announce(stream: Stream) -> None:
        await stream.send(Announcement(plan.run_name, plan.canonical))
        await stream.expect(Join)

    evidence = evidence_of(
        office, tmp_path, announce, approved=(plan,), hospital=hospital_for(tmp_path, policy=rules),
        seconds=2.0, counted_from=lambda: bool(evidence_joins(tmp_path)),
    )  # fmt: skip

    assert evidence.events("plan_refused") == []
    assert len(evidence.events("run_joined")) == 1


def evidence_joins(folder: Path) -> bool:
    """Whether the site's log says that it has joined."""
    log = folder / "state" / "gate" / "gate.sqlite"
    return bool(facts_of(log, "run_joined"))


# Values that the gate lets out (those that it refuses: attacks_at_the_gate.py)


def test_a_repeated_round_counts_once(tmp_path: Path) -> None:
    """The same bytes sent again after a broken line use up no allowance."""
    spent = {"largest_rounds": 1, "largest_megabytes": 48e-6}

    assert contributed(tmp_path, Contribution(policy=spent, released=({"round": 0, "bytes": 48},)))


# People who take back their yes


def test_a_withdrawal_stops_a_running_agent_within_its_upload(tmp_path: Path, office: Office) -> None:
    """The coordinator hears that the site has withdrawn, no chunk follows, and the log has both."""
    plan = plan_with(office.identities)
    hospital = hospital_for(tmp_path)

    async def take_back(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.offered(plan, 0)
        withdraw(hospital.state_path, plan, by="A. Jones", at=datetime.now(UTC))
        await stream.send(BIND)
        await stream.expect(Refusal)

    evidence = evidence_of(office, tmp_path, take_back, approved=(plan,), hospital=hospital)

    assert evidence.chunks == []
    assert isinstance(evidence.error, ConsentEnded)
    assert evidence.received[-1] == Refusal(plan.run_name, SiteReason.WITHDRAWN, "")
    (ended,) = evidence.events("participation_ended")
    assert ended["reason"] == "withdrawn"
    assert ended["because"].startswith("A. Jones withdrew this site from the plan at")


def test_a_withdrawal_stops_an_agent_that_only_waits(tmp_path: Path, office: Office) -> None:
    """Nothing has to arrive for it: the agent looks by itself."""
    plan = plan_with(office.identities)
    hospital = hospital_for(tmp_path)

    async def say_nothing(stream: Stream) -> None:
        await stream.joined(plan)
        withdraw(hospital.state_path, plan, by="A. Jones", at=datetime.now(UTC))
        async with asyncio.timeout(20):
            await stream.expect(Refusal)

    evidence = evidence_of(office, tmp_path, say_nothing, approved=(plan,), hospital=hospital)

    assert isinstance(evidence.error, ConsentEnded)
    assert evidence.received[-1] == Refusal(plan.run_name, SiteReason.WITHDRAWN, "")


def test_a_withdrawal_that_the_trainer_sees_first_is_one_too(
    tmp_path: Path, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator receives the same reason, whichever process of the site reads the withdrawal first."""
    monkeypatch.setattr("site_agent.gate.loop.CONSENT_POLL_SECONDS", 600.0)
    plan = plan_with(office.identities)
    hospital = hospital_for(tmp_path)

    def may_not_train() -> Failed:
        withdraw(hospital.state_path, plan, by="A. Jones", at=datetime.now(UTC))
        return Failed(SiteReason.PLAN_NOT_APPROVED, 77)

    async def offer_a_round(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.offered(plan, 0)

    evidence = evidence_of(office, tmp_path, offer_a_round, approved=(plan,), hospital=hospital, failure=may_not_train)

    assert isinstance(evidence.error, ConsentEnded)
    assert evidence.received[-1] == Refusal(plan.run_name, SiteReason.WITHDRAWN, "")


@pytest.mark.parametrize("approvers", [2, 3])
def test_one_person_of_several_is_not_enough(tmp_path: Path, office: Office, approvers: int) -> None:
    """If the policy wants more persons, the agent waits and says how many have approved."""
    plan = plan_with(office.identities)

    async def announce(stream: Stream) -> None:
        await stream.send(Announcement(plan.run_name, plan.canonical))

    hospital = hospital_for(tmp_path, policy={"approvers": approvers})
    kept = tmp_path / "state" / "gate" / "plans" / f"{plan.digest.hex()}.json"
    evidence = evidence_of(
        office, tmp_path, announce, approved=(plan,), hospital=hospital, seconds=1.0, counted_from=kept.exists
    )

    assert evidence.is_waiting
    (record,) = evidence.events("approval_awaited")
    assert record["because"] == f"1 of {approvers} persons have approved it"
    assert evidence.questions == []


# Old plans


def test_an_old_plan_is_not_followed_once_a_newer_one_was_approved(tmp_path: Path, office: Office) -> None:
    """A coordinator that replays version 1 after version 2 is refused, with a record."""
    old, new = plan_with(office.identities), plan_with(office.identities, changes={"version": 2})

    async def replay(stream: Stream) -> None:
        await stream.send(Announcement(old.run_name, old.canonical))

    evidence = evidence_of(office, tmp_path, replay, approved=(old, new))

    assert isinstance(evidence.error, RefusedError)
    (record,) = evidence.events("plan_refused")
    assert record["reason"] == "version 2 of this study was approved here later"
    assert evidence.questions == []


def test_a_run_that_was_finished_long_ago_is_not_made_again(tmp_path: Path) -> None:
    """As long as a coordinator may still be waiting for this site it is answered; later it is not."""
    plan = plan_with(NAMES)
    approve(tmp_path, plan, by="A. Jones", at=NOON)
    finished = [{"run": plan.run_name, "time": NOON.isoformat()}, {"run": "other", "time": NOON.isoformat()}]
    patience = timedelta(days=2)

    assert refuse_replay(tmp_path, plan, [], NOON + timedelta(days=999)) is None
    assert refuse_replay(tmp_path, plan, finished, NOON + patience) is None
    reason = refuse_replay(tmp_path, plan, finished, NOON + patience + timedelta(seconds=1))
    assert reason == "its run already finished here on 2026-03-01"


def test_evidence_has_the_parts_that_these_tests_read() -> None:
    """A chunk counts as sent data and a Ready does not, so the tests above are able to fail."""
    received = [Ready(0, 0), Chunk(0, 0, 0, b"x"), *offer(np.zeros(1, np.float32), 0)[:0]]

    assert Evidence(received=received).chunks == [received[1]]


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
