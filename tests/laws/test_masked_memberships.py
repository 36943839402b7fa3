"""Sites that enter late and sites that are lost: masked or not, the run ends with the plain sum of its contributors."""

from __future__ import annotations

import asyncio
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from protos.plan.plan import Plan
from protos.wire.messages import Chunk, Ready, SiteMessage
from tests.for_each import in_turns
from tests.hostile.masking_federation import masked_plan
from tests.hostile.masking_network import Network
from tests.laws.masked_runs import SCHEDULES, decisions, reference, unmasked
from tests.rehearsal.made_up_time import play

pytestmark = pytest.mark.usefixtures("disk_without_waiting")


def contributors_of(network: Network, site: str = "a") -> dict[int, str]:
    """Who contributed to each round, as a site's own audit log says it."""
    records = network.sites[site].records("contribution_released")
    return {record["round"]: "".join(record["contributors"]) for record in records}


def draws_of(network: Network) -> dict[tuple[str, int], int]:
    """Which draw of each step every site trained last."""
    return {
        (name, number): resample for name, site in network.sites.items() for number, resample in site.trainer.trained
    }


@pytest.mark.parametrize(
    ("on_lost_site", "aggregate", "seed"), in_turns(product(["continue", "wait"], SCHEDULES), range(4))
)
def test_a_site_that_enters_later_contributes_from_then_on(
    tmp_path: Path, on_lost_site: str, aggregate: str, seed: int
) -> None:
    """A run that began without d takes it in with fresh keys, if plan and budgets allow it, masked and unmasked alike.
    A plan that waits keeps its first set."""
    schedule = {"aggregate": aggregate, "epochs": 6, "batches_per_epoch": 1}
    keys: dict[str, Any] = {"deadlines": {"join_seconds": 10.0}, "on_lost_site": on_lost_site}
    plan = masked_plan("abcd", parameters=17, schedule=schedule, **keys)

    async def play_with(plan: Plan, directory: Path) -> Network:
        random.seed(seed)
        network = Network(directory, plan, seed)
        for name in "abc":
            network.add(name, secure_aggregation="not-required", lost_site_budget=9)
        while not network.sites["a"].records("contribution_released"):
            await asyncio.sleep(1.0)
        await asyncio.sleep(network.order.uniform(0.0, 10.0))
        network.add("d", secure_aggregation="not-required", lost_site_budget=9)
        await network.finish()
        await network.close()
        return network

    async def scene() -> None:
        for version in (plan, unmasked(plan)):
            network = await play_with(version, tmp_path / version.secure_aggregation)
            sets = contributors_of(network)

            assert sets[0] == "abc"
            may_enter = on_lost_site == "continue"
            assert sorted(set(sets.values())) in ([["abc", "abcd"], ["abc"]] if may_enter else [["abc"]])
            assert network.vector().tobytes() == reference(plan, sets.__getitem__).tobytes()

    play(scene())


@pytest.mark.parametrize(
    ("masking", "aggregate", "seed"), in_turns(product(["masked", "unmasked"], SCHEDULES), range(4))
)
def test_going_on_without_a_lost_site_is_the_plain_sum_of_what_was_resampled(
    tmp_path: Path, masking: str, aggregate: str, seed: int
) -> None:
    """Where plan and budgets allow it the run goes on without e; all others make the same draw of the step, which
    follows from sets and attempts, and the result is the plain arithmetic of those draws."""
    schedule = {"aggregate": aggregate, "epochs": 4, "batches_per_epoch": 1}
    deadlines = {"grace_seconds": 30.0, "return_seconds": 60.0}
    plan = masked_plan("abcde", parameters=17, schedule=schedule, deadlines=deadlines, on_lost_site="continue")
    plan = plan if masking == "masked" else unmasked(plan)

    async def scene() -> None:
        random.seed(seed)
        network = Network(tmp_path, plan, seed)
        for name in plan.site_names:
            network.add(name, lost_site_budget=9, secure_aggregation="not-required")
        at_round, lost = network.order.randrange(3), asyncio.Event()

        def lose(site: str, message: SiteMessage) -> list[SiteMessage]:
            is_there = site == "e" and isinstance(message, Chunk | Ready) and message.round == at_round
            if is_there and (isinstance(message, Chunk) or network.order.random() < 0.3):
                network.cut("e")
                lost.set()
                return []
            return [message]

        network.meddle = lose
        await lost.wait()
        await network.sites["e"].stop()
        await network.finish()
        await network.close()
        sets = contributors_of(network)

        assert [sets[number] for number in range(4)] == ["abcde"] * at_round + ["abcd"] * (4 - at_round)
        draws = draws_of(network)
        assert all(len({draws[name, number] for name in "abcd"}) == 1 for number in range(4))
        assert network.vector().tobytes() == reference(plan, sets.__getitem__, draws).tobytes()
        for name in "abcd":
            assert len(network.sites[name].records("step_drawn_afresh")) <= 1
            assert network.sites[name].error is None

    play(scene())


@pytest.mark.parametrize("at_round", [2, 4], ids=["measured", "validation"])
@pytest.mark.parametrize("masking", ["masked", "unmasked"])
def test_what_a_site_measured_is_told_for_one_set_alone(tmp_path: Path, masking: str, at_round: int) -> None:
    """When e is lost in a round that measures, the others repeat the round without saying again what they measured:
    two sums of it over two sets would differ by e's own figures. The run goes on, and that round is not measured."""
    deadlines = {"grace_seconds": 30.0, "return_seconds": 60.0}
    schedule = {"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 1}
    keys: dict[str, Any] = {"checkpoint": "global", "on_lost_site": "continue"}
    plan = masked_plan("abcde", parameters=17, schedule=schedule, deadlines=deadlines, **keys)
    plan = plan if masking == "masked" else unmasked(plan)

    async def scene() -> None:
        network = Network(tmp_path, plan)
        for name in plan.site_names:
            network.add(name, lost_site_budget=9, secure_aggregation="not-required")
        lost = asyncio.Event()

        def lose(site: str, message: SiteMessage) -> list[SiteMessage]:
            if site == "e" and isinstance(message, Chunk) and message.round == at_round:
                network.cut("e")
                lost.set()
                return []
            return [message]

        network.meddle = lose
        await lost.wait()
        await network.sites["e"].stop()
        await network.finish()
        await network.close()

        assert [outcome.is_complete for outcome in network.engine.outcomes] == [True]
        sets, draws = contributors_of(network), draws_of(network)
        assert network.vector().tobytes() == reference(plan, sets.__getitem__, draws).tobytes()
        found = decisions(network)
        assert [number for number, _ in found["validation_curve"]] == [n for n in (1, 2, 3, 4) if n != at_round]

    play(scene())


def test_without_a_budget_a_lost_site_ends_the_run(tmp_path: Path) -> None:
    """A plan that would go on needs every hospital's own consent; the first refusal ends the run by name."""
    deadlines = {"grace_seconds": 30.0, "return_seconds": 60.0}
    plan = masked_plan("abcde", parameters=17, deadlines=deadlines, on_lost_site="continue")

    async def scene() -> None:
        network = Network(tmp_path, plan)
        for name in plan.site_names:
            network.add(name)
        network.meddle = lambda site, message: [] if site == "e" and isinstance(message, Chunk) else [message]
        await asyncio.sleep(60.0)
        await network.sites["e"].stop()
        network.cut("e")
        await network.finish()
        await network.close()

        (outcome,) = network.engine.outcomes
        assert "takes no further part (masking refused)" in outcome.reason
        assert not network.vector().any()

    play(scene())
