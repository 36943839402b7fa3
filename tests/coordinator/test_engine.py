"""The coordinator's loop with honest sites, in simulated time and without a network."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coordinator.rounds.transfers import unseen_seconds
from coordinator.storage.run_record import sha256_of
from protos.plan.manifest import manifest_of
from protos.wire.messages import Announcement, Chunk, CoordinatorMessage, CoordinatorReason, Farewell, Join, SiteMessage
from tests.coordinator.in_memory import IDENTITIES, Stage, a_whole_run
from tests.rehearsal.study import MEAN, THREE_CHUNKS, BehavingSite, contribution, plan_with


@pytest.mark.parametrize("rounds", [1, 2, 7])
@pytest.mark.parametrize("aggregate", ["every-round", "every-epoch", "every-batch"])
@pytest.mark.parametrize("parameters", [10, THREE_CHUNKS])
async def test_a_run_ends_with_rounds_times_the_mean_change(
    tmp_path: Path, rounds: int, aggregate: str, parameters: int
) -> None:
    """After n rounds every parameter is exactly n times the mean of the sites' updates."""
    schedule = {"aggregate": aggregate, "epochs": rounds, "batches_per_epoch": 1}
    plan = plan_with(IDENTITIES, parameters=parameters, changes={"schedule": schedule})

    stage = await a_whole_run(tmp_path, plan, "abc")

    assert stage.engine.finished.is_set()
    assert [outcome.is_complete for outcome in stage.engine.outcomes] == [True]
    np.testing.assert_array_equal(stage.vector(plan), np.full(parameters, rounds * MEAN, np.float32))
    for stream in stage.streams:
        assert stream.site.farewell == Farewell(
            CoordinatorReason.ALL_RUNS_OVER, "all studies of this coordinator are over"
        )


async def test_runs_follow_one_another_on_the_same_streams(tmp_path: Path) -> None:
    """Three studies are run in order, each from its own start, and no site connects twice."""
    plans = [plan_with(IDENTITIES, study=f"study-{number}", rounds=number) for number in (1, 2, 3)]

    stage = Stage.started(tmp_path, *plans)
    sites = [BehavingSite(name) for name in "abc"]
    for site in sites:
        stage.connect(site)
    stage.deliver()

    assert len(stage.streams) == 3
    assert stage.engine.status()["runs_over"] == 3
    assert [plan.study for plan in sites[0].plans] == ["study-1", "study-2", "study-3"]
    for number, plan in enumerate(plans, start=1):
        np.testing.assert_array_equal(stage.vector(plan), np.full(10, number * MEAN, np.float32))


async def test_the_record_says_what_was_run_and_what_came_out(tmp_path: Path) -> None:
    """A finished run has its plan, its facts and its parameters, and no incomplete file."""
    plan = plan_with(IDENTITIES, rounds=2)

    stage = await a_whole_run(tmp_path, plan, "abc")

    (record,) = stage.records()
    (folder,) = (tmp_path / "runs").iterdir()
    names = ["parameters.safetensors", "plan.json", "record.json"]
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == names
    assert (folder / "plan.json").read_bytes() == plan.canonical
    wanted = {
        "study": "study", "method": "fedavg", "rounds": 2, "rounds_made": 2, "seed": 0, "masked": False,
        "is_complete": True, "missing": [], "parameters": 10, "plan_digest": plan.digest.hex(),
        "manifest_digest": manifest_of(plan).digest.hex(),
        "shared_parameters_sha256": sha256_of(stage.vector(plan)),
    }  # fmt: skip
    assert record | wanted == record


@pytest.mark.parametrize("arrived", [0, 1, 2])
async def test_a_broken_upload_goes_on_behind_what_has_arrived(tmp_path: Path, arrived: int) -> None:
    """A site that returns sends from the first chunk that the coordinator lacks."""
    plan = plan_with(IDENTITIES, parameters=THREE_CHUNKS, rounds=2)

    stage = Stage.started(tmp_path, plan, sites="ab")
    broken = stage.connect(BehavingSite("c", stops_after=arrived))
    stage.deliver()
    assert stage.engine.status()["run"]["rounds_made"] == 0

    stage.cut(broken)
    returned = BehavingSite("c")
    stage.connect(returned)
    stage.deliver()

    assert [(bind.round, bind.attempt, bind.first_chunk) for bind in returned.binds] == [(0, 0, arrived), (1, 0, 0)]
    np.testing.assert_array_equal(stage.vector(plan), np.full(THREE_CHUNKS, 2 * MEAN, np.float32))


