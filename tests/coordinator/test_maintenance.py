"""During an announced absence a site does not count as lost, everybody is informed, and nobody waits for ever."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from coordinator.rounds.absences import LONGEST_SECONDS, Windows, excused_until
from coordinator.rounds.phases import (
    Attempt,
    CloseRound,
    Collecting,
    Completed,
    Finishing,
    Gathering,
    Interrupted,
    Joined,
    Left,
    Over,
    Terms,
    TimePassed,
    Training,
    VoidRound,
)
from coordinator.rounds.round import advance
from coordinator.storage.history import History
from protos.errors import ConfigurationError, UsageError
from protos.plan.schedules import Deadlines
from site_agent.gate.announced_absence import FILE, keep_window, kept_window, window_from, window_seconds
from tests.coordinator.in_memory import IDENTITIES, BehavingSite, Stage
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import MEAN, plan_with

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
SITES = frozenset({"ahus", "berlin", "cluj"})
DEADLINES = Deadlines(join_seconds=1000, contribute_seconds=3600, grace_seconds=60, return_seconds=300)


def terms(**changes: object) -> Terms:
    """A masked run of three sites in which cluj may be away from second 100 to second 8000."""
    keys = {"on_lost_site": "wait", "away": {"cluj": (100.0, 8000.0)}} | changes
    return Terms(
        sites=SITES,
        quorum=2,
        rounds=3,
        binds_early=False,
        is_masked=True,
        deadlines=DEADLINES,
        **keys,  # type: ignore[arg-type]
    )


STEP = Attempt(round=1, number=0, bound=SITES, present=SITES, agreed=SITES, key_session=1)
WORKING = [
    Training(attempt=STEP, deadline=3700, latest=3700),
    Collecting(attempt=STEP, deadline=3700, latest=3700),
    Interrupted(attempt=STEP, deadline=400),
]


@pytest.mark.parametrize("state", WORKING, ids=lambda state: type(state).__name__)
@pytest.mark.parametrize("on_lost_site", ["wait", "continue"])
def test_who_is_away_in_its_window_is_waited_for(state: Training | Interrupted, on_lost_site: str) -> None:
    """No deadline ends anything before the absence and its grace period are over. Then all is as usual."""
    run = terms(on_lost_site=on_lost_site)
    left, effects = advance(run, state, Left("cluj"), 200.0)
    assert effects == ()

    for now in (261.0, 600.0, 4000.0, 7999.0, 8059.0):
        left, effects = advance(run, left, TimePassed(), now)
        assert (type(left), effects) == (type(state), ())

    after, effects = advance(run, left, TimePassed(), 8061.0)
    assert type(after) is not type(state) or effects != ()


def test_a_site_that_is_back_in_its_window_has_its_time(tmp_path: Path) -> None:
    """Back after hours it gets the whole of the time for a contribution, and the round closes."""
    run = terms()
    state, _ = advance(run, Collecting(attempt=STEP, deadline=3700, latest=3700), Left("cluj"), 200.0)
    state, _ = advance(run, state, TimePassed(), 300.0)
    for site in ("ahus", "berlin"):
        state, _ = advance(run, state, Completed(site), 310.0)

    state, effects = advance(run, state, Joined("cluj", key_session=1), 7000.0)
    assert isinstance(state, Collecting)
    assert state.deadline > 7000.0 + 60
    assert len(effects) == 2
    _, effects = advance(run, state, Completed("cluj"), 7100.0)
    assert isinstance(effects[0], CloseRound)


def test_who_is_away_without_a_word_is_lost_as_ever() -> None:
    """A window is its own site's alone, and only while it lasts."""
    for now, site in ((200.0, "berlin"), (10.0, "cluj"), (8000.0, "cluj")):
        state, _ = advance(terms(), Training(attempt=STEP, deadline=1e9, latest=1e9), Left(site), now)
        assert isinstance(state, Training)
        if now == 10.0:
            state, _ = advance(terms(), state, Joined(site, key_session=1), 30.0)
            continue
        state, effects = advance(terms(), state, TimePassed(), now + 61.0)
        assert isinstance(state, Interrupted)
        assert effects == (VoidRound(1, 0, frozenset({site})),)


def test_gathering_and_the_end_wait_as_well() -> None:
    """A site in its window is waited for before the first round, and for taking in the result."""
    gathering = Gathering(joined=SITES - {"cluj"}, deadline=1000.0)
    state, effects = advance(terms(), gathering, TimePassed(), 1001.0)
    assert (state, effects) == (Gathering(joined=SITES - {"cluj"}, deadline=8060.0), ())

    finishing = Finishing(attempt=STEP, done=SITES - {"cluj"}, deadline=1000.0)
    state, effects = advance(terms(), finishing, TimePassed(), 1001.0)
    assert (type(state), effects) == (Finishing, ())
    state, _ = advance(terms(), state, TimePassed(), 8061.0)
    assert isinstance(state, Over)


