"""Masking is no mode of the mathematics: one plan ends in the same bits with and without it.

Real agents, gates and ledgers, and the real engine, in made-up time; only trainers and lines are made up.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.course import begin_course, follow, layers_at, layers_of_result
from protos.architecture import TensorSpec
from protos.exchange import Exchange, Exchanges, stage_at
from protos.manifest import Manifest, largest_weight, manifest_of
from protos.messages import Chunk, Ready, SiteMessage, Stage
from protos.plan import Plan
from protos.server_rules import apply_rule, begin_rule
from protos.sums import Sums
from tests.hostile.masking_federation import Vector, change_of, encoded, masked_plan, measured_by, rows_of
from tests.hostile.masking_network import Network
from tests.protos.examples import COMPANIONS, METHODS, plan_of_method
from tests.rehearsal.made_up_time import play

NAMES = tuple(method["name"] for method in METHODS)
SCHEDULES = ("every-batch", "every-epoch", "every-round")
Scene = Callable[[Network], Coroutine[Any, Any, None]]


@pytest.fixture(autouse=True)
def disk_without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No law here is about power cuts in the middle of a write."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(os, "fdatasync", lambda file: None)


def a_plan(seed: int, aggregate: str = "every-round", **changes: Any) -> Plan:
    """A masked plan for three to seven sites; sites, weights and seed follow from the number."""
    count = 3 + seed % 5
    schedule = {"aggregate": aggregate, "epochs": 2, "batches_per_epoch": 2}
    keys: dict[str, Any] = {"schedule": schedule, "seed": seed}
    return masked_plan("abcdefg"[:count], parameters=17, **(keys | changes))


def unmasked(plan: Plan) -> Plan:
    """The same plan without masking."""
    return plan.model_copy(update={"secure_aggregation": "off"})


async def to_the_end(directory: Path, plan: Plan, seed: int, scene: Scene | None = None, **policy: Any) -> Network:
    """Play a plan with all its sites, started in a drawn order, while `scene` meddles."""
    random.seed(seed)  # the agents' waits before they connect again
    network = Network(directory, plan, seed)
    names = list(plan.site_names)
    network.order.shuffle(names)
    for name in names:
        network.add(name, **({"secure_aggregation": "not-required"} | policy))
    if scene is not None:
        await scene(network)
    await network.finish()
    errors = {name: site.error for name, site in network.sites.items() if site.error is not None}
    assert errors == {}
    await network.close()
    assert [outcome.reason for outcome in network.engine.outcomes] == ["all rounds were made"]
    return network


def reference(
    plan: Plan, contributors: Callable[[int], str], redraws: dict[tuple[str, int], int] | None = None
) -> Vector:
    """What a run has to end in, without any message: plain integers in the plainest order."""
    manifest = manifest_of(plan)
    exchanges, course = Exchanges(plan, manifest), begin_course(plan, manifest)
    parameters = manifest.initial_parameters(plan.seed)
    state = begin_rule(plan.ingredients.server_rule, parameters.size)
    number = 0
    while (stage := stage_at(plan, number, course.training_rounds)) is not None:
        exchange = exchanges.of(number, stage, layers_at(plan, course, number))
        sums = summed(plan, exchange, number, contributors(number), parameters, redraws or {})
        if stage is Stage.TRAINING:
            apply_rule(plan, manifest, sums, parameters, state)
        course = follow(plan, manifest, course, number, sums)
        number += 1
    return picked(manifest, exchanges.result(layers_of_result(course)), parameters)


def summed(
    plan: Plan, exchange: Exchange, number: int, sites: str, parameters: Vector, redraws: dict[tuple[str, int], int]
) -> Sums:
    """The sums of one round over these sites."""
    received = picked(manifest_of(plan), exchange.up, parameters)
    totals, changes = dict.fromkeys((scalar.name for scalar in exchange.scalars), 0), []
    for site in sites:
        redraw = redraws.get((site, number), 0)
        rows = rows_of(site) / largest_weight(plan) if plan.weighting.name == "rows" else 1.0
        changes.append(encoded(plan, change_of(site, number, redraw, received), rows))
        for scalar, value in zip(exchange.scalars, measured_by(site, number, exchange).values(), strict=True):
            totals[scalar.name] += 0 if redraw and scalar.occasion.travels_once else value
    changed = np.sum(changes, axis=0, dtype=np.int32)
    return Sums(exchange=exchange, contributors=len(sites), changes=changed, scalars=totals)


def picked(manifest: Manifest, tensors: tuple[TensorSpec, ...], parameters: Vector) -> Vector:
    """These tensors' numbers of all the manifest's."""
    views = manifest.views(parameters)
    return np.concatenate([np.empty(0, np.float32), *(views[tensor.name].ravel() for tensor in tensors)])


SMALL = {"name": "dense", "hidden": [3, 2]}
MEASURING: dict[str, Any] = {
    "checkpoint": "global",
    "gain": "sums",
    "early_stopping": {"signal": "global", "patience": 1},
}


def keys_of(method: str, measures: bool, weighting: str) -> dict[str, Any]:
    """What a plan of a method says; measuring as far as the method can bear it."""
    small = {} if "architecture" in COMPANIONS.get(method, {}) else {"architecture": SMALL}
    written = plan_of_method({"name": method}, **small).model_dump(mode="json")
    keys = {key: written[key] for key in ("method", "architecture", "columns", "outputs", "optimiser")}
    measuring = {key: MEASURING[key] for key in MEASURING if measures and CANNOT.get(method) != key}
    weights = {"name": "rows", "largest_rows": 128} if weighting == "rows" else {"name": "equal"}
    return keys | measuring | {"weighting": weights}


# A layer that waits cannot have its last round taken away.
CANNOT = {"fedlama": "early_stopping"}
REFUSED = {("fedrep", "every-batch"), ("scaffold", "rows"), ("local", "measuring")}


@pytest.mark.parametrize("measures", [False, True], ids=["plain", "measuring"])
@pytest.mark.parametrize("weighting", ["equal", "rows"])
@pytest.mark.parametrize("aggregate", ["every-batch", "every-epoch"])
@pytest.mark.parametrize("method", NAMES)
def test_masked_and_unmasked_runs_end_in_identical_bits(
    tmp_path: Path, method: str, aggregate: str, weighting: str, measures: bool
) -> None:
    """For every method, schedule, weighting and order of arrival, with rounds that measure and without."""
    if {(method, aggregate), (method, weighting), (method, "measuring" if measures else "")} & REFUSED:
        pytest.skip("the method cannot be planned so")
    seed = NAMES.index(method) + measures
    schedule = {"aggregate": aggregate, "epochs": 4, "batches_per_epoch": 2}
    plan = a_plan(seed, schedule=schedule, **keys_of(method, measures, weighting))

    async def scene() -> None:
        masked = await to_the_end(tmp_path / "masked", plan, seed)
        plain = await to_the_end(tmp_path / "plain", unmasked(plan), seed + 1000)

        everyone = "".join(plan.site_names)
        assert masked.vector().tobytes() == plain.vector().tobytes()
        assert masked.vector().tobytes() == reference(plan, lambda _: everyone).tobytes()
        released = [site.records("contribution_released") for site in masked.sites.values()]
        assert all(records and all(record["masked"] for record in records) for records in released)
        assert decisions(masked) == decisions(plain)

    play(scene())


def decisions(network: Network) -> dict[str, Any]:
    """What the record says that the sums have decided."""
    (path,) = (network.directory / "coordinator" / "runs").glob("*/record.json")
    record = json.loads(path.read_text())
    keys = (
        "chosen_layers",
        "sensitivities",
        "slow_layers",
        "validation_curve",
        "best_round",
        "training_rounds",
        "gain",
    )
    return {key: record[key] for key in keys}


def lose_mid_upload(name: str, after: int) -> Scene:
    """A site's line breaks when so many of its chunks have arrived, once."""

    async def scene(network: Network) -> None:
        seen = 0

        def meddle(site: str, message: SiteMessage) -> list[SiteMessage]:
            nonlocal seen
            if site == name and isinstance(message, Chunk):
                seen += 1
                if seen == after + 1:
                    network.cut(site)
                    return []
            return [message]

        network.meddle = meddle

    return scene


