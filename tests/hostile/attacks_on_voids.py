"""A coordinator that learns from who stops, whether somebody stops, or what a void contains. Within a run no site
refuses because of its own rows: it sends a void, which looks like any other contribution. The sum then shows that at
least one site had a reason, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.plan.exchange import Exchange
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.plan.prior_sums import place_sums
from protos.wire.messages import Bind, Chunk, Offer, SiteReason, Stage
from site_agent.gate.door import Builder, Contribution, Gate
from site_agent.gate.permission import GateRefusal
from site_agent.gate.site_rounds import Rounds
from site_agent.trainer import worker
from tests.federation import MadeUpTrainer, Site, Vector, identity_of, masked_plan, update_of
from tests.hostile.attack import Attack, as_attack, patched, played
from tests.hostile.compared_transcripts import Working
from tests.hostile.masking_coordinator import agree, ask_for, enter, found, total
from tests.hostile.real_trainers import exchange_of
from tests.logged import facts_of
from tests.rehearsal.study import offer
from tests.site_agent.trainer.prior.prior_federation import SITES, make_hospital, prior_plan

NAMES = "abcd"
TRIGGER = 3.0  # parameters to which one patient reacts


def plan_for(rounds: int = 3) -> Plan:
    """A masked plan of four sites, which lets no value be clipped."""
    masking = {"required": True, "clipping_range": 8.0, "largest_clipped_share": 0.0}
    return masked_plan(NAMES, rounds=rounds, masking=masking)


def _reacting(own: float) -> MadeUpTrainer:
    def updates(site: str, number: int, parameters: Vector) -> Vector:
        ordinary = update_of(site, 0, np.zeros_like(parameters))
        return ordinary * np.float32(1000.0) if parameters.max() >= own else ordinary

    return MadeUpTrainer("", updates)


async def begun(plan: Plan, folder: Path, own: dict[str, float]) -> list[Site]:
    """Running gates with masking keys; each site's number, infinite if it has none."""
    sites = []
    for name in NAMES:
        trainer = _reacting(own.get(name, np.inf))
        trainer._site = name
        sites.append(Site(name, plan, folder / name, trainer=trainer))
    await enter(sites)
    await agree(sites)
    return sites


async def round_of(sites: list[Site], number: int, value: float) -> list[list[Chunk]]:
    """What each site sends in a round whose parameters all have this value."""
    vector = np.full(manifest_of(sites[0].plan).parameters, value, np.float32)
    return [await ask_for(site, number, 0, NAMES, vector) for site in sites]


def visible(site: Site) -> list[tuple[object, ...]]:
    """What the coordinator sees of a site: kinds and sizes of messages, its end, and the length of its log."""
    sizes: list[tuple[object, ...]] = [
        (type(one).__name__, len(one.body) if isinstance(one, Chunk) else 0) for one in site.said
    ]
    return [*sizes, (str(site.error), site.is_running, len(facts_of(site.directory / "audit.jsonl")))]


def _in_the_open() -> AbstractContextManager[None]:
    honest = Gate.build

    def build(self: Gate, *given: Any, **more: Any) -> Contribution:
        made = honest(self, *given, **more)
        if made.void is not None:
            raise GateRefusal(what="not sent", reason=made.void)
        return made

    return patched(Gate, build=build)


@as_attack(_in_the_open)
async def who_stops(folder: Path) -> bool:
    """Find the hospital of one patient: only there the trainer reacts to the parameters."""
    sites = await begun(plan_for(), folder, {"c": TRIGGER})
    for number, value in enumerate((0.0, TRIGGER, 0.0)):
        await round_of(sites, number, value)
    return len({tuple(visible(site)) for site in sites}) > 1


def _of_zeros() -> AbstractContextManager[None]:
    honest = Builder.void

    def void(self: Builder, position: bytes, exchange: Exchange, *given: Any, **more: Any) -> Contribution:
        made = honest(self, position, exchange, *given, **more)
        layout, buffer = exchange.layout, bytearray(len(made.buffer))
        for index in range(layout.chunks):
            layout.words(layout.body(buffer, index), index)[0] = 1
        return Contribution(position, exchange, 0, memoryview(buffer), made.digest, made.noisy, made.void)

    return patched(Builder, void=void)


@as_attack(_of_zeros)
async def difference_of_a_void(folder: Path) -> bool:
    """Subtract a sum in which a site sent a void from one with its numbers, at parameters that change little else."""
    sites = await begun(plan_for(), folder, {"c": TRIGGER})
    all_sites, is_whole = total(sites[0].plan, await round_of(sites, 0, 0.0))
    without, _ = total(sites[0].plan, await round_of(sites, 1, TRIGGER))
    assert is_whole
    return found(all_sites - without, sites[2].update())


