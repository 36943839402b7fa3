"""A coordinator with genuine certificates that lies: the agent sends nothing, reports the reason, and stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from protos.errors import ProtocolError, RefusedError
from protos.numbers.chunk_layout import Layout
from protos.numbers.fixed_point import FixedPoint
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import (
    Announcement,
    Bind,
    CoordinatorReason,
    Done,
    Farewell,
    Finish,
    Hello,
    Join,
    Refusal,
    SiteReason,
)
from protos.wire.positions import parameters_digest
from site_agent.gate import loop as agent_module
from site_agent.trainer_socket import Failed, Train
from tests.hostile.lies import ALL, assert_nothing_left, assert_refused, zeros
from tests.rehearsal.federation import Office
from tests.rehearsal.lying import Stream, evidence_of, hospital_for
from tests.rehearsal.study import (
    THREE_CHUNKS,
    offer,
    parameter_chunks,
    plan_document,
    plan_with,
)


def test_an_honest_coordinator_gets_what_was_agreed(tmp_path: Path, office: Office, plan: Plan) -> None:
    """If nobody lies, each round's chunks are sent once, each after its audit record."""
    layout = Layout(THREE_CHUNKS, 0)

    async def honest(stream: Stream) -> None:
        await stream.joined(plan)
        for number in range(3):
            await stream.offered(plan, number)
            await stream.send(Bind(number, 0, ALL, 0))
            await stream.chunks(3)
        result = zeros(value=3.0)
        await stream.send(Finish(3, parameters_digest(result)), *parameter_chunks(result, 3))
        await stream.expect(Done)
        await stream.send(Farewell(CoordinatorReason.ALL_RUNS_OVER, "over"))

    evidence = evidence_of(office, tmp_path, honest, approved=(plan,))

    assert evidence.error is None
    assert [(chunk.round, chunk.index) for chunk in evidence.chunks] == [(r, i) for r in range(3) for i in range(3)]
    one = int(FixedPoint(8.0, 3).scale)
    for chunk in evidence.chunks:
        assert set(layout.updates(chunk.body, chunk.index)) == {one}
    assert [facts["event"] for facts in evidence.audit] == [
        "run_joined", *3 * ["contribution_released", "contribution_handed_over"], "run_finished",
    ]  # fmt: skip


# Lies about the plan


def test_a_plan_against_the_policy_is_refused_even_if_approved(tmp_path: Path, office: Office, plan: Plan) -> None:
    """The plan is refused, the trainer receives nothing of it, the log has the reason, and the exit status is 77."""
    reason = "rounds, and the policy allows 2"

    async def announce(stream: Stream) -> None:
        await stream.send(Announcement(plan.run_name, plan.canonical))

    hospital = hospital_for(tmp_path, policy={"largest_rounds": 2})
    evidence = evidence_of(office, tmp_path, announce, approved=(plan,), hospital=hospital)

    assert_nothing_left(evidence)
    assert isinstance(evidence.error, RefusedError)
    assert evidence.error.exit_status == 77
    assert reason in evidence.error.what
    (record,) = evidence.events("plan_refused")
    assert reason in record["reason"]
    assert evidence.questions == []
    assert [type(message) for message in evidence.received] == [Hello, Refusal]


def document_with_more_tensors(office: Office) -> Plan:
    """The approved plan with one tensor more."""
    document = plan_document(office.identities, parameters=THREE_CHUNKS)
    document["architecture"]["tensors"].append({"name": "third", "shape": [2], "bound": 0.0})
    return plan_with(office.identities, changes=document)