@pytest.mark.parametrize("after", [0, 1, 2, 3])
@pytest.mark.parametrize("aggregate", SCHEDULES)
def test_an_upload_that_broke_goes_on_and_changes_no_bit(tmp_path: Path, aggregate: str, after: int) -> None:
    """A site that lost its line in the middle of its masked vector sends the rest of the very same bytes."""
    plan = a_plan(0, aggregate=aggregate).model_copy(
        update={"architecture": masked_plan("abc", parameters=300_000).architecture}
    )

    async def scene() -> None:
        network = await to_the_end(tmp_path, plan, after, lose_mid_upload("b", after))

        assert network.vector().tobytes() == reference(plan, lambda _: "abc").tobytes()
        assert len(network.sites["b"].records("epoch_agreed")) == 1  # the keys outlived the line

    play(scene())


def at_random(times: int) -> Scene:
    """Lines break and machines restart between any two messages, about so many times."""

    async def scene(network: Network) -> None:
        until = network.order.randrange(40, 400)

        async def before(carried: int) -> None:
            if carried < until and network.order.random() < times / until:
                name = network.order.choice(list(network.sites))
                if network.order.random() < 0.6:
                    network.cut(name)
                else:
                    await network.restart(name)

        network.before = before

    return scene


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("aggregate", SCHEDULES)
def test_broken_lines_and_restarts_change_no_bit(tmp_path: Path, aggregate: str, seed: int) -> None:
    """Whenever lines break and machines lose their keys, the run ends, in the bits of an undisturbed one."""
    schedule = {"aggregate": aggregate, "epochs": 3, "batches_per_epoch": 2}
    plan = a_plan(seed, aggregate=aggregate, schedule=schedule)

    async def scene() -> None:
        network = await to_the_end(tmp_path, plan, seed, at_random(8))

        everyone = "".join(plan.site_names)
        assert network.vector().tobytes() == reference(plan, lambda _: everyone).tobytes()

    play(scene())


