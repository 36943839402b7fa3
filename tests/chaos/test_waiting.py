"""A run waits for a site without which others cannot return. These tests show how the waiting ends."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from coordinator.storage.journal import Entry, read_journal
from protos.plan.plan import Plan
from tests.chaos.in_process import Disk, Mortal, Results, plan_of, what_came_out
from tests.rehearsal.made_up_time import play

FIVE = ("ahus", "berlin", "cluj", "derby", "essen")
Act = Callable[[Mortal], Awaitable[None]]


@pytest.fixture(autouse=True)
def quiet() -> None:
    """The log's output is not tested here."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))


class Happening:
    """An event that happens once, when the coordinator's journal has taken a decision; time stands still meanwhile."""

    def __init__(self, network: Mortal, is_time: Callable[[Mortal], bool], act: Act) -> None:
        self._network, self._is_time, self._act = network, is_time, act
        self.task: asyncio.Task[None] | None = None

    def strike(self, owner: str, point: str) -> bool:
        """Nobody dies here; what happens comes next."""
        if self.task is None and point == "coordinator: after sync of journal" and self._is_time(self._network):
            self.task = asyncio.ensure_future(self._act(self._network))
        return False


def played(directory: Path, plan: Plan, is_time: Callable[[Mortal], bool], act: Act) -> tuple[dict[str, str], Mortal]:
    """Run a plan during an event. Return the results, empty if it was not completed, and the network."""
    found: list[tuple[dict[str, str], Mortal]] = []

    async def scene() -> None:
        with pytest.MonkeyPatch.context() as patch:
            results = Results(patch)
            directory.mkdir()
            random.seed(0)
            network = Mortal(directory, plan, Disk(patch, directory))
            happening = Happening(network, is_time, act)
            network.strikes = lambda owner, point: happening.strike(owner, point)
            for site in plan.site_names:
                network.add_site(site, lost_site_budget=2)
            async with asyncio.timeout(20_000):
                while network.is_down or not network.engine.finished.is_set():
                    await asyncio.sleep(1.0)
                assert happening.task is not None
                await happening.task
            await network.close()
            is_complete = record(network)["is_complete"]
            found.append((results.of | what_came_out(network) if is_complete else {}, network))

    play(scene())
    return found[0]


def record(network: Mortal) -> dict[str, Any]:
    """The run's record."""
    (path,) = (network.directory / "coordinator" / "runs").glob("*/record.json")
    return dict(json.loads(path.read_text()))


def journal(network: Mortal, kind: str) -> list[Entry]:
    """The entries of one kind."""
    (path,) = (network.directory / "coordinator" / "runs").glob("*/journal.jsonl")
    return [entry for entry in read_journal(path) if entry["kind"] == kind]


def a_plan(sites: tuple[str, ...] = FIVE, **changes: Any) -> Plan:
    """A run that continues without lost sites, with short graces."""
    keys: dict[str, Any] = {
        "secure_aggregation": "off",
        "on_lost_site": "continue",
        "quorum": 3,
        "deadlines": {"grace_seconds": 30.0, "return_seconds": 300.0},
        "snapshots": {"every_rounds": 10, "every_seconds": None},
    }
    return plan_of("fedavg", sites, **(keys | changes))


async def leave(network: Mortal, site: str) -> None:
    """A site's computer is switched off."""
    await network.sites[site].stop()
    network.cut(site)


def is_offered(*without: str) -> Callable[[Mortal], bool]:
    """Whether a third or later round was offered, for a set without these sites."""

    def is_time(network: Mortal) -> bool:
        offered = journal(network, "offered")
        return len(offered) > 2 and not set(without) & set(offered[-1]["sites"])

    return is_time


@pytest.mark.parametrize("comes_back", [True, False])
def test_a_lost_site_and_a_death_before_saving_wait_for_the_lost_one(tmp_path: Path, comes_back: bool) -> None:
    """The others continued without it.

    One of them stops before that was saved: nothing is offered until the lost one is back. If it does not return, the
    run ends with its name, and not with numbers from other steps.
    """
    seen: list[str] = []

    async def death(network: Mortal) -> None:
        network.kill("agent ahus")

    async def lose(network: Mortal) -> None:
        await leave(network, "essen")
        die = Happening(network, is_offered("essen"), death)
        network.strikes = die.strike
        while die.task is None:
            await asyncio.sleep(1.0)
        await asyncio.sleep(200.0)
        seen.append(network.engine.status()["run"]["phase"])
        if comes_back:
            network.sites["essen"].start()

    found, network = played(tmp_path / "lost", a_plan(), is_offered(), lose)

    assert seen == ["interrupted"]
    assert record(network)["is_complete"] == comes_back
    if comes_back:
        assert found
        assert journal(network, "back")
    else:
        assert record(network)["reason"] == "a site did not come back in time"
        assert record(network)["missing"] == ["essen"]
