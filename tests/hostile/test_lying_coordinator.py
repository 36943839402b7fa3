"""A coordinator that lies to the real gate: the site sends nothing, records and reports the reason, and stops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.errors import OperatorError, ProtocolError, RefusedError
from protos.numbers.chunk_layout import Layout
from protos.numbers.fixed_point import FixedPoint
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.codec import encode_coordinator_message, encode_site_message
from protos.wire.messages import (
    Bind,
    Chunk,
    CoordinatorMessage,
    CoordinatorReason,
    Done,
    Farewell,
    Finish,
    Hello,
    Join,
    KeySessionOpen,
    Offer,
    Refusal,
    SiteReason,
    Stage,
)
from protos.wire.positions import parameters_digest, position
from site_agent.trainer_socket import Failed, Train
from tests.federation import clear_plan
from tests.rehearsal.study import THREE_CHUNKS, offer, parameter_chunks
from tests.scripted import Scripted, Step, begun, offered, scripted

ALL = ("a", "b", "c")
BIND = Bind(0, 0, ALL, 0)
OVER = Farewell(CoordinatorReason.ALL_RUNS_OVER, "over")
COME_AGAIN = Farewell(CoordinatorReason.SHUTTING_DOWN, "come again")
CHUNKS = [Chunk] * 3


@pytest.fixture
def plan() -> Plan:
    """The hospital's approval: three rounds of 600,000 numbers in the clear."""
    return clear_plan(parameters=THREE_CHUNKS)