@pytest.mark.parametrize("first", ["nothing", "the approved plan"])
def test_a_plan_with_more_tensors_waits_for_a_person(tmp_path: Path, office: Office, plan: Plan, first: str) -> None:
    """Another plan, whatever its name, trains and sends nothing until a person here approves it."""
    other = document_with_more_tensors(office)
    assert (other.study, other.version) == (plan.study, plan.version)

    async def announce(stream: Stream) -> None:
        if first != "nothing":
            await stream.joined(plan)
        await stream.send(Announcement(other.run_name, other.canonical), *offer(zeros(THREE_CHUNKS + 2), 0))

    kept = tmp_path / "state" / "gate" / "plans" / f"{other.digest.hex()}.json"
    evidence = evidence_of(office, tmp_path, announce, approved=(plan,), seconds=1.5, counted_from=kept.exists)

    assert evidence.is_waiting  # as long as it takes
    assert_nothing_left(evidence)
    (awaited,) = evidence.events("approval_awaited")
    assert (awaited["plan"], awaited["another_of_this_name"]) == (other.digest.hex(), plan.digest.hex())
    assert len(evidence.events("run_joined")) == (first != "nothing")
    assert not any(isinstance(question, Train) for question in evidence.questions)
    assert kept.read_bytes() == other.canonical


