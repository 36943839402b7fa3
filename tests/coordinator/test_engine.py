"""The coordinator's loop with sites that behave, in made-up time and without a network."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file

from coordinator.engine import Engine
from coordinator.record import sha256_of
from protos.manifest import manifest_of
from protos.messages import (
    Announcement,
    Chunk,
    CoordinatorMessage,
    CoordinatorReason,
    Done,
    Farewell,
    Hello,
    Join,
    MalformedMessage,
    Ready,
    Refusal,
    SiteReason,
)
from protos.plan import Plan
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import (
    MEAN,
    THREE_CHUNKS,
    BehavingSite,
    contribution,
    made_up_identities,
    parameter_chunks,
    plan_with,
)

IDENTITIES = made_up_identities()


class Stream:
    """A stream in memory: what the engine queues is delivered when the scene says so."""

    def __init__(self, site: BehavingSite) -> None:
        self.site = site
        self.is_ending = False
        self._queue: deque[CoordinatorMessage | Iterator[Chunk]] = deque()

    def send(self, message: CoordinatorMessage) -> None:
        """Queue a message."""
        if not self.is_ending:
            self._queue.append(message)

    def send_parameters(self, parameters: npt.NDArray[np.float32], round_number: int, attempt: int) -> None:
        """Queue the vector; as over a network, it is read later."""
        if not self.is_ending:
            self._queue.append(chunk for chunk in parameter_chunks(parameters, round_number, attempt))

    def end(self, reason: CoordinatorReason, detail: str) -> None:
        """Say why and end."""
        self.send(Farewell(reason, detail))
        self.is_ending = True  # what is queued afterwards is never sent

    def pop(self) -> CoordinatorMessage | None:
        """The next message on its way to the site."""
        while self._queue:
            first = self._queue[0]
            if not isinstance(first, Iterator):
                return self._queue.popleft()
            chunk = next(first, None)
            if chunk is not None:
                return chunk
            self._queue.popleft()
        return None


class Stage:
    """An engine, its sites, and the order in which messages arrive."""

    def __init__(self, state: Path, *plans: Plan, identities: Mapping[str, str] = IDENTITIES) -> None:
        self.state = state
        self.engine = Engine(
            plans=plans, state=state, identity_of=identities.get, clock=asyncio.get_running_loop().time
        )
        self.streams: list[Stream] = []

    def connect(self, site: BehavingSite) -> Stream:
        """Open a stream and say hello."""
        stream = Stream(site)
        self.streams.append(stream)
        self.engine.connected(site.name, stream)
        return stream

    def deliver(self) -> None:
        """Carry messages to and fro, one from each stream in turn, until nobody has more to say."""
        while sum(self._deliver_one(stream) for stream in list(self.streams)):
            pass

    def cut(self, stream: Stream) -> None:
        """The network between a site and the coordinator breaks."""
        self.streams.remove(stream)
        self.engine.disconnected(stream.site.name, stream)

    def records(self) -> list[dict[str, object]]:
        """What was written of each run, in order of their names."""
        return [json.loads(path.read_text()) for path in sorted((self.state / "runs").glob("*/record.json"))]

    def vector(self, plan: Plan) -> npt.NDArray[np.float32]:
        """A finished run's parameters as they lie on the disk."""
        (path,) = (self.state / "runs").glob(f"{plan.study}-v*/parameters.safetensors")
        tensors = load_file(path)
        return np.concatenate([tensors[tensor.name].ravel() for tensor in manifest_of(plan).tensors])

    def _deliver_one(self, stream: Stream) -> bool:
        message = stream.pop()
        if message is None:
            return False
        for answer in stream.site.answer(message):
            if not stream.is_ending:
                self.engine.received(stream.site.name, answer)
        return True


async def a_whole_run(state: Path, plan: Plan, order: str) -> Stage:
    """Sites connect in this order and run the plan to its end."""
    stage = Stage(state, plan)
    stage.engine.start()
    for name in order:
        stage.connect(BehavingSite(name))
    stage.deliver()
    return stage