def zeros(count: int = THREE_CHUNKS, value: float = 0.0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Parameters."""
    return np.full(count, value, np.float32)


def finish(number: int, vector: Any, layers: bytes = b"") -> list[CoordinatorMessage]:
    """A result in all its parts."""
    return [Finish(number, parameters_digest(vector), layers), *parameter_chunks(vector, number)]


def _assert_refused(site: Scripted, chunks: int = 0) -> None:
    assert isinstance(site.error, ProtocolError), site.error
    (record,) = site.records("coordinator_refused")
    assert record["reason"]
    assert record["reason"] in site.error.what
    assert site.connections == 1
    assert len(site.chunks) == len(site.records("contribution_released")) == chunks
    refusals = [message for message in site.said if isinstance(message, Refusal)]
    assert [(one.reason, one.tensor) for one in refusals] in ([], [(SiteReason.COORDINATOR_MISBEHAVED, "")])


def _assert_nothing_left(site: Scripted) -> None:
    assert site.chunks == []
    assert site.records("contribution_released") == []


def trainings(site: Scripted) -> int:
    """How often the trainer was asked to train."""
    return sum(isinstance(question, Train) for question in site.trainer.questions)


def test_an_honest_coordinator_gets_what_was_agreed(tmp_path: Path, plan: Plan) -> None:
    """If nobody lies, each round's chunks are sent once, each after its audit record, and under the agreed digests."""
    rounds = [step for number in range(3) for step in (*offered(plan, number), Bind(number, 0, ALL, 0), *CHUNKS)]

    site = scripted(tmp_path, [*begun(plan), *rounds, *finish(3, zeros(value=3.0)), Done, OVER], approved=(plan,))

    assert site.error is None
    assert isinstance(site.said[0], Hello)
    assert site.said[1] == Join(plan.run_name, plan.digest, manifest_of(plan).digest, 0)
    assert [(chunk.round, chunk.index) for chunk in site.chunks] == [(r, i) for r in range(3) for i in range(3)]
    one, layout = int(FixedPoint(8.0, 3).scale), Layout(THREE_CHUNKS, 0)
    for chunk in site.chunks:
        assert set(layout.updates(chunk.body, chunk.index)) == {one}
    assert [facts["event"] for facts in site.records()] == [
        "run_joined", *3 * ["contribution_released"], "run_finished",
    ]  # fmt: skip


# Lies about a round

DIGEST = parameters_digest(zeros())
GOOD = parameter_chunks(zeros(), 0)
OFFER = Offer(0, 0, DIGEST)
REFUSED_FAREWELL = encode_coordinator_message(Farewell(CoordinatorReason.NOT_ACCEPTED, "XYZ"))
BEFORE_A_RUN: dict[str, Sequence[Step]] = {
    "an offer": [OFFER],
    "a chunk": [GOOD[0]],
    "a bind": [BIND],
    "a result": [Finish(3, DIGEST)],
    "bytes that are no message": [b"\xff\xff\xff"],
    "an empty message": [b""],
    "a site's own message": [encode_site_message(Hello(1, "x"))],
    "a farewell with control characters": [REFUSED_FAREWELL.replace(b"XYZ", b"\x1b[2")],
    "a farewell with a line break": [REFUSED_FAREWELL.replace(b"XYZ", b"a\nb")],
    "a farewell for no known reason": [
        encode_coordinator_message(Farewell(CoordinatorReason.SHUTTING_DOWN, "")).replace(b"\x08\x06", b"\x08\x63")
    ],
}
AFTER_JOINING: dict[str, Sequence[Step]] = {
    "a result before any round": finish(3, zeros()),
    "garbage": [b"\x01garbage"],
    "a chunk that was not announced": [GOOD[0]],
    "a round behind chunks that never came": [replace(OFFER, first_chunk=5)],
    "a round the plan does not have": [Offer(3, 0, DIGEST)],
    "other parameters than the digest says": [OFFER, *parameter_chunks(zeros(value=1.0), 0)],
    "chunks in another order": [OFFER, GOOD[1]],
    "a chunk twice": [OFFER, GOOD[0], GOOD[0]],
    "a chunk of another round": [OFFER, Chunk(1, 0, 0, GOOD[0].body)],
    "a chunk of another attempt": [OFFER, Chunk(0, 1, 0, GOOD[0].body)],
    "a chunk that is too short": [OFFER, Chunk(0, 0, 0, GOOD[0].body[:-4])],
    "a chunk that is too long": [OFFER, Chunk(0, 0, 0, GOOD[0].body + bytes(4))],
    "an empty chunk": [OFFER, Chunk(0, 0, 0, b"")],
    "a chunk after the last": [*offer(zeros(), 0), Chunk(0, 0, 3, bytes(4))],
    "a bind before the offer": [BIND],
    "a bind before the parameters": [OFFER, BIND],
    "a result before the last round": [Finish(2, DIGEST)],
    "keys that the plan does not ask for": [KeySessionOpen(1, ALL)],
}
AFTER_AN_OFFER: dict[str, Sequence[Step]] = {
    "a bind without this site": [Bind(0, 0, ("b", "c"), 0)],
    "a bind without another site": [Bind(0, 0, ("a", "b"), 0)],
    "a bind with a site nobody listed": [Bind(0, 0, ("a", "b", "c", "d"), 0)],
    "a bind for another attempt": [Bind(0, 1, ALL, 0)],
    "a bind for another round": [Bind(1, 0, ALL, 0)],
    "a bind whose sites are not in order": [
        encode_coordinator_message(BIND).replace(b"\x1a\x01a\x1a\x01b", b"\x1a\x01b\x1a\x01a")
    ],
    "other parameters for the same round": offer(zeros(value=9.0), 0, 1),
    "the same parameters from the middle": [replace(OFFER, attempt=1, first_chunk=4)],
    "the parameters of this round for the next one": [Offer(1, 0, DIGEST, first_chunk=5)],
}
ROUND_LIES: dict[str, Callable[[Plan], list[Step]]] = {
    **{f"{name} before a run": lambda plan, lie=lie: [*lie] for name, lie in BEFORE_A_RUN.items()},
    **{f"{name}, in a run": lambda plan, lie=lie: [*begun(plan), *lie] for name, lie in AFTER_JOINING.items()},
    **{
        f"{name}, in a round": lambda plan, lie=lie: [*begun(plan), *offered(plan), *lie]
        for name, lie in AFTER_AN_OFFER.items()
    },
}


@pytest.mark.parametrize("name", ROUND_LIES)
def test_a_lie_is_refused_with_a_record_and_nothing_is_sent(tmp_path: Path, plan: Plan, name: str) -> None:
    """Whatever breaks the protocol stops this site: the audit log has the reason, and no chunk leaves."""
    _assert_refused(scripted(tmp_path, ROUND_LIES[name](plan), approved=(plan,)))


def test_a_masked_plan_is_not_trained_in_the_clear(tmp_path: Path) -> None:
    """If the plan asks for masking, a round before the sites agreed on keys is refused."""
    plan = clear_plan(masking={"required": True})

    _assert_refused(scripted(tmp_path, [*begun(plan), *offered(plan), BIND], approved=(plan,)))


@pytest.mark.parametrize("lie", [b"\xff\xff", Bind(0, 0, ("b", "c"), 0)])
def test_a_lie_told_in_passing_is_still_refused(tmp_path: Path, plan: Plan, lie: Step) -> None:
    """A coordinator that lies and closes the stream at once is not called again, although it gets no reason."""
    site = scripted(tmp_path, [*begun(plan), *offered(plan), lie, None], approved=(plan,))

    _assert_nothing_left(site)
    assert isinstance(site.error, OperatorError)
    assert site.connections == 1


# Streams that break and attempts that are repeated


def _breaks_off(plan: Plan) -> list[Step]:
    (second, first_chunk, *_) = offered(plan, 1)
    return [*begun(plan), *offered(plan), BIND, *CHUNKS, second, first_chunk, COME_AGAIN]


def test_what_was_built_for_one_round_never_leaves_in_another(tmp_path: Path, plan: Plan) -> None:
    """A bind for a round whose parameters never arrived completely does not release data of the previous round."""
    site = scripted(tmp_path, _breaks_off(plan), [*begun(plan), Bind(1, 0, ALL, 0)], approved=(plan,))

    assert [chunk.round for chunk in site.chunks] == [0, 0, 0]
    assert isinstance(site.error, ProtocolError)


@pytest.mark.parametrize("first", [0, 1])
def test_a_download_that_broke_off_may_start_again_or_go_on(tmp_path: Path, plan: Plan, first: int) -> None:
    """A stream that broke between an offer and its last chunk is no lie: the same step is offered again."""
    announced, *chunks = offered(plan, 1, attempt=1)
    assert isinstance(announced, Offer)
    rest = [replace(announced, first_chunk=first), *chunks[first:]]
    go_on = [*begun(plan), *rest, Bind(1, 1, ALL, 0), *CHUNKS, OVER]

    site = scripted(tmp_path, _breaks_off(plan), go_on, approved=(plan,))

    assert isinstance(site.error, RefusedError)  # all is over, it says, in the middle of the run
    assert [chunk.round for chunk in site.chunks] == [0, 0, 0, 1, 1, 1]
    joined = [message for message in site.said if isinstance(message, Join)]
    assert [message.received_chunks for message in joined] == [0, 1]
    assert joined[1].received == position(plan.run_name, announced)


def test_parameters_that_a_site_has_are_not_loaded_again(tmp_path: Path, plan: Plan) -> None:
    """A repeated attempt without any chunk gets the contribution of the one training, and so does a new stream."""
    whole = replace(OFFER, first_chunk=5)
    begin = [*begun(plan), *offered(plan), replace(whole, attempt=1), Bind(0, 1, ALL, 0), *CHUNKS, COME_AGAIN]
    go_on = [*begun(plan), replace(whole, attempt=2), Bind(0, 2, ALL, 0), *CHUNKS, OVER]

    site = scripted(tmp_path, begin, go_on, approved=(plan,))

    assert isinstance(site.error, RefusedError)
    assert [chunk.attempt for chunk in site.chunks] == [1, 1, 1, 2, 2, 2]
    assert trainings(site) == 1


def test_what_is_sent_again_is_the_same_to_the_byte(tmp_path: Path, plan: Plan) -> None:
    """After a broken stream the upload goes on behind what arrived, from the kept vector, trained once."""
    begin = [*begun(plan), *offered(plan), BIND, *CHUNKS, COME_AGAIN]

    site = scripted(
        tmp_path, begin, [*begun(plan), *offered(plan), Bind(0, 0, ALL, 1), Chunk, Chunk, OVER], approved=(plan,)
    )

    assert isinstance(site.error, RefusedError)  # all is over, it says, in the middle of the run
    assert [chunk.index for chunk in site.chunks] == [0, 1, 2, 1, 2]
    assert site.chunks[1:3] == site.chunks[3:5]
    assert trainings(site) == 1
    assert [facts["first_chunk"] for facts in site.records("contribution_released")] == [0, 1]


def test_a_final_farewell_stops_the_site_and_another_one_brings_it_back(tmp_path: Path) -> None:
    """After a coordinator restarts, the site connects again. After a refusal it does not, and the status is 77."""
    refused = [Farewell(CoordinatorReason.NOT_ACCEPTED, "no")]

    site = scripted(tmp_path, [COME_AGAIN], [COME_AGAIN], refused)

    assert site.connections == 3
    assert isinstance(site.error, RefusedError)
    assert site.error.exit_status == 77


# Lies about stages, layers and results

NOTHING, ZEROS = zeros(0), zeros(10)
CHAIN: dict[str, Any] = {"architecture": {"name": "dense", "hidden": [2, 2]}, "columns": ["x"], "outputs": 1}
SCHEDULE: dict[str, Any] = {"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 1}
PLANS = {
    "plain": clear_plan(schedule=SCHEDULE),
    "measuring": clear_plan(checkpoint="global", schedule=SCHEDULE | {"epochs": 1}),
    "probing": clear_plan(method={"name": "player-fl"}, schedule=SCHEDULE, **CHAIN),
}  # fmt: skip
FIRST_LAYER = manifest_of(PLANS["probing"]).initial_parameters(0)[:4]
PROBE, TRAINING, VALIDATION = Stage.PROBE, Stage.TRAINING, Stage.VALIDATION


def asked(
    number: int, stage: Stage, vector: Any = ZEROS, layers: bytes = b"", best: int | None = None
) -> list[CoordinatorMessage]:
    """A round in all its parts, from the offer to the contributors."""
    first = Offer(number, 0, parameters_digest(vector), stage, layers, best)
    return [first, *parameter_chunks(vector, number), Bind(number, 0, ALL, 0)]


OF_NO_STAGE = encode_coordinator_message(Offer(0, 0, bytes(32), Stage.STATISTICS)).replace(b"\x20\x03", b"\x20\x06")
# The plan, the steps that are answered, and the lie.
STAGE_LIES: dict[str, tuple[str, list[list[Any]], list[Any]]] = {
    "a stage that this version does not have": ("plain", [], [OF_NO_STAGE]),
    "half of the layers": ("plain", [], asked(0, TRAINING, ZEROS[:3], b"\x01")),
    "layers with the whole vector": ("plain", [], asked(0, TRAINING, ZEROS, b"\x01")),
    "parameters with the probe": ("probing", [], asked(0, PROBE, FIRST_LAYER)),
}


def following(plan: Plan, honest: list[list[Any]], *last: Any) -> list[Step]:
    """Steps to which the site sends a chunk each, and what follows."""
    return [*begun(plan), *(step for messages in honest for step in (*messages, Chunk)), *last]


@pytest.mark.parametrize("name", STAGE_LIES)
def test_what_is_asked_out_of_turn_is_not_answered(tmp_path: Path, name: str) -> None:
    """The site stops at the lie and records it. It sent only agreed data before, and nothing afterwards."""
    kind, honest, lie = STAGE_LIES[name]

    site = scripted(tmp_path, following(PLANS[kind], honest, *lie), approved=(PLANS[kind],))

    _assert_refused(site, len(honest))
    assert isinstance(site.said[-1], Refusal)


# Trainers that hand out what must not leave


@pytest.mark.parametrize(("tensor", "named"), [("", ""), ("second", "second"), ("patient 4711 Jane Doe", "")])
def test_a_trainer_that_fails_stops_the_site_with_its_reason(
    tmp_path: Path, plan: Plan, tensor: str, named: str
) -> None:
    """A failure of the trainer becomes a refusal with a reason of a closed list and at most the name of a tensor."""
    failed = Failed(SiteReason.DATA_UNFIT, 78, tensor)

    site = scripted(tmp_path, [*begun(plan), *offered(plan)], approved=(plan,), fails=lambda: failed)

    _assert_nothing_left(site)
    assert site.said[-1] == Refusal(plan.run_name, SiteReason.DATA_UNFIT, named)
    assert isinstance(site.error, OperatorError)


def test_a_full_disk_of_the_trainer_does_not_end_the_run_for_all(tmp_path: Path, plan: Plan) -> None:
    """An error that an operator can correct is no refusal: the site ends with 1 and returns, and no site must stop."""
    failed = Failed(SiteReason.TRAINER_FAILED, 1)

    site = scripted(tmp_path, [*begun(plan), *offered(plan)], approved=(plan,), fails=lambda: failed)

    _assert_nothing_left(site)
    assert not any(isinstance(message, Refusal) for message in site.said)
    assert site.records("participation_ended") == []
    assert isinstance(site.error, OperatorError)
    assert site.error.exit_status == 1


def test_a_byte_too_many_does_not_leave(tmp_path: Path) -> None:
    """Whatever the trainer hands out beyond what was agreed stops this site, and the coordinator is not blamed."""
    plan = PLANS["measuring"]

    site = scripted(tmp_path, following(plan, [], *asked(0, TRAINING)), approved=(plan,), too_much=b"x")

    assert site.chunks == []
    assert isinstance(site.error, OperatorError)
    assert site.records("coordinator_refused") == []
    assert isinstance(site.said[-1], Refusal)
    assert site.said[-1].reason is SiteReason.TRAINER_FAILED
