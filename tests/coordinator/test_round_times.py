"""Pace and end of a run depend only on its rounds, not on restarts, returns or repetitions."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from coordinator.rounds.engine import Engine
from coordinator.rounds.phases import Gathering, Over
from coordinator.rounds.round_times import RoundTimes
from protos.wire.messages import Bind
from tests.coordinator.in_memory import IDENTITIES, BehavingSite, Stage, Stream, coordinator_log
from tests.for_each import for_each
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import plan_with

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
ROUND_SECONDS = 60.0
ROUNDS = 12


class Night:
    """A run of rounds of 60 seconds, with what can happen in a night."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        saving = {"save_every_rounds": int(self.generator.integers(1, 5)), "save_every_seconds": None}
        self.folder, self.plan = folder, plan_with(IDENTITIES, rounds=ROUNDS, changes={"timing": saving})
        self.sites = {name: BehavingSite(name) for name in "abc"}
        self.happened: list[str] = []
        self.worked: set[tuple[int, int]] = set()
        self.looks = 0
        self.began = 0.0
        self.begin()

    def begin(self) -> None:
        """Start the coordinator, for the first time or once more, and connect the sites."""
        clock = asyncio.get_running_loop().time
        self.stage = Stage(self.folder)
        self.stage.engine = Engine(
            plans=[self.plan], log=coordinator_log(self.folder, self.now), identity_of=IDENTITIES.get, clock=clock
        )
        self.stage.engine.start()
        for site in self.sites.values():
            self.stage.connect(site)

    @staticmethod
    def now() -> datetime:
        """Wall time, which moves with the loop's."""
        return NOON + timedelta(seconds=asyncio.get_running_loop().time())

    async def play(self) -> None:
        """Deliver every message; between them somebody sleeps, leaves or restarts."""
        for _ in range(3000):
            if self.stage.engine._run is None:
                return
            await asyncio.sleep(0.001)  # lets deadlines pass
            for stream in [stream for stream in self.stage.streams if stream.is_ending]:
                self.stage.cut(stream)
                self.stage.connect(stream.site)
            for stream in list(self.stage.streams):
                if await self._deliver(stream) and self.generator.random() < 0.02:
                    await self._interrupt()
                    break
            self.look()
        raise AssertionError(f"the run does not end after {self.happened}")

    async def _deliver(self, stream: Stream) -> bool:
        message = stream.pop()
        if message is None:
            return False
        if isinstance(message, Bind) and (step := (message.round, message.attempt)) not in self.worked:
            self.worked.add(step)
            assert self.stage.engine._run is not None
            state = self.stage.engine._run.state
            assert not isinstance(state, Gathering | Over)
            attempt = state.attempt
            if step == (attempt.round, attempt.number):  # a void attempt takes no time
                await asyncio.sleep(ROUND_SECONDS)
        for answer in stream.site.answer(message):
            if not stream.is_ending:
                self.stage.engine.received(stream.site.name, answer)
        return True

    async def _interrupt(self) -> None:
        kind = str(self.generator.choice(["away", "restart", "returned"]))
        self.happened.append(kind)
        away = float(self.generator.uniform(1, 8 * 3600))
        if kind == "restart":
            self.stage.engine.stop()
            await asyncio.sleep(away)
            self.begin()
            return
        stream = self.stage.streams[int(self.generator.integers(len(self.stage.streams)))]
        self.stage.cut(stream)
        await asyncio.sleep(away)
        if kind == "returned":  # it has lost its newest round, so that the run goes back
            del stream.site.offers[-1:]
        self.stage.connect(stream.site)

    def look(self) -> None:
        """The report of this moment is true."""
        status = self.stage.engine.status()
        run, pace = status["run"], status["pace"]
        if run is None or pace is None:
            assert run is None or run["rounds_made"] == 0 or "restart" in self.happened or "returned" in self.happened
            return
        self.looks += 1
        assert pace["seconds_a_round"] == pytest.approx(ROUND_SECONDS, abs=0.5)
        if pace["ends"] is not None:
            left = (datetime.fromisoformat(pace["ends"]) - self.now()).total_seconds()
            rounds_left = run["rounds"] - run["rounds_made"]
            assert left >= -1.0  # to the second
            assert (rounds_left - 1) * ROUND_SECONDS - 1.0 <= left <= rounds_left * ROUND_SECONDS + 1.0


@for_each("seed", range(12))
def test_pace_and_end_are_true_after_any_night(tmp_path: Path, seed: int) -> None:
    """A round takes a minute, before and after every interruption, and the end lies where these minutes end."""

    async def scene() -> Night:
        night = Night(tmp_path, seed)
        await night.play()
        return night

    night = play(scene())

    assert night.looks > ROUNDS


def test_a_disturbed_attempt_is_no_measure() -> None:
    """A site is away for an hour in the middle of an attempt; a repeated attempt begins with its own offer."""
    seconds = 1000.0
    times = RoundTimes(lambda: seconds)
    times.offered(0, 0)
    seconds += 20
    assert times.under_way == 20
    times.disturbed()
    seconds += 3600
    times.offered(0, 0)  # again, to the site that came back
    times.closed()
    times.offered(1, 0)
    seconds += 5
    times.offered(1, 1)
    seconds += 7
    times.closed()

    assert times.newest == (7,)