@pytest.mark.parametrize("rounds", [1, 2, 7])
@pytest.mark.parametrize("aggregate", ["every-round", "every-epoch", "every-batch"])
@pytest.mark.parametrize("parameters", [10, THREE_CHUNKS])
def test_a_run_ends_with_rounds_times_the_mean_change(
    tmp_path: Path, rounds: int, aggregate: str, parameters: int
) -> None:
    """After n rounds every parameter is exactly n times the mean of the sites' changes."""
    schedule = {"aggregate": aggregate, "epochs": rounds, "batches_per_epoch": 1}
    plan = plan_with(IDENTITIES, parameters=parameters, changes={"schedule": schedule})

    async def scene() -> None:
        stage = await a_whole_run(tmp_path, plan, "abc")

        assert stage.engine.finished.is_set()
        assert [outcome.is_complete for outcome in stage.engine.outcomes] == [True]
        np.testing.assert_array_equal(stage.vector(plan), np.full(parameters, rounds * MEAN, np.float32))
        for stream in stage.streams:
            assert stream.site.farewell == Farewell(
                CoordinatorReason.ALL_RUNS_OVER, "all studies of this coordinator are over"
            )

    play(scene())


@pytest.mark.parametrize("order", ["abc", "acb", "bac", "bca", "cab", "cba"])
def test_the_order_of_arrival_does_not_matter(tmp_path: Path, order: str) -> None:
    """Sites may connect in any order; the record names the same parameters."""
    plan = plan_with(IDENTITIES)
    expected = sha256_of(np.full(10, 3 * MEAN, np.float32))

    async def scene() -> None:
        stage = await a_whole_run(tmp_path, plan, order)

        assert stage.records()[0]["shared_parameters_sha256"] == expected

    play(scene())


def test_runs_follow_one_another_on_the_same_streams(tmp_path: Path) -> None:
    """Three studies are run in order, each from its own start, and no site connects twice."""
    plans = [plan_with(IDENTITIES, study=f"study-{number}", rounds=number) for number in (1, 2, 3)]

    async def scene() -> None:
        stage = Stage(tmp_path, *plans)
        stage.engine.start()
        sites = [BehavingSite(name) for name in "abc"]
        for site in sites:
            stage.connect(site)
        stage.deliver()

        assert len(stage.streams) == 3
        assert stage.engine.status()["runs_over"] == 3
        assert [plan.study for plan in sites[0].plans] == ["study-1", "study-2", "study-3"]
        for number, plan in enumerate(plans, start=1):
            np.testing.assert_array_equal(stage.vector(plan), np.full(10, number * MEAN, np.float32))

    play(scene())


def test_the_record_says_what_was_run_and_what_came_out(tmp_path: Path) -> None:
    """A finished run leaves its plan, its facts and its parameters, and nothing half-written."""
    plan = plan_with(IDENTITIES, rounds=2)

    async def scene() -> None:
        stage = await a_whole_run(tmp_path, plan, "abc")

        (record,) = stage.records()
        (folder,) = (tmp_path / "runs").iterdir()
        names = ["journal.jsonl", "parameters.safetensors", "plan.json", "record.json"]
        assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == names
        assert (folder / "plan.json").read_bytes() == plan.canonical
        wanted = {
            "study": "study", "method": "fedavg", "rounds": 2, "rounds_made": 2, "seed": 0, "masked": False,
            "is_complete": True, "missing": [], "parameters": 10, "plan_digest": plan.digest.hex(),
            "manifest_digest": manifest_of(plan).digest.hex(),
            "shared_parameters_sha256": sha256_of(stage.vector(plan)),
        }  # fmt: skip
        assert record | wanted == record

    play(scene())


def test_a_late_site_contributes_from_the_next_round(tmp_path: Path) -> None:
    """Who joins after the deadline is not in the round under way, and is in the one after it."""
    plan = plan_with(IDENTITIES, rounds=2, changes={"quorum": 2, "deadlines": {"join_seconds": 60.0}})

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
        stage.connect(BehavingSite("a"))
        slow = stage.connect(BehavingSite("b", stops_after=0))
        stage.deliver()
        await asyncio.sleep(61)
        stage.deliver()
        late = BehavingSite("c")
        stage.connect(late)
        stage.deliver()
        assert late.binds == []  # the first round goes on without it

        stage.cut(slow)
        stage.connect(BehavingSite("b"))
        stage.deliver()

        assert [bind.sites for bind in late.binds] == [("a", "b", "c")]
        np.testing.assert_array_equal(stage.vector(plan), np.full(10, (1 + 2) / 2 + MEAN, np.float32))

    play(scene())


@pytest.mark.parametrize("arrived", [0, 1, 2])
def test_a_broken_upload_goes_on_behind_what_has_arrived(tmp_path: Path, arrived: int) -> None:
    """A site that comes back is told to send from the first chunk that the coordinator lacks."""
    plan = plan_with(IDENTITIES, parameters=THREE_CHUNKS, rounds=2)

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
        stage.connect(BehavingSite("a"))
        stage.connect(BehavingSite("b"))
        broken = stage.connect(BehavingSite("c", stops_after=arrived))
        stage.deliver()
        assert stage.engine.status()["run"]["rounds_made"] == 0

        stage.cut(broken)
        returned = BehavingSite("c")
        stage.connect(returned)
        stage.deliver()

        assert [(bind.round, bind.attempt, bind.first_chunk) for bind in returned.binds] == [(0, 0, arrived), (1, 0, 0)]
        np.testing.assert_array_equal(stage.vector(plan), np.full(THREE_CHUNKS, 2 * MEAN, np.float32))

    play(scene())


