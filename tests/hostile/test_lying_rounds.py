"""A coordinator that lies about rounds: messages out of order or without meaning are refused.

Repeated answers are the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protos.errors import OperatorError, ProtocolError, RefusedError
from protos.plan.plan import Plan
from protos.wire.codec import encode_coordinator_message, encode_site_message
from protos.wire.messages import Bind, Chunk, CoordinatorReason, Farewell, Finish, Hello, KeySessionOpen, Offer
from protos.wire.positions import parameters_digest
from site_agent.gate import loop as agent_module
from site_agent.trainer_socket import Train
from tests.hostile.lies import (
    ALL,
    after_joining,
    after_offer,
    assert_nothing_left,
    assert_refused,
    before_joining,
    zeros,
)
from tests.rehearsal.federation import Office
from tests.rehearsal.lying import Lie, Stopped, Stream, evidence_of
from tests.rehearsal.study import (
    offer,
    parameter_chunks,
)

DIGEST = parameters_digest(zeros())
GOOD = parameter_chunks(zeros(), 0)
ROUND_LIES: dict[str, Any] = {
    "a result before any round": after_joining(Finish(3, DIGEST), *parameter_chunks(zeros(), 3)),
    "an offer before a run": before_joining(Offer(0, 0, DIGEST)),
    "a chunk before a run": before_joining(GOOD[0]),
    "a bind before a run": before_joining(Bind(0, 0, ALL, 0)),
    "a result before a run": before_joining(Finish(3, DIGEST)),
    "bytes that are no message": before_joining(b"\xff\xff\xff"),
    "an empty message": before_joining(b""),
    "a site's own message": before_joining(encode_site_message(Hello(1, "x"))),
    "a farewell with control characters": before_joining(
        encode_coordinator_message(Farewell(CoordinatorReason.NOT_ACCEPTED, "XYZ")).replace(b"XYZ", b"\x1b[2")
    ),
    "a farewell with a line break": before_joining(
        encode_coordinator_message(Farewell(CoordinatorReason.NOT_ACCEPTED, "XYZ")).replace(b"XYZ", b"a\nb")
    ),
    "a farewell for no known reason": before_joining(
        encode_coordinator_message(Farewell(CoordinatorReason.SHUTTING_DOWN, "")).replace(b"\x08\x06", b"\x08\x63")
    ),
    "garbage after joining": after_joining(b"\x01garbage"),
    "a chunk that was not announced": after_joining(GOOD[0]),
    "a round the plan does not have": after_joining(Offer(3, 0, DIGEST)),
    "other parameters than the digest says": after_joining(Offer(0, 0, DIGEST), *parameter_chunks(zeros(value=1.0), 0)),
    "chunks in another order": after_joining(Offer(0, 0, DIGEST), GOOD[1]),
    "a chunk twice": after_joining(Offer(0, 0, DIGEST), GOOD[0], GOOD[0]),
    "a chunk of another round": after_joining(Offer(0, 0, DIGEST), Chunk(1, 0, 0, GOOD[0].body)),
    "a chunk of another attempt": after_joining(Offer(0, 0, DIGEST), Chunk(0, 1, 0, GOOD[0].body)),
    "a chunk that is too short": after_joining(Offer(0, 0, DIGEST), Chunk(0, 0, 0, GOOD[0].body[:-4])),
    "a chunk that is too long": after_joining(Offer(0, 0, DIGEST), Chunk(0, 0, 0, GOOD[0].body + bytes(4))),
    "an empty chunk": after_joining(Offer(0, 0, DIGEST), Chunk(0, 0, 0, b"")),
    "a chunk after the last": after_joining(*offer(zeros(), 0), Chunk(0, 0, 3, bytes(4))),
    "a bind before the offer": after_joining(Bind(0, 0, ALL, 0)),
    "a bind before the parameters": after_joining(Offer(0, 0, DIGEST), Bind(0, 0, ALL, 0)),
    "a result before the last round": after_joining(Finish(2, DIGEST)),
    "keys that the plan does not ask for": after_joining(KeySessionOpen(1, ALL)),
    "a bind without this site": after_offer(Bind(0, 0, ("b", "c"), 0)),
    "a bind without another site": after_offer(Bind(0, 0, ("a", "b"), 0)),
    "a bind with a site nobody listed": after_offer(Bind(0, 0, ("a", "b", "c", "d"), 0)),
    "a bind with a made-up site for a listed one": after_offer(Bind(0, 0, ("a", "b", "d"), 0)),
    "a bind for another attempt": after_offer(Bind(0, 1, ALL, 0)),
    "a bind for another round": after_offer(Bind(1, 0, ALL, 0)),
    "a bind whose sites are not in order": after_offer(
        encode_coordinator_message(Bind(0, 0, ALL, 0)).replace(b"\x1a\x01a\x1a\x01b", b"\x1a\x01b\x1a\x01a")
    ),
    "other parameters for the same round": after_offer(*offer(zeros(value=9.0), 0, 1)),
    "the round before": after_offer(*offer(zeros(), 0, 0), number=1),
}


@pytest.mark.parametrize("name", ROUND_LIES)
def test_a_lie_is_refused_with_a_record_and_nothing_is_sent(
    tmp_path: Path, office: Office, plan: Plan, name: str
) -> None:
    """Whatever breaks the protocol stops this site: the audit log has the reason, and no chunk leaves."""
    evidence = evidence_of(office, tmp_path, ROUND_LIES[name](plan), approved=(plan,))

    assert_refused(evidence)


@pytest.mark.parametrize("again", [("a", "b"), ("a", "b", "c")])
def test_the_contributors_of_an_offer_are_named_once(
    tmp_path: Path, office: Office, plan: Plan, again: tuple[str, ...]
) -> None:
    """Another set, or the same set again, ends the stream."""

    async def lie(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.offered(plan, 0)
        await stream.send(Bind(0, 0, ("a", "b", "c"), 0))
        await stream.chunks(3)
        await stream.send(Bind(0, 0, again, 0))

    evidence = evidence_of(office, tmp_path, lie, approved=(plan,))

    assert len(evidence.chunks) == 3
    assert [facts["contributors"] for facts in evidence.events("contribution_released")] == [["a", "b", "c"]]
    (record,) = evidence.events("coordinator_refused")
    assert record["reason"] == "the contributors a second time for one attempt at a round"


def breaks_off(plan: Plan) -> Lie:
    """A round as it should be, and of the next one the offer and a single chunk."""

    async def begin(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.offered(plan, 0)
        await stream.send(Bind(0, 0, ALL, 0))
        await stream.chunks(3)
        digest = parameters_digest(zeros(value=1.0))
        await stream.send(Offer(1, 0, digest), *parameter_chunks(zeros(value=1.0), 1)[:1])
        await stream.send(Farewell(CoordinatorReason.SHUTTING_DOWN, "come again"))

    return begin


def test_what_was_built_for_one_round_never_leaves_in_another(tmp_path: Path, office: Office, plan: Plan) -> None:
    """A bind for a round whose parameters never arrived completely does not release data of the previous round."""

    async def go_on(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.send(Bind(1, 0, ALL, 0))

    evidence = evidence_of(office, tmp_path, breaks_off(plan), go_on, approved=(plan,))

    assert [chunk.round for chunk in evidence.chunks] == [0, 0, 0]
    assert isinstance(evidence.error, ProtocolError)


def test_a_download_that_broke_off_may_start_again(tmp_path: Path, office: Office, plan: Plan) -> None:
    """A stream that broke between an offer and its last chunk is no lie: the same step is offered again."""

    async def go_on(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.offered(plan, 1, value=1.0)
        await stream.send(Bind(1, 0, ALL, 0))
        await stream.chunks(3)
        await stream.send(Farewell(CoordinatorReason.ALL_RUNS_OVER, "over"))

    evidence = evidence_of(office, tmp_path, breaks_off(plan), go_on, approved=(plan,))

    assert isinstance(evidence.error, RefusedError)  # all is over, it says, in the middle of the run
    assert [chunk.round for chunk in evidence.chunks] == [0, 0, 0, 1, 1, 1]


def test_what_is_sent_again_is_the_same_to_the_byte(tmp_path: Path, office: Office, plan: Plan) -> None:
    """After a broken stream the upload goes on behind what arrived, from the kept vector, trained once."""

    async def begin(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.offered(plan, 0)
        await stream.send(Bind(0, 0, ALL, 0))
        await stream.chunks(3)
        await stream.send(Farewell(CoordinatorReason.SHUTTING_DOWN, "come again"))

    async def go_on(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.offered(plan, 0)
        await stream.send(Bind(0, 0, ALL, 1))
        await stream.chunks(2)
        await stream.send(Farewell(CoordinatorReason.ALL_RUNS_OVER, "over"))

    evidence = evidence_of(office, tmp_path, begin, go_on, approved=(plan,))

    assert isinstance(evidence.error, RefusedError)  # all is over, it says, in the middle of the run
    assert [chunk.index for chunk in evidence.chunks] == [0, 1, 2, 1, 2]
    assert evidence.chunks[1:3] == evidence.chunks[3:5]
    assert sum(isinstance(question, Train) for question in evidence.questions) == 1
    assert [facts["first_chunk"] for facts in evidence.events("contribution_released")] == [0, 1]


def test_a_void_attempt_repeats_the_same_step_without_training_again(
    tmp_path: Path, office: Office, plan: Plan
) -> None:
    """The next attempt at a step sends the same vector under the new number."""

    async def lie(stream: Stream) -> None:
        await stream.joined(plan)
        for attempt in range(3):
            await stream.offered(plan, 0, attempt)
            await stream.send(Bind(0, attempt, ALL, 0))
            await stream.chunks(3)
        await stream.send(Farewell(CoordinatorReason.ALL_RUNS_OVER, "over"))

    evidence = evidence_of(office, tmp_path, lie, approved=(plan,))

    assert [(chunk.attempt, chunk.index) for chunk in evidence.chunks] == [(a, i) for a in range(3) for i in range(3)]
    assert len({chunk.body for chunk in evidence.chunks if chunk.index == 0}) == 1
    assert sum(isinstance(question, Train) for question in evidence.questions) == 1


@pytest.mark.parametrize(
    "lie",
    ["Bind(0, 0, ('b', 'c'), 0)", "garbage"],
)
def test_a_lie_told_in_passing_is_still_refused(
    tmp_path: Path, office: Office, plan: Plan, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that lies and closes the stream at once is not called again, although it gets no reason."""
    monkeypatch.setattr(agent_module, "FIRST_WAIT_SECONDS", 0.01)

    async def lie_and_leave(stream: Stream) -> None:
        await stream.joined(plan)
        await stream.offered(plan, 0)
        await stream.send(b"\xff\xff" if lie == "garbage" else Bind(0, 0, ("b", "c"), 0))
        raise Stopped("hangs up")

    evidence = evidence_of(office, tmp_path, lie_and_leave, approved=(plan,))

    assert_nothing_left(evidence)
    assert isinstance(evidence.error, OperatorError)
    assert evidence.connections == 1
