"""The coordinator's loop refuses sites with another agreement, unexpected messages and false sums."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protos.numbers.chunk_layout import CHUNK_PARAMETERS
from protos.plan.manifest import manifest_of
from protos.wire.messages import (
    Announcement,
    Chunk,
    CoordinatorReason,
    Done,
    Farewell,
    Hello,
    Join,
    MalformedMessage,
    Refusal,
    SiteReason,
)
from tests.coordinator.in_memory import IDENTITIES, Stage
from tests.rehearsal.study import MEAN, THREE_CHUNKS, BehavingSite, contribution, made_up_identities, plan_with


@pytest.mark.parametrize("wrong", ["plan_digest", "manifest_digest"])
async def test_a_site_that_agreed_to_something_else_is_not_admitted(tmp_path: Path, wrong: str) -> None:
    """A wrong digest ends the site's stream with the reason, and nothing is offered to it."""
    plan = plan_with(IDENTITIES)

    stage = Stage.started(tmp_path, plan)
    stream = stage.connect(BehavingSite("c"))
    announced = stream.pop()
    assert isinstance(announced, Announcement)
    digests = {"plan_digest": plan.digest, "manifest_digest": manifest_of(plan).digest} | {wrong: bytes(32)}

    stage.engine.received("c", Join(announced.run, digests["plan_digest"], digests["manifest_digest"], 0))

    farewell = stream.pop()
    assert isinstance(farewell, Farewell)
    assert farewell.reason is CoordinatorReason.NOT_ACCEPTED
    assert stream.pop() is None
    assert not stage.engine.status()["sites"]["c"]["joined"]


@pytest.mark.parametrize(
    ("registered", "reason"),
    [
        ({}, "the plan study lists c with another identity key"),
        ({"c": made_up_identities("d")["d"]}, "the plan study lists c with another identity key"),
        ({"d": made_up_identities("d")["d"]}, "the plan study does not list d"),
    ],
)
async def test_only_the_identities_that_the_plan_lists_hear_of_it(
    tmp_path: Path, registered: dict[str, str], reason: str
) -> None:
    """A site with another identity key, or not in the list, is turned away without the plan."""
    plan = plan_with(IDENTITIES)

    stage = Stage.started(tmp_path, plan, identities=registered)
    stream = stage.connect(BehavingSite("d" if "d" in registered else "c"))

    assert stream.pop() == Farewell(CoordinatorReason.NOT_ACCEPTED, reason)
    assert stream.pop() is None


@pytest.mark.parametrize("reason", [SiteReason.VALUE_NOT_FINITE, SiteReason.DATA_UNFIT])
async def test_a_refusal_of_a_contributor_ends_the_run_and_says_whose(tmp_path: Path, reason: SiteReason) -> None:
    """A site that stops in a round cannot be excluded from its sum. The run ends and its record gives the reason."""
    plan = plan_with(IDENTITIES)

    stage = Stage.started(tmp_path, plan)
    streams = [stage.connect(BehavingSite(name, stops_after=0)) for name in "abc"]
    stage.deliver()
    run = stage.engine.status()["run"]["run"]
    stage.engine.received("c", Refusal(run, reason, "first"))
    stage.deliver()

    (record,) = stage.records()
    assert (record["is_complete"], record["missing"]) == (False, ["c"])
    assert record["reason"] == f"c takes no further part ({reason.name.lower().replace('_', ' ')})"
    assert {stream.site.farewell.reason for stream in streams if stream.site.farewell} == {
        CoordinatorReason.RUN_STOPPED
    }
    assert stage.engine.finished.is_set()


COLLECTING = {
    "a second greeting": [Hello(1, "x")],
    "a chunk that skips one": [Chunk(0, 0, 1, contribution(plan_with(IDENTITIES, parameters=THREE_CHUNKS), 6.0)[1])],
    "a chunk beyond the last": [Chunk(0, 0, 3, b"")],
    "a chunk that is too short": [Chunk(0, 0, 0, bytes(8))],
    "an empty chunk": [Chunk(0, 0, 0, b"")],
    "a chunk that is too long": [Chunk(0, 0, 0, bytes(4 * CHUNK_PARAMETERS + 16))],
    "a chunk of a later round": [Chunk(1, 0, 0, bytes(8))],
    "a chunk of the far future": [Chunk(1 << 30, 0, 0, bytes(8))],
    "the same chunk twice": 2 * [Chunk(0, 0, 0, contribution(plan_with(IDENTITIES, parameters=THREE_CHUNKS), 6.0)[0])],
    "a chunk after the last": [
        Chunk(0, 0, index, body)
        for index, body in enumerate([*contribution(plan_with(IDENTITIES, parameters=THREE_CHUNKS), 6.0), b""])
    ],
}


@pytest.mark.parametrize("name", COLLECTING)
async def test_a_message_out_of_place_is_refused_and_the_sum_is_right(tmp_path: Path, name: str) -> None:
    """A message that no honest site sends is refused. The site may reconnect, and the sum is unaffected."""
    plan = plan_with(IDENTITIES, parameters=THREE_CHUNKS, rounds=2)

    stage = Stage.started(tmp_path, plan)
    stage.connect(BehavingSite("a", stops_after=2))
    stage.connect(BehavingSite("b"))
    hostile = stage.connect(BehavingSite("c", stops_after=0))
    stage.deliver()
    *before, last = COLLECTING[name]
    for message in before:
        stage.engine.received("c", message)
    with pytest.raises(MalformedMessage):
        stage.engine.received("c", last)
    stage.cut(hostile)
    stage.connect(BehavingSite("c"))
    stage.cut(stage.streams[0])
    stage.connect(BehavingSite("a"))
    stage.deliver()

    np.testing.assert_array_equal(stage.vector(plan), np.full(THREE_CHUNKS, 2 * MEAN, np.float32))


@pytest.mark.parametrize("kind", [Done, "later chunk", "first chunk"], ids=str)
async def test_nothing_counts_before_joining(tmp_path: Path, kind: object) -> None:
    """A site that has not agreed to the plan cannot take part in it; what it sends all the same is refused."""
    stage = Stage.started(tmp_path, plan_with(IDENTITIES), sites="a")
    early = {
        Done: Done(stage.engine.status()["run"]["run"]),
        "later chunk": Chunk(1, 0, 0, bytes(48)),
        "first chunk": Chunk(0, 0, 0, bytes(48)),
    }

    with pytest.raises(MalformedMessage):
        stage.engine.received("a", early[kind])


async def test_contributions_whose_checks_do_not_add_up_void_the_attempt(tmp_path: Path) -> None:
    """A vector that is shifted or differs from the site's encoding is detected, and the step is repeated."""
    plan = plan_with(IDENTITIES, rounds=1)

    stage = Stage.started(tmp_path, plan, sites="ab")
    liar = stage.connect(BehavingSite("c", stops_after=0))
    stage.deliver()
    body = bytearray(contribution(plan, 6.0)[0])
    body[0] = 2
    stage.engine.received("c", Chunk(0, 0, 0, bytes(body)))
    stage.deliver()

    assert [(bind.round, bind.attempt) for bind in liar.site.binds] == [(0, 0), (0, 1)]
    np.testing.assert_array_equal(stage.vector(plan), np.full(10, MEAN, np.float32))