def test_a_newer_connection_takes_over(tmp_path: Path) -> None:
    """The older stream of a site is ended with a reason, and its end does not harm the newer one."""
    plan = plan_with(IDENTITIES)

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
        older = stage.connect(BehavingSite("c"))
        newer = stage.connect(BehavingSite("c"))
        stage.cut(older)
        stage.connect(BehavingSite("a"))
        stage.connect(BehavingSite("b"))
        stage.deliver()

        assert older.is_ending
        last = list(iter(older.pop, None))[-1]
        assert isinstance(last, Farewell)
        assert last.reason is CoordinatorReason.REPLACED
        assert len(newer.site.vectors) == 4
        np.testing.assert_array_equal(stage.vector(plan), np.full(10, 3 * MEAN, np.float32))

    play(scene())


@pytest.mark.parametrize("wrong", ["plan_digest", "manifest_digest"])
def test_a_site_that_agreed_to_something_else_is_not_admitted(tmp_path: Path, wrong: str) -> None:
    """A wrong digest ends the site's stream with the reason, and nothing is offered to it."""
    plan = plan_with(IDENTITIES)

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
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

    play(scene())


@pytest.mark.parametrize(
    ("registered", "reason"),
    [
        ({}, "the plan study lists c with another identity key"),
        ({"c": made_up_identities("d")["d"]}, "the plan study lists c with another identity key"),
        ({"d": made_up_identities("d")["d"]}, "the plan study does not list d"),
    ],
)
def test_only_the_identities_that_the_plan_lists_hear_of_it(
    tmp_path: Path, registered: dict[str, str], reason: str
) -> None:
    """A site with another identity key, or not in the list, is turned away without the plan."""
    plan = plan_with(IDENTITIES)

    async def scene() -> None:
        stage = Stage(tmp_path, plan, identities=registered)
        stage.engine.start()
        stream = stage.connect(BehavingSite("d" if "d" in registered else "c"))

        assert stream.pop() == Farewell(CoordinatorReason.NOT_ACCEPTED, reason)
        assert stream.pop() is None

    play(scene())


def test_a_refusal_before_the_start_leaves_the_others_their_run(tmp_path: Path) -> None:
    """Where the quorum allows it, a run begins without the site that declined."""
    plan = plan_with(IDENTITIES, changes={"quorum": 2})

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
        stage.connect(BehavingSite("a"))
        stage.connect(BehavingSite("b"))
        declining = stage.connect(BehavingSite("c"))
        announced = declining.pop()
        assert isinstance(announced, Announcement)
        stage.engine.received("c", Refusal(announced.run, SiteReason.POLICY_FORBIDS))
        stage.deliver()

        assert stage.engine.outcomes[0].is_complete
        np.testing.assert_array_equal(stage.vector(plan), np.full(10, 3 * 1.5, np.float32))

    play(scene())


def test_a_refusal_of_a_contributor_ends_the_run_and_says_whose(tmp_path: Path) -> None:
    """A site that stops in a round cannot be left out of its sum; the run ends and its record says why."""
    plan = plan_with(IDENTITIES)

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
        streams = [stage.connect(BehavingSite(name, stops_after=0)) for name in "abc"]
        stage.deliver()
        run = stage.engine.status()["run"]["run"]
        stage.engine.received("c", Refusal(run, SiteReason.VALUE_NOT_FINITE, "first"))
        stage.deliver()

        (record,) = stage.records()
        assert (record["is_complete"], record["missing"]) == (False, ["c"])
        assert record["reason"] == "c takes no further part (value not finite)"
        assert {stream.site.farewell.reason for stream in streams if stream.site.farewell} == {
            CoordinatorReason.RUN_STOPPED
        }
        assert stage.engine.finished.is_set()

    play(scene())


def test_a_run_that_too_few_join_in_time_ends(tmp_path: Path) -> None:
    """When the deadline to join passes below the quorum, the run ends and names who was missing."""
    plan = plan_with(IDENTITIES, changes={"deadlines": {"join_seconds": 100.0}})

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
        stage.connect(BehavingSite("a"))
        stage.deliver()
        await asyncio.sleep(99)
        assert not stage.engine.finished.is_set()
        await asyncio.sleep(2)

        (outcome,) = stage.engine.outcomes
        assert (outcome.is_complete, sorted(outcome.missing)) == (False, ["b", "c"])

    play(scene())


