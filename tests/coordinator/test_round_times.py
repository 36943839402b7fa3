"""The pace of a run depends only on undisturbed rounds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from coordinator.rounds.round_times import RoundTimes
from coordinator.rounds.run_status import pace_facts
from tests.coordinator.in_memory import IDENTITIES, Stage
from tests.rehearsal.study import plan_with


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


async def test_the_end_follows_from_the_pace_and_the_rounds_that_are_left(tmp_path: Path) -> None:
    """Two of ten rounds took a minute each, the third began 20 seconds ago. While a site is away no end is known."""
    stage = Stage.started(tmp_path, plan_with(IDENTITIES, rounds=10), sites="abc")
    while any(stage._deliver_one(stream) for stream in stage.streams if not stream.site.offers):
        pass
    run, seconds, noon = stage.engine._run, 0.0, datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
    assert run is not None
    run.times, run.rounds_made = RoundTimes(lambda: seconds), 2
    assert pace_facts(run, noon) is None
    for number in range(3):
        run.times.offered(number, 0)
        seconds += 60 if number < 2 else 20
        if number < 2:
            run.times.closed()

    found = pace_facts(run, noon)

    assert found is not None
    assert (found["seconds_a_round"], found["ends"]) == (60, (noon + timedelta(seconds=7 * 60 + 40)).isoformat())
    away = pace_facts(run, noon, is_whole=False)
    assert away is not None
    assert away["ends"] is None