@pytest.mark.parametrize("arrived", [0, 1, 4, 5])
async def test_parameters_are_sent_once(tmp_path: Path, arrived: int) -> None:
    """A site that returns gets only the chunks that it lacks. After a void attempt the others get none again."""
    plan = plan_with(IDENTITIES, parameters=THREE_CHUNKS, rounds=1, changes={"timing": {"grace_seconds": 10.0}})

    stage = Stage.started(tmp_path, plan)
    broken, other = stage.connect(BehavingSite("c")), stage.connect(BehavingSite("b", stops_after=0))
    stage.connect(BehavingSite("a"))
    while not broken.site._received or len(broken.site._arrived) < arrived:
        assert sum(stage._deliver_one(stream) for stream in stage.streams)
    stage.cut(broken)
    stage.deliver()
    await asyncio.sleep(11)  # the attempt is void
    stage.connect(broken.site)
    stage.deliver()

    attempts = [(offer.attempt, offer.first_chunk) for offer in broken.site.offers]
    assert attempts == [(0, 0)] * (arrived == 5) + [(1, arrived)]
    assert [(offer.attempt, offer.first_chunk) for offer in other.site.offers] == [(0, 0), (1, 5)]
    np.testing.assert_array_equal(stage.vector(plan), np.full(THREE_CHUNKS, MEAN, np.float32))


@pytest.mark.parametrize("keeps", ["its memory", "the state after the round", "the state before the round"])
async def test_a_site_that_has_sent_everything_needs_the_state_after_the_round(tmp_path: Path, keeps: str) -> None:
    """A trainer that lost the training of this round would train the next round from the wrong state."""
    saving = {"timing": {"save_every_rounds": 1, "save_every_seconds": None}}
    plan = plan_with(IDENTITIES, rounds=4, changes=saving)

    class Restarted(BehavingSite):
        """Its trainer was started again after its contribution to round 1."""

        def answer(self, message: CoordinatorMessage) -> list[SiteMessage]:
            """Join with what is left."""
            said = super().answer(message)
            if not isinstance(message, Announcement) or keeps == "its memory" or not self.offers:
                return said
            last = 2 if keeps == "the state after the round" else 1
            return [replace(one, next_round=None, saved=one.saved[: last + 1]) for one in said if isinstance(one, Join)]

    stage = Stage.started(tmp_path, plan, sites="a")
    slow = stage.connect(BehavingSite("b"))
    fast = stage.connect(Restarted("c"))
    while len(fast.site.binds) < 2 or fast.has_something:
        stage._deliver_one(fast)
        if slow.site.offers[-1:] == [] or slow.site.offers[-1].round == 0:
            stage._deliver_one(slow)
        stage._deliver_one(stage.streams[0])
    before = len(fast.site.offers)
    stage.cut(fast)
    again = stage.connect(fast.site)
    assert stage._deliver_one(again)  # it joins while the others still train
    stage.deliver()

    assert again.site.offers[before].round == (1 if keeps == "the state before the round" else 2)
    np.testing.assert_array_equal(stage.vector(plan), np.full(10, 4 * MEAN, np.float32))


async def test_a_newer_connection_takes_over(tmp_path: Path) -> None:
    """The older stream of a site is ended with a reason, and its end does not affect the newer one."""
    plan = plan_with(IDENTITIES)

    stage = Stage.started(tmp_path, plan)
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


async def test_a_site_that_misses_the_deadline_is_cut_off_and_may_come_back(tmp_path: Path) -> None:
    """The attempt becomes void, the same step is offered again, and the sum includes nothing twice."""
    deadlines = {"contribute_seconds": 50.0, "grace_seconds": 10.0}
    plan = plan_with(IDENTITIES, parameters=THREE_CHUNKS, rounds=2, changes={"timing": deadlines})

    stage = Stage.started(tmp_path, plan, sites="ab")
    silent = stage.connect(BehavingSite("c", stops_after=1))
    stage.deliver()
    await asyncio.sleep(60 + unseen_seconds(THREE_CHUNKS))  # as long to train and as long to send
    stage.deliver()
    assert not silent.is_ending
    await asyncio.sleep(41)
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


async def test_data_that_flow_extend_the_deadline(tmp_path: Path) -> None:
    """A line that needs nearly the whole time for each chunk makes no attempt void; one that stops does."""
    plan = plan_with(IDENTITIES, parameters=THREE_CHUNKS, rounds=2, changes={"timing": {"contribute_seconds": 50.0}})

    stage = Stage.started(tmp_path, plan, sites="ab")
    slow = stage.connect(BehavingSite("c", stops_after=0))
    stage.deliver()
    lines = []
    for index, body in enumerate(contribution(plan, slow.site.number)):
        await asyncio.sleep(90)
        stage.engine.received("c", Chunk(0, 0, index, body))
        lines.append(stage.engine.status()["sites"]["c"]["line"])
    stage.deliver()

    assert [outcome.is_complete for outcome in stage.engine.outcomes] == [True]
    assert stage.records()[0]["void_attempts"] == 0
    assert [line and (line["way"], line["seconds_left"]) for line in lines] == [("up", None), ("up", 26.0), None]