def test_a_site_that_misses_the_deadline_is_cut_off_and_may_come_back(tmp_path: Path) -> None:
    """The attempt becomes void, the same step is offered again, and the sum holds nothing twice."""
    deadlines = {"contribute_seconds": 50.0, "grace_seconds": 10.0, "return_seconds": 1000.0}
    plan = plan_with(IDENTITIES, parameters=THREE_CHUNKS, rounds=2, changes={"deadlines": deadlines})

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
        stage.connect(BehavingSite("a"))
        stage.connect(BehavingSite("b"))
        silent = stage.connect(BehavingSite("c", stops_after=1))
        stage.deliver()
        await asyncio.sleep(51)
        stage.deliver()
        assert silent.is_ending
        assert silent.site.farewell is not None
        assert not silent.site.farewell.reason.is_final

        stage.cut(silent)
        returned = BehavingSite("c")
        stage.connect(returned)
        stage.deliver()

        assert [(bind.round, bind.attempt, bind.first_chunk) for bind in returned.binds] == [(0, 1, 0), (1, 0, 0)]
        np.testing.assert_array_equal(stage.vector(plan), np.full(THREE_CHUNKS, 2 * MEAN, np.float32))

    play(scene())


def test_a_site_that_never_comes_back_ends_the_run(tmp_path: Path) -> None:
    """After grace and return have passed, the run ends; a subset that happened to arrive never counts."""
    deadlines = {"contribute_seconds": 50.0, "grace_seconds": 10.0, "return_seconds": 1000.0}
    plan = plan_with(IDENTITIES, changes={"deadlines": deadlines})

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
        stage.connect(BehavingSite("a"))
        stage.connect(BehavingSite("b"))
        gone = stage.connect(BehavingSite("c", stops_after=0))
        stage.deliver()
        stage.cut(gone)
        await asyncio.sleep(1009)
        assert not stage.engine.finished.is_set()
        await asyncio.sleep(3)

        (record,) = stage.records()
        assert (record["is_complete"], record["rounds_made"], record["missing"]) == (False, 0, ["c"])
        np.testing.assert_array_equal(stage.vector(plan), np.zeros(10, np.float32))

    play(scene())


def test_status_tells_who_is_there_and_how_far_the_run_is(tmp_path: Path) -> None:
    """The status names every listed site, the phase and the rounds made, and is JSON."""
    plan = plan_with(IDENTITIES)

    async def scene() -> None:
        stage = Stage(tmp_path, plan, plan_with(IDENTITIES, study="next"))
        stage.engine.start()
        stage.connect(BehavingSite("a"))
        stage.deliver()
        stage.connect(BehavingSite("b"))
        status = json.loads(json.dumps(stage.engine.status()))

        quiet = {"last_contact_seconds": None, "withdrawn": False, "revoked": False, "maintenance": None}
        assert status["sites"] == {
            "a": {"connected": True, "joined": True} | quiet,
            "b": {"connected": True, "joined": False} | quiet,
            "c": {"connected": False, "joined": False} | quiet,
        }
        assert (status["waits_for"], status["pace"]) == (["b", "c"], None)
        assert (status["run"]["phase"], status["run"]["rounds_made"], status["runs_waiting"]) == ("gathering", 0, 1)

    play(scene())


def test_a_site_that_connects_after_everything_is_told_so(tmp_path: Path) -> None:
    """When all runs are over, a stream is ended well instead of being left waiting."""

    async def scene() -> None:
        stage = await a_whole_run(tmp_path, plan_with(IDENTITIES), "abc")
        late = stage.connect(BehavingSite("c"))

        farewell = late.pop()
        assert isinstance(farewell, Farewell)
        assert farewell.reason is CoordinatorReason.ALL_RUNS_OVER

    play(scene())


def test_stopping_asks_every_site_to_come_back_later(tmp_path: Path) -> None:
    """A coordinator that is stopped says so with a reason that is not final."""

    async def scene() -> None:
        stage = Stage(tmp_path, plan_with(IDENTITIES))
        stage.engine.start()
        stream = stage.connect(BehavingSite("a"))
        stage.engine.stop()
        stage.deliver()

        assert stream.site.farewell is not None
        assert stream.site.farewell.reason is CoordinatorReason.SHUTTING_DOWN

    play(scene())