def test_another_plan_under_the_same_run_is_refused(tmp_path: Path, office: Office, plan: Plan) -> None:
    """A run is named by its plan; a plan under another's name ends the stream."""
    other = document_with_more_tensors(office)

    async def announce(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.send(Announcement(plan.run_name, other.canonical))

    evidence = evidence_of(office, tmp_path, announce, approved=(plan, other))

    assert_nothing_left(evidence)
    assert isinstance(evidence.error, ProtocolError)
    assert len(evidence.events("coordinator_refused")) == 1


NO_PLANS = {
    "no JSON": b"no JSON",
    "a list": b"[]",
    "an empty object": b"{}",
    "deep nesting": b"[" * 100_000,
    "a number with a million digits": b'{"study":' + b"1" * 900_000 + b"}",
    "not UTF-8": b"\xff\xfe",
}


@pytest.mark.parametrize("name", NO_PLANS)
def test_bytes_that_are_no_plan_are_refused(tmp_path: Path, office: Office, name: str) -> None:
    """An announcement that is no plan stops the agent with three sentences, not with a traceback."""

    async def announce(stream: Stream) -> None:
        await stream.send(Announcement("run", NO_PLANS[name]))

    evidence = evidence_of(office, tmp_path, announce)

    assert_nothing_left(evidence)
    assert isinstance(evidence.error, ProtocolError)
    assert evidence.questions == []


def test_bytes_that_are_no_plan_are_in_the_audit_log(tmp_path: Path, office: Office) -> None:
    """A refused announcement of the coordinator is recorded like every other refusal."""

    async def announce(stream: Stream) -> None:
        await stream.send(Announcement("run", b"{}"))

    evidence = evidence_of(office, tmp_path, announce)

    assert [facts["event"] for facts in evidence.audit] != []


def test_a_plan_that_is_not_canonical_is_refused(tmp_path: Path, office: Office, plan: Plan) -> None:
    """The same plan in other bytes would have another digest for those who hash bytes; it is refused."""

    async def announce(stream: Stream) -> None:
        await stream.send(Announcement(plan.run_name, plan.canonical.replace(b",", b", ", 1)))

    evidence = evidence_of(office, tmp_path, announce, approved=(plan,))

    assert_nothing_left(evidence)
    assert isinstance(evidence.error, ProtocolError)


@pytest.mark.parametrize(
    ("change", "reason", "tensor"),
    [
        (float("nan"), SiteReason.VALUE_NOT_FINITE, "first"),
        (float("inf"), SiteReason.VALUE_NOT_FINITE, "first"),
        (9.0, SiteReason.TOO_MUCH_CLIPPED, ""),
    ],
)
def test_a_change_that_must_not_leave_stops_the_site(
    tmp_path: Path, office: Office, plan: Plan, change: float, reason: SiteReason, tensor: str
) -> None:
    """Values that are not finite or too much clipped are not sent.

    The coordinator receives a reason and at most a tensor's name.
    """

    async def offer_a_round(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.send(*offer(zeros(), 0), Bind(0, 0, ALL, 0))

    evidence = evidence_of(office, tmp_path, offer_a_round, approved=(plan,), change=change)

    assert_nothing_left(evidence)
    assert evidence.received[-1] == Refusal(plan.run_name, reason, tensor)
    (record,) = evidence.events("participation_ended")
    assert (record["reason"], record["tensor"]) == (reason.name.lower(), tensor)


@pytest.mark.parametrize(("tensor", "named"), [("", ""), ("second", "second"), ("patient 4711 Jane Doe", "")])
def test_a_trainer_that_fails_stops_the_site_with_its_reason(
    tmp_path: Path, office: Office, plan: Plan, tensor: str, named: str
) -> None:
    """A failure of the trainer becomes a refusal with a reason of a closed list and at most the name of a tensor."""
    failure = Failed(SiteReason.DATA_UNFIT, 78, tensor)

    async def offer_a_round(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.send(*offer(zeros(), 0))

    evidence = evidence_of(office, tmp_path, offer_a_round, approved=(plan,), failure=lambda: failure)

    assert_nothing_left(evidence)
    assert evidence.received[-1] == Refusal(plan.run_name, SiteReason.DATA_UNFIT, named)
    assert evidence.error is not None
    assert all((evidence.error.what, evidence.error.consequence, evidence.error.remedy))


def test_a_full_disk_of_the_trainer_does_not_end_the_run_for_all(tmp_path: Path, office: Office, plan: Plan) -> None:
    """An error that an operator can correct is no refusal: the agent ends with 1 and returns, and no site must stop."""
    failure = Failed(SiteReason.TRAINER_FAILED, 1)

    async def offer_a_round(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.send(*offer(zeros(), 0))

    evidence = evidence_of(office, tmp_path, offer_a_round, approved=(plan,), failure=lambda: failure)

    assert_nothing_left(evidence)
    assert not any(isinstance(message, Refusal) for message in evidence.received)
    assert evidence.events("participation_ended") == []
    assert evidence.error is not None
    assert evidence.error.exit_status == 1


def test_a_final_farewell_stops_the_agent_and_another_one_brings_it_back(
    tmp_path: Path, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a coordinator restarts, the agent connects again.

    After a refusal it does not, and the exit status is 77.
    """
    monkeypatch.setattr(agent_module, "FIRST_WAIT_SECONDS", 0.01)

    async def restart(stream: Stream) -> None:
        await stream.send(Farewell(CoordinatorReason.SHUTTING_DOWN, "come again"))

    async def refuse(stream: Stream) -> None:
        await stream.send(Farewell(CoordinatorReason.NOT_ACCEPTED, "no"))

    evidence = evidence_of(office, tmp_path, restart, restart, refuse)

    assert evidence.connections == 3
    assert isinstance(evidence.error, RefusedError)
    assert evidence.error.exit_status == 77


def test_a_masked_plan_is_not_trained_in_the_clear(tmp_path: Path, office: Office) -> None:
    """If the plan asks for masking, a round before the sites agreed on keys is refused."""
    plan = plan_with(office.identities, changes={"secure_aggregation": "required"})

    async def skip_the_keys(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.send(*offer(zeros(10), 0), Bind(0, 0, ALL, 0))

    evidence = evidence_of(office, tmp_path, skip_the_keys, approved=(plan,))

    assert_refused(evidence)


def test_messages_used_here_are_the_ones_that_agents_send(tmp_path: Path, office: Office, plan: Plan) -> None:
    """An agent's first words are a greeting and its agreement to exactly the approved digests."""

    async def announce(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.send(Farewell(CoordinatorReason.ALL_RUNS_OVER, "over"))

    evidence = evidence_of(office, tmp_path, announce, approved=(plan,))

    greeting, join = evidence.received
    assert isinstance(greeting, Hello)
    assert join == Join(plan.run_name, plan.digest, manifest_of(plan).digest, 0)