@pytest.mark.parametrize("jump", [-3600, 0, 3600])
def test_a_window_counts_on_a_clock_that_never_jumps(jump: int) -> None:
    """It was read on the wall's clock when it was reported; when that jumps afterwards, its end stays where it was."""
    wall, clock = [NOON], [500.0]
    windows = Windows(clock=lambda: clock[0], now=lambda: wall[0])
    begins = int(NOON.timestamp()) + 60

    assert windows.take("cluj", begins, begins + 600)
    wall[0] += timedelta(seconds=jump)

    assert windows.on_clock() == {"cluj": (560.0, 1160.0)}
    assert not windows.take("cluj", begins, begins + 600)  # no news
    assert windows.facts("cluj") == {"from": "2026-05-01T12:01+00:00", "until": "2026-05-01T12:11+00:00"}
    clock[0] = 1161.0
    assert windows.facts("cluj") is None
    assert excused_until(terms(away=windows.on_clock()), SITES, clock[0]) is None


def test_nobody_holds_a_study_for_ever() -> None:
    """A window is cut at the longest length from its start, however often it is sent; a cancelled one is removed."""
    windows = Windows(clock=lambda: 0.0, now=lambda: NOON)
    now = int(NOON.timestamp())

    assert windows.take("cluj", now, now + 10**9)
    assert windows.on_clock()["cluj"][1] == LONGEST_SECONDS
    assert not windows.take("cluj", now, now + 10**9)
    assert windows.take("cluj", 0, 0)
    assert windows.on_clock() == {}
    assert not windows.take("berlin", now - 100, now)  # over
    assert not windows.take("berlin", now + 10**9, now + 10**9 + 5)  # years away


def test_a_window_outlives_the_coordinator() -> None:
    """The reports are in the journal, the newest of each site."""
    history = History()
    for begins in (5, 7):
        history.take({"kind": "maintenance", "site": "cluj", "begins": begins, "ends": 9})

    assert history.away == {"cluj": (7, 9)}
    assert [entry["kind"] for entry in history.told] == ["maintenance", "maintenance"]


def test_a_window_is_kept_at_the_site(tmp_path: Path) -> None:
    """It comes back from disk as it was given, none is 0 and 0, and a file that says something else is refused."""
    assert window_seconds(tmp_path) == (0, 0)
    window = window_from("2026-05-01T22:00+02:00", "2026-05-02T06:00+02:00", NOON)

    keep_window(tmp_path, window)
    assert kept_window(tmp_path) == window
    assert window_seconds(tmp_path) == (int(window.begins.timestamp()), int(window.begins.timestamp()) + 8 * 3600)
    keep_window(tmp_path, None)
    assert window_seconds(tmp_path) == (0, 0)
    (tmp_path / FILE).write_text('{"from": "soon"}')
    with pytest.raises(ConfigurationError):
        window_seconds(tmp_path)


@pytest.mark.parametrize(
    ("begins", "ends"),
    [
        ("soon", "later"),
        ("2026-05-02T12:00+00:00", "2026-05-02T11:00+00:00"),
        ("2026-04-30T12:00+00:00", "2026-04-30T13:00+00:00"),
        ("2026-05-02T12:00+00:00", "2026-06-02T12:00+00:00"),
        ("2027-05-02T12:00+00:00", "2027-05-02T13:00+00:00"),
    ],
)
def test_a_window_that_nobody_would_wait_for_is_refused(begins: str, ends: str) -> None:
    """No time, no length, over already, or longer or later than the coordinator believes."""
    with pytest.raises(UsageError):
        window_from(begins, ends, NOON)


@pytest.mark.parametrize("announced", ["in a round", "never", "and cancelled"])
def test_a_window_that_is_announced_in_mid_run_counts_at_once(tmp_path: Path, announced: str) -> None:
    """Told while a round is under way it holds for that round: its site is waited for, and the run ends whole."""
    deadlines = {"grace_seconds": 30.0, "return_seconds": 300.0, "contribute_seconds": 600.0}
    plan = plan_with(IDENTITIES, changes={"deadlines": deadlines})

    async def scene() -> None:
        stage, begins = Stage(tmp_path, plan), int(datetime.now(UTC).timestamp())
        stage.engine.start()
        streams = {name: stage.connect(BehavingSite(name)) for name in "abc"}
        while stage.engine.status()["run"]["rounds_made"] < 1:
            for stream in list(stage.streams):
                stage._deliver_one(stream)
        if announced != "never":
            stage.engine.away("c", begins, begins + 7200)
        if announced == "and cancelled":
            stage.engine.away("c", 0, 0)
        stage.cut(streams["c"])
        stage.deliver()
        await asyncio.sleep(5000)

        if announced != "in a round":
            (record,) = stage.records()
            assert (record["is_complete"], record["missing"]) == (False, ["c"])
            return
        status = stage.engine.status()
        assert (status["waits_for"], status["happened"]["void_attempts"]) == (["c"], 0)
        assert status["sites"]["c"]["maintenance"] is not None
        stage.connect(streams["c"].site)
        stage.deliver()
        (record,) = stage.records()
        assert (record["is_complete"], record["missing"]) == (True, [])
        np.testing.assert_array_equal(stage.vector(plan), np.full(10, 3 * MEAN, np.float32))

    play(scene())