COLLECTING = {
    "a second greeting": [Hello(1, "x")],
    "a chunk that skips one": [Chunk(0, 0, 1, contribution(plan_with(IDENTITIES, parameters=THREE_CHUNKS), 6.0)[1])],
    "a chunk beyond the last": [Chunk(0, 0, 3, b"")],
    "a chunk that is too short": [Chunk(0, 0, 0, bytes(8))],
    "an empty chunk": [Chunk(0, 0, 0, b"")],
    "a chunk that is too long": [Chunk(0, 0, 0, bytes(4 * (1 << 17) + 16))],
    "a chunk of a later round": [Chunk(1, 0, 0, bytes(8))],
    "a chunk of the far future": [Chunk(1 << 30, 0, 0, bytes(8))],
    "the same chunk twice": 2 * [Chunk(0, 0, 0, contribution(plan_with(IDENTITIES, parameters=THREE_CHUNKS), 6.0)[0])],
    "a chunk after the last": [
        Chunk(0, 0, index, body)
        for index, body in enumerate([*contribution(plan_with(IDENTITIES, parameters=THREE_CHUNKS), 6.0), b""])
    ],
}


@pytest.mark.parametrize("name", COLLECTING)
def test_a_message_out_of_place_is_refused_and_the_sum_is_right(tmp_path: Path, name: str) -> None:
    """What no honest site sends is refused; the site may come back, and the sum is as if nothing had been."""
    plan = plan_with(IDENTITIES, parameters=THREE_CHUNKS, rounds=2)

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
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

    play(scene())


@pytest.mark.parametrize("kind", [Ready, Done, "later chunk", "first chunk"], ids=str)
def test_nothing_counts_before_joining(tmp_path: Path, kind: object) -> None:
    """A site that has not agreed to the plan cannot take part in it; what it sends all the same is refused."""

    async def scene() -> None:
        stage = Stage(tmp_path, plan_with(IDENTITIES))
        stage.engine.start()
        stage.connect(BehavingSite("a"))
        early = {
            Ready: Ready(0, 0),
            Done: Done(stage.engine.status()["run"]["run"]),
            "later chunk": Chunk(1, 0, 0, bytes(48)),
            "first chunk": Chunk(0, 0, 0, bytes(48)),
        }

        with pytest.raises(MalformedMessage):
            stage.engine.received("a", early[kind])

    play(scene())


def test_a_site_outside_the_cohort_cannot_contribute(tmp_path: Path) -> None:
    """A chunk for the round under way, from a site that entered too late for it, is refused."""
    plan = plan_with(IDENTITIES, rounds=2, changes={"quorum": 2, "deadlines": {"join_seconds": 60.0}})

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
        stage.connect(BehavingSite("a", stops_after=0))
        stage.connect(BehavingSite("b"))
        stage.deliver()
        await asyncio.sleep(61)
        stage.deliver()
        stage.connect(BehavingSite("c"))
        stage.deliver()

        with pytest.raises(MalformedMessage, match="out of order"):
            stage.engine.received("c", Chunk(0, 0, 0, contribution(plan, 6.0)[0]))

    play(scene())


def test_contributions_whose_checks_do_not_add_up_void_the_attempt(tmp_path: Path) -> None:
    """A vector that is shifted or not what the site encoded is noticed, and the step comes again."""
    plan = plan_with(IDENTITIES, rounds=1)

    async def scene() -> None:
        stage = Stage(tmp_path, plan)
        stage.engine.start()
        stage.connect(BehavingSite("a"))
        stage.connect(BehavingSite("b"))
        liar = stage.connect(BehavingSite("c", stops_after=0))
        stage.deliver()
        body = bytearray(contribution(plan, 6.0)[0])
        body[0] = 2
        stage.engine.received("c", Chunk(0, 0, 0, bytes(body)))
        stage.deliver()

        assert [(bind.round, bind.attempt) for bind in liar.site.binds] == [(0, 0), (0, 1)]
        np.testing.assert_array_equal(stage.vector(plan), np.full(10, MEAN, np.float32))

    play(scene())


def test_offers_carry_the_parameters_of_their_round(tmp_path: Path) -> None:
    """Each site receives, round by round, exactly what the sum has made of the last one."""

    async def scene() -> None:
        stage = await a_whole_run(tmp_path, plan_with(IDENTITIES, rounds=4), "abc")

        for stream in stage.streams:
            assert [float(vector[0]) for vector in stream.site.vectors] == [0.0, 3.0, 6.0, 9.0, 12.0]
            assert all((vector == vector[0]).all() for vector in stream.site.vectors)

    play(scene())
