"""The coordinator's status as people read it: in `coordinator status`, and in the bar on a terminal."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from coordinator.commands.status_lines import line_of_a_round, print_status, span
from coordinator.rounds.run_status import pace_facts
from coordinator.rounds.transfers import RoundTimes
from protos.plan.manifest import manifest_of
from tests.coordinator.in_memory import IDENTITIES, BehavingSite, Stage
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import plan_with

NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def _status_in_round(tmp_path: Path, made: int) -> dict[str, Any]:
    told: dict[str, Any] = {}

    async def scene() -> None:
        stage = Stage.started(tmp_path, plan_with(IDENTITIES, rounds=10))
        streams = {name: stage.connect(BehavingSite(name)) for name in "abc"}
        while stage.engine.status()["run"]["rounds_made"] < made:
            for stream in list(stage.streams):
                stage._deliver_one(stream)
        run = stage.engine._run
        assert run is not None
        run.times = RoundTimes(asyncio.get_running_loop().time)
        run.times._seconds.extend([60.0] * made)
        for name in "abc":
            stage.engine.saw(name)
        await asyncio.sleep(90)
        pace = pace_facts(run, NOON)
        stage.cut(streams["b"])
        told.update(
            json.loads(json.dumps(stage.engine.status() | {"pace": pace, "real_pace": stage.engine.status()["pace"]}))
        )

    play(scene())
    return told


def printed(answer: dict[str, Any]) -> str:
    """The words of the command, in a wide window."""
    out = io.StringIO()
    print_status(answer, Console(file=out, width=160))
    return out.getvalue()


def test_status_answers_what_is_asked_at_night(tmp_path: Path) -> None:
    """How far, how fast, until when, who is waited for, who was heard of when, and what expires."""
    answer = _status_in_round(tmp_path, 4)
    answer["coordinator_certificate_days"] = 3.25
    for days, site in enumerate(answer["sites"].values()):
        site["certificate_days"] = 20.0 * days

    text = printed(answer)

    assert "round 4 of 10" in text
    assert "A round takes 1 min; ends about 2026-05-01T12:06:00+00:00, in 6 min" in text
    assert (answer["run"]["phase"], answer["real_pace"]["ends"]) == ("training", None)  # b has left
    assert "Waits for: " in text
    assert "b" in text.partition("Waits for: ")[2].partition("\n")[0]
    assert "3.2 days left" in text
    assert text.count("2 min ago") == 3
    assert ("no time left" in text, "20 days left" in text, "40 days left" in text) == (True, True, True)


@pytest.mark.parametrize(("way", "left", "words"), [("down", None, "parameters"), ("up", 96.0, "250 kbit/s, 2 min")])
def test_it_tells_whose_line_is_slow(tmp_path: Path, way: str, left: float | None, words: str) -> None:
    """Only for a site that the run waits for, because others may be as slow as they like."""
    line = {"way": way, "bytes": 1e6, "of_bytes": 4e6, "kilobits_per_second": 250.0, "seconds_left": left}
    answer = _status_in_round(tmp_path, 4)
    for site in answer["sites"].values():
        site["line"] = line

    told = [text for text in printed(answer).splitlines() if "1.0 of 4.0 MB" in text]

    assert [text.partition(" ")[0] for text in told] == answer["waits_for"] == ["b"]
    assert words in told[0]


@pytest.mark.parametrize(("parameters", "kilobits"), [(1000, "0.27"), (5_000_000, "35")])
def test_a_check_tells_the_bytes_of_a_round_and_the_slowest_line(parameters: int, kilobits: str) -> None:
    """A chunk of parameters has two minutes, and one of a contribution the time of the plan."""
    plan = plan_with(IDENTITIES, parameters=parameters)

    told = line_of_a_round(plan, manifest_of(plan))

    assert told.startswith(f"a round has {4e-6 * parameters:.3g} MB to each site and ")
    assert told.endswith(f"{kilobits} kbit/s")


def test_after_the_end_it_tells_who_has_not_heard() -> None:
    """Without a run there is nothing to count; who is still waited for is named."""
    answer = {"run": None, "runs_over": 1, "runs_waiting": 0, "sites": {}, "yet_to_hear_of_the_end": ["c"]}

    assert "not informed yet: c" in printed(answer)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.25 s"), (59, "59 s"), (61, "1 min"), (3599, "1 h 0 min"), (7500, "2 h 5 min"), (2e6, "23 d 4 h")],
)
def test_a_length_of_time_is_told_in_the_units_that_matter(seconds: float, words: str) -> None:
    """A person at night reads two units at most."""
    assert span(seconds) == words


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