@contextmanager
def counted() -> Iterator[None]:
    """Each void adds the same number to the check, and a site sends its numbers again in the next round."""
    honest, honest_round = Builder.void, Rounds._train_and_build

    def void(self: Builder, position: bytes, exchange: Exchange, *given: Any, **more: Any) -> Contribution:
        made = honest(self, position, exchange, *given, **more)
        layout, buffer = exchange.layout, bytearray(made.buffer)
        for index in range(layout.chunks):
            layout.words(layout.body(buffer, index), index)[0] = 1 + (1 << 32)
        return Contribution(position, exchange, 0, memoryview(buffer), made.digest, made.noisy, made.void)

    async def forgetful(self: Rounds, *given: Any) -> None:
        self.void = None
        await honest_round(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Builder, "void", void)
        patch.setattr(Rounds, "_train_and_build", forgetful)
        yield


@as_attack(counted)
async def numbers_from_voids(folder: Path) -> bool:
    """Raise the parameters by one in each round, and read from the sums how many hospitals' numbers were passed."""
    own = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    sites = await begun(plan_for(rounds=5), folder, own)
    layout, passed = exchange_of(sites[0].plan, 0).layout, []
    for number in range(5):
        uploads = await round_of(sites, number, float(number))
        check = sum(int(layout.words(chunk.body, 0)[0]) for (chunk,) in uploads) % (1 << 64)
        assert check % (1 << 32) == len(sites)  # all masks cancelled
        passed.append(check >> 32)
    return passed == [0, 1, 2, 3, 4]


def _not_kept() -> AbstractContextManager[None]:
    honest = Rounds.__init__

    def forgetful(self: Rounds, **given: Any) -> None:
        honest(self, **given)
        self.void = None

    return patched(Rounds, __init__=forgetful)


def numbers_after_a_restart(weakened: bool) -> bool:
    """Wait until the gates start again, and ask for a further round of a run that was void."""

    async def scene(folder: Path) -> bool:
        sites = await begun(plan_for(), folder, {"c": TRIGGER})
        for number, value in enumerate((0.0, TRIGGER)):
            await round_of(sites, number, value)
        for site in sites:
            await site.stop()
            site.start()
        await enter(sites)
        await agree(sites, key_session=2)
        sums, is_whole = total(sites[0].plan, await round_of(sites, 2, 0.0))
        reasons = {one["void"] for one in sites[2].records("contribution_released")}
        assert weakened or reasons == {"no", SiteReason.TOO_MUCH_CLIPPED.name.lower()}
        return is_whole and found(sums, sum((site.update() for site in sites), np.zeros_like(sums)))

    return played(scene, weakened, _not_kept)


def _announced_rows(plan: PriorPlan, rows: int) -> Vector:
    sizes = {"voids": 0, "sum": rows << 29, "squares": rows << 28}  # a mean of 1/2 in each column
    numbers = [sizes.get(name.partition(" ")[0], rows) for name in plan.statistics_names]
    numbers[plan.statistics_names.index("sum outcome")] = rows // 2
    place = plan.place(0, plan.training_rounds)
    vector = np.zeros(4 * place.stop, np.float32)
    place_sums(vector, place, numbers)
    return vector


def rows_from_refusals(weakened: bool) -> bool:
    """Announce fewer rows than the hospitals have, and see who says that the others have too few."""
    document = json.loads(prior_plan("breast-cancer").canonical)
    document["sites"] = [{"name": name, "identity": identity_of(name)} for name in SITES]
    document["masking"] = {"required": True}
    plan = PriorPlan.model_validate_json(json.dumps(document))

    async def scene(folder: Path) -> bool:
        sites = []
        for name in SITES:
            configuration = make_hospital(folder / name / "hospital", name, "breast-cancer")
            table = configuration.with_name("table.csv")
            kept = table.read_text().splitlines(keepends=True)[: 140 if name == "cluj" else 80]
            table.write_text("".join(kept))
            sites.append(Site(name, plan, configuration.with_name("state"), trainer=Working(name, configuration)))
        await enter(sites)
        await agree(sites)
        vector = np.zeros(0, np.float32)
        for number, stage in enumerate((Stage.STATISTICS, Stage.NEWTON)):
            first, *chunks = offer(vector, number)
            assert isinstance(first, Offer)
            for site in sites:
                await site.tell(replace(first, stage=stage), *chunks)
                await site.tell(Bind(number, 0, plan.site_names, 0))
            vector = _announced_rows(plan, rows=75)
        voids = [site.records("contribution_released")[-1]["void"] for site in sites]
        assert weakened or voids == ["no", "no", "data_unfit", "no"]
        return len({tuple(visible(site)) for site in sites}) > 1

    return played(scene, weakened, refused_by_the_trainer)


def refused_by_the_trainer() -> AbstractContextManager[None]:
    """The trainer stops instead of answering with a void."""

    def raised(error: Exception) -> int:
        raise error

    return patched(worker, _void=raised)


ATTACKS = (
    Attack("void-who-stops", "voids: the site refuses in the open", who_stops),
    Attack("void-rows-of-a-hospital", "voids: the trainer refuses in the open", rows_from_refusals),
    Attack("void-difference", "the random integers of a void: it has zeros", difference_of_a_void),
    Attack("void-numbers-one-by-one", "random checks, and voids until the end of the run", numbers_from_voids),
    Attack("void-after-a-restart", "the memory of the void in the audit log", numbers_after_a_restart),
)
