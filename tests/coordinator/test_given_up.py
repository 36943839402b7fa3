"""A connected site that sends nothing, in the whole coordinator: the others continue, and everybody is informed."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from coordinator.operations.status_lines import print_status
from coordinator.rounds.taken_out import MOST_LATE_ATTEMPTS
from protos.wire.messages import CoordinatorMessage, Join, SiteMessage
from tests.coordinator.in_memory import IDENTITIES, BehavingSite, Stage
from tests.rehearsal.made_up_time import play
from tests.rehearsal.study import NUMBERS, plan_with

PLAN = plan_with(IDENTITIES, rounds=5, changes={"quorum": 2, "on_lost_site": "continue"})
ROUNDS_WITHOUT = 3


class SilentSite(BehavingSite):
    """It joins, reads, and gives nothing."""

    def answer(self, message: CoordinatorMessage) -> list[SiteMessage]:
        """Of what an honest site would say only that it takes part."""
        return [answer for answer in super().answer(message) if isinstance(answer, Join)]


async def given_up(state: Path) -> Stage:
    """Three rounds are made; c was late in each attempt at the first one, and is here again."""
    stage = Stage(state, PLAN)
    stage.engine.start()
    silent = stage.connect(SilentSite("c"))
    for name in "ab":
        stage.connect(BehavingSite(name))
    for _ in range(MOST_LATE_ATTEMPTS):
        stage.deliver()
        await asyncio.sleep(PLAN.deadlines.contribute_seconds + 1)
        stage.cut(silent)
        silent = stage.connect(SilentSite("c"))
    while stage.engine.status()["run"]["rounds_made"] < ROUNDS_WITHOUT:
        for stream in list(stage.streams):
            stage._deliver_one(stream)
    return stage


def journal(state: Path) -> list[dict[str, Any]]:
    """The decisions, in order."""
    (path,) = (state / "runs").glob("*/journal.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_site_that_is_given_up_is_named_wherever_people_look(tmp_path: Path) -> None:
    """Status, its lines and the journal name the site, which is connected, and say how it comes in again."""

    async def scene() -> None:
        stage = await given_up(tmp_path)
        told = json.loads(json.dumps(stage.engine.status()))
        printed = io.StringIO()
        print_status(told | {"coordinator_certificate_days": 9}, Console(file=printed, width=160))

        assert [(site["joined"], site["given_up"]) for _, site in sorted(told["sites"].items())] == [
            (True, False),
            (True, False),
            (True, True),
        ]
        assert "c was missing in 3 attempts in a row" in printed.getvalue()
        assert "given up" in printed.getvalue()
        assert [entry["site"] for entry in told["happened"]["happenings"] if entry["kind"] == "given_up"] == ["c"]
        stage.engine.stop()

    play(scene())


def test_a_coordinator_that_is_started_again_lets_it_in_again(tmp_path: Path) -> None:
    """The site, well again, comes in; the result is what the journal says, and the record still tells of it."""

    async def scene() -> None:
        stage = await given_up(tmp_path)
        stage.engine.stop()
        again = Stage(tmp_path, PLAN)
        again.engine.start()
        assert not again.engine.status()["sites"]["c"]["given_up"]
        for stream in stage.streams[:2]:  # a and b
            again.connect(stream.site)
        again.connect(BehavingSite("c"))
        again.deliver()

        assert [outcome.is_complete for outcome in again.engine.outcomes] == [True]
        made = {entry["round"]: entry["sites"] for entry in journal(tmp_path) if entry["kind"] == "closed"}
        assert (made[ROUNDS_WITHOUT - 1], made[PLAN.rounds - 1]) == (["a", "b"], ["a", "b", "c"])
        wanted = sum(np.mean([NUMBERS[site] for site in sites]) for sites in made.values())
        np.testing.assert_array_equal(again.vector(PLAN), np.full(10, wanted, np.float32))
        happenings = again.records()[0]["happenings"]
        assert isinstance(happenings, list)
        assert [entry["site"] for entry in happenings if entry["kind"] == "given_up"] == ["c"]

    play(scene())
