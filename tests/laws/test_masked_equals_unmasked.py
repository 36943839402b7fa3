"""Masking does not change the mathematics: one plan gives the same bits with and without it. Real agents, gates and
ledgers, and the real engine, in simulated time. Only trainers and lines are simulated."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from protos.plan.plan import Plan, plan_from_json
from protos.wire.messages import Chunk, SiteMessage
from site_agent.trainer.study import Study
from site_agent.trainer_socket import Message, Prepare
from tests.federation import Federation, MadeUpTrainer, identity_of, masked_plan
from tests.for_each import in_turns
from tests.hostile.real_trainers import RealTrainer
from tests.laws.masked_runs import SCHEDULES, decisions, reference, unmasked
from tests.protos.examples import COMPANIONS, METHODS, plan_of_method
from tests.rehearsal.made_up_time import play
from tests.statistics.federations import frames_of, patients, results_of, statistics_plan, studies_of
from tests.statistics.test_regression import regression
from tests.statistics.test_whole_run import ANALYSES

NAMES = tuple(method["name"] for method in METHODS)
Scene = Callable[[Federation], Coroutine[Any, Any, None]]
pytestmark = pytest.mark.usefixtures("disk_without_waiting")


def a_plan(seed: int, aggregate: str = "every-round", **changes: Any) -> Plan:
    """A masked plan for three to seven sites; sites, weights, seed and bits of updates follow from the number."""
    count, masking = 3 + seed % 5, {"required": True, "bits": (16, 32)[seed % 2]}
    schedule: dict[str, Any] = {"aggregate": aggregate, "epochs": 2, "batches_per_epoch": 2}
    keys: dict[str, Any] = {"schedule": schedule, "start": {"seed": seed}, "masking": masking}
    return masked_plan("abcdefg"[:count], parameters=17, **(keys | changes))


async def to_the_end(directory: Path, plan: Plan, seed: int, scene: Scene | None = None, **policy: Any) -> Federation:
    """Play a plan with all its sites, started in a drawn order, while `scene` meddles."""
    random.seed(seed)  # the agents' waits before they connect again
    network = Federation(directory, plan, seed)
    names = list(plan.site_names)
    network.order.shuffle(names)
    for name in names:
        network.add(name, **({"secure_aggregation": "not-required"} | policy))
    if scene is not None:
        await scene(network)
    await network.finish()
    assert {name: site.error for name, site in network.sites.items() if site.error is not None} == {}
    await network.close()
    assert [outcome.reason for outcome in network.engine.outcomes] == ["all rounds were made"]
    return network


SMALL = {"name": "dense", "hidden": [3, 2]}


def keys_of(method: str, measures: bool, weighting: str) -> dict[str, Any]:
    """What a plan of a method says; measuring as far as the method can bear it."""
    small = {} if "architecture" in COMPANIONS.get(method, {}) else {"architecture": SMALL}
    written = plan_of_method({"name": method}, **small).model_dump(mode="json")
    keys = {key: written[key] for key in ("method", "architecture", "columns", "outputs", "optimiser")}
    measuring = {"checkpoint": "global"} if measures else {}
    weights = {"name": "rows", "largest_rows": 128} if weighting == "rows" else {"name": "equal"}
    return keys | measuring | {"weighting": weights}


REFUSED = {("fedrep", "every-batch"), ("scaffold", "rows"), ("local", "measuring")}


# Two combinations that agree in nothing. By default every third method runs with one of these pairs, in turns, so
# twelve methods hold all eight. Continuous integration runs the others.
OPPOSITES: list[tuple[tuple[str, str, bool], ...]] = [
    (("every-epoch", "equal", True), ("every-batch", "rows", False)),
    (("every-epoch", "rows", False), ("every-batch", "equal", True)),
    (("every-epoch", "rows", True), ("every-batch", "equal", False)),
    (("every-epoch", "equal", False), ("every-batch", "rows", True)),
]


@pytest.mark.parametrize(("method", "opposites"), in_turns(NAMES, range(4), every=3))
def test_masked_and_unmasked_runs_end_in_identical_bits(tmp_path: Path, method: str, opposites: int) -> None:
    """For every method, schedule, weighting and order of arrival, with rounds that measure and without."""
    for aggregate, weighting, measures in OPPOSITES[opposites]:
        if not {(method, aggregate), (method, weighting), (method, "measuring" if measures else "")} & REFUSED:
            _assert_equal_bits(tmp_path / aggregate, method, aggregate, weighting, measures)


def _assert_equal_bits(folder: Path, method: str, aggregate: str, weighting: str, measures: bool) -> None:
    folder.mkdir()
    seed = NAMES.index(method) + measures
    schedule = {"aggregate": aggregate, "epochs": 3, "batches_per_epoch": 2}
    plan = a_plan(seed, schedule=schedule, **keys_of(method, measures, weighting))

    async def scene() -> None:
        masked = await to_the_end(folder / "masked", plan, seed)
        plain = await to_the_end(folder / "plain", unmasked(plan), seed + 1000)

        everyone = "".join(plan.site_names)
        assert masked.vector().tobytes() == plain.vector().tobytes()
        assert masked.vector().tobytes() == reference(plan, lambda _: everyone).tobytes()
        released = [site.records("contribution_released") for site in masked.sites.values()]
        assert all(records and all(record["masked"] for record in records) for records in released)
        assert decisions(masked) == decisions(plain)

    play(scene())


class OfRows(RealTrainer):
    """A trainer whose study was made by a test."""

    async def ask(self, message: Message, largest_payload: int = 0) -> Message:
        """Prepare nothing; anything else is as at a hospital."""
        ask = MadeUpTrainer.ask if isinstance(message, Prepare) else RealTrainer.ask
        return await ask(self, message, largest_payload)


async def test_masks_change_no_bit_of_any_analysis(tmp_path: Path) -> None:
    """Real statistics have the same results with masks, without, and in one process without gates."""
    table = patients(7, rows=(150, 160, 130, 170, 180, 140))
    analyses = [
        *ANALYSES, regression("F", family="gaussian", outcome="pressure", terms=["stage"], intercept="common"),
        regression("corrected", firth=True),
        regression("by patient", robust=True, splines={"age": [45.0, 60.0, 75.0]}), regression("shrunk", ridge=2.0),
    ]  # fmt: skip
    content = statistics_plan(*analyses, newton_rounds=30, masking={"required": True}).model_dump(mode="json")
    content["sites"] = [{"name": name, "identity": identity_of(name)} for name in "abcdef"]
    plan = plan_from_json(json.dumps(content))
    expected = results_of(plan, frames_of(plan, table))
    assert not any("refused" in one for one in expected)

    for one in (plan, unmasked(plan)):
        network = Federation(tmp_path / str(one.masking.required), one)
        for name, study in studies_of(one, frames_of(one, table)).items():
            trainer = OfRows(name, tmp_path)
            trainer.study = cast(Study, study)
            network.add(name, trainer=trainer, secure_aggregation="not-required")
        await network.finish()
        await network.close()
        released = [record for site in network.sites.values() for record in site.records("contribution_released")]
        assert {record["masked"] for record in released} == {one.masking.required}
        (path,) = network.directory.glob("coordinator/runs/*/results.json")
        assert json.loads(path.read_text())["analyses"] == expected


def _lose_mid_upload(name: str, after: int) -> Scene:
    async def scene(network: Federation) -> None:
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


@pytest.mark.parametrize(("after", "aggregate"), in_turns(range(4), SCHEDULES))
async def test_an_upload_that_broke_goes_on_and_changes_no_bit(tmp_path: Path, after: int, aggregate: str) -> None:
    """A site that lost its line in the middle of its masked vector sends the rest of the very same bytes."""
    plan = a_plan(0, aggregate=aggregate).model_copy(
        update={"architecture": masked_plan("abc", parameters=600_000).architecture}
    )

    network = await to_the_end(tmp_path, plan, after, _lose_mid_upload("b", after))

    assert network.vector().tobytes() == reference(plan, lambda _: "abc").tobytes()
    assert len(network.sites["b"].records("key_session_agreed")) == 1  # the keys outlived the line


THIRDS = (range(0, 10, 3), range(1, 10, 3), range(2, 10, 3))  # of the seeds


def _at_random(times: int) -> Scene:
    async def scene(network: Federation) -> None:
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


@pytest.mark.parametrize(("aggregate", "seeds"), in_turns(SCHEDULES, THIRDS))
def test_broken_lines_and_restarts_change_no_bit(tmp_path: Path, aggregate: str, seeds: range) -> None:
    """Even if lines break and computers lose their keys, the run ends with the bits of an undisturbed one."""
    for seed in seeds:
        _assert_undisturbed(tmp_path / str(seed), aggregate, seed)


def _assert_undisturbed(folder: Path, aggregate: str, seed: int) -> None:
    folder.mkdir()
    schedule = {"aggregate": aggregate, "epochs": 3, "batches_per_epoch": 2}
    plan = a_plan(seed, aggregate=aggregate, schedule=schedule)

    async def scene() -> None:
        network = await to_the_end(folder, plan, seed, _at_random(8))

        everyone = "".join(plan.site_names)
        assert network.vector().tobytes() == reference(plan, lambda _: everyone).tobytes()

    play(scene())