def contributors_of(network: Network, site: str = "a") -> dict[int, str]:
    """Who contributed to each round, as a site's own audit log says it."""
    records = network.sites[site].records("contribution_released")
    return {record["round"]: "".join(record["contributors"]) for record in records}


def draws_of(network: Network) -> dict[tuple[str, int], int]:
    """Which draw of each step every site trained last."""
    return {(name, number): redraw for name, site in network.sites.items() for number, redraw in site.trainer.trained}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("aggregate", SCHEDULES)
def test_a_site_that_enters_later_contributes_from_then_on(tmp_path: Path, aggregate: str, seed: int) -> None:
    """A run that began without d takes it in with fresh keys, masked and unmasked alike."""
    schedule = {"aggregate": aggregate, "epochs": 6, "batches_per_epoch": 1}
    plan = masked_plan("abcd", parameters=17, schedule=schedule, deadlines={"join_seconds": 10.0})

    async def play_with(plan: Plan, directory: Path) -> Network:
        random.seed(seed)
        network = Network(directory, plan, seed)
        for name in "abc":
            network.add(name, secure_aggregation="not-required")
        while not network.sites["a"].records("contribution_released"):
            await asyncio.sleep(1.0)
        await asyncio.sleep(network.order.uniform(0.0, 10.0))
        network.add("d", secure_aggregation="not-required")
        await network.finish()
        await network.close()
        return network

    async def scene() -> None:
        for version in (plan, unmasked(plan)):
            network = await play_with(version, tmp_path / version.secure_aggregation)
            sets = contributors_of(network)

            assert sets[0] == "abc"
            assert sorted(set(sets.values())) in (["abc", "abcd"], ["abc"])
            assert network.vector().tobytes() == reference(plan, sets.__getitem__).tobytes()

    play(scene())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("aggregate", SCHEDULES)
@pytest.mark.parametrize("masking", ["masked", "unmasked"])
def test_going_on_without_a_lost_site_is_the_plain_sum_of_what_was_drawn_afresh(
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
            network.add(name, lost_site_budget=1, secure_aggregation="not-required")
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


@pytest.mark.parametrize("at_round", [2, 4, 5], ids=["measured", "validation", "report"])
@pytest.mark.parametrize("masking", ["masked", "unmasked"])
def test_what_a_site_measured_is_told_for_one_set_alone(tmp_path: Path, masking: str, at_round: int) -> None:
    """When e is lost in a round that measures, the others repeat the round without saying again what they measured:
    two sums of it over two sets would differ by e's own figures. The run goes on, and that round is not measured."""
    deadlines = {"grace_seconds": 30.0, "return_seconds": 60.0}
    schedule = {"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 1}
    keys: dict[str, Any] = {"checkpoint": "global", "gain": "sums", "on_lost_site": "continue"}
    plan = masked_plan("abcde", parameters=17, schedule=schedule, deadlines=deadlines, **keys)
    plan = plan if masking == "masked" else unmasked(plan)

    async def scene() -> None:
        network = Network(tmp_path, plan)
        for name in plan.site_names:
            network.add(name, lost_site_budget=1, secure_aggregation="not-required")
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
        assert (found["gain"]["sites"] == 0) == (at_round == 5)

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
