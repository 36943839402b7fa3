"""A coordinator that requests the wrong round, other layers, rounds outside the plan, or sends other bytes. The
attacker wants a site to train, measure or load something that the approved plan does not have at this point. The plans
are unmasked, so only the order of rounds protects the site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import protos.wire.messages
from host.audit_log import AuditLog
from protos.numbers.short_integers import first_exponent, pack_exponents
from protos.plan.exchange import Exchange, Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.plan.prior_plan import PriorPlan
from protos.wire.codec import decode_coordinator_message, encode_coordinator_message
from protos.wire.messages import (
    Announcement,
    Bind,
    Chunk,
    CoordinatorMessage,
    CoordinatorReason,
    Done,
    Farewell,
    Finish,
    Join,
    MalformedMessage,
    Offer,
    Stage,
)
from protos.wire.positions import parameters_digest
from site_agent.gate import site_rounds
from site_agent.gate.itinerary import Itinerary
from site_agent.gate.site_rounds import Download, Rounds
from tests.federation import MadeUpTrainer, Site, masked_plan, of_kind, settle
from tests.hostile.attack import Attack, as_attack, in_copy, patched, played
from tests.hostile.test_receiving_sites import receiving_plan
from tests.rehearsal.study import parameter_chunks

NOTHING, ZEROS = np.zeros(0, np.float32), np.zeros(10, np.float32)
ALL = ("a", "b", "c")
TRAINING = Stage.TRAINING
PLANS: dict[str, dict[str, Any]] = {
    "plain": {},
    "measuring": {"checkpoint": "global"},
    "short": {"masking": {"required": False, "bits": 16}},
    "probing": {
        "method": {"name": "player-fl"},
        "architecture": {"name": "dense", "hidden": [2, 2]},
        "columns": ["x"],
        "outputs": 1,
        "schedule": {"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 1},
    },
}
# As the plan starts it, whoever the sites are.
FIRST_LAYER = manifest_of(masked_plan("abc", **PLANS["probing"])).initial_parameters(0)[:4]


SCALES = pack_exponents((first_exponent(16, 3, 8.0),) * 2)
AGAIN: list[CoordinatorMessage] = []  # in the place of a step: the gate starts again
SUM = np.ones(ZEROS.size, np.int16)


def asked(
    number: int, stage: Stage = TRAINING, vector: Any = ZEROS, layers: bytes = b"", **more: Any
) -> list[CoordinatorMessage]:
    """A round in all its parts, from the offer to the contributors."""
    offer = Offer(number, 0, parameters_digest(vector), stage, layers, **more)
    return [offer, *parameter_chunks(vector, number), Bind(number, 0, ALL, 0)]


def plan_of(kind: str) -> Plan:
    """A plan in the clear that the hospital has approved."""
    return masked_plan("abc", **({"masking": {"required": False}} | PLANS[kind]))


async def joined(folder: Path, plan: Plan, trainer: MadeUpTrainer | None = None) -> Site:
    """A site that has joined the run of a plan in the clear."""
    site = Site("a", plan, folder, trainer=trainer, secure_aggregation="not-required")
    await settle()
    assert of_kind(await site.tell(Announcement(plan.run_name, plan.canonical)), Join)
    return site


async def _starts_again(site: Site) -> bool:
    await site.stop()
    site.start()
    await settle()
    return bool(await site.tell(Announcement(site.plan.run_name, site.plan.canonical)))


def _accept_any_round(self: Any, offer: Offer) -> Exchange:
    return self._exchanges.of(offer.round, offer.stage, offer.layers)  # type: ignore[no-any-return]  # our own


def _without_the_plans_rounds() -> AbstractContextManager[None]:
    honest = Exchanges.of

    def of(self: Exchanges, number: int, stage: Stage, layers: bytes) -> Exchange:
        return honest(self, number % 3, stage, layers)

    return patched(Exchanges, of=of)


def _nothing(*_: Any, **__: Any) -> None:
    """The check that is missing."""


def out_of_turn(
    weakened: bool,
    kind: str,
    steps: Sequence[Sequence[CoordinatorMessage]],
    reason: str,
    without: Callable[[], AbstractContextManager[Any]],
) -> bool:
    """Ask for some steps in their turn, and then for one that is not; its contribution is what the attacker wants."""
    plan = plan_of(kind)

    async def scene(folder: Path) -> bool:
        site = await joined(folder, plan)
        for step in steps[:-1]:
            assert of_kind(await site.tell(*step), Chunk) if step else await _starts_again(site), site.error
        left = len(site.chunks)
        answer = of_kind(await site.tell(*steps[-1]), Chunk)
        if not answer:
            (record,) = site.records("coordinator_refused")
            assert record["reason"] == reason, record["reason"]
            assert site.error is not None
            assert len(site.chunks) == left
        return bool(answer)

    return played(scene, weakened, without)


TURNS: dict[str, tuple[str, str, list[list[CoordinatorMessage]], str, str, Callable[[], Any]]] = {
    "round-that-is-over": (
        "asks for an earlier round that it has passed over",
        "plain",
        [asked(1), asked(0)],
        "a round that is over",
        "the order of rounds",
        lambda: patched(Itinerary, accept=_accept_any_round),
    ),
    "round-beyond-the-plan": (
        "asks for a round more than the plan has",
        "plain",
        [asked(0), asked(1), asked(2), asked(3)],
        "a round that the plan does not have",
        "the plan's number of rounds",
        _without_the_plans_rounds,
    ),
    "parameters-of-another-digest": (
        "sends other parameters than it has announced",
        "plain",
        [[Offer(0, 0, parameters_digest(ZEROS)), *parameter_chunks(ZEROS + 9, 0), Bind(0, 0, ALL, 0)]],
        "parameters that are not what was announced",
        "the digest of what came down",
        lambda: patched(Download, parameters=lambda self: self.content.view("<f4")),
    ),
    "sum-of-another-digest": (
        "sends a sum from which other parameters follow than it has announced",
        "short",
        [
            asked(0, scales=SCALES),
            [Offer(1, 0, bytes(32), scales=SCALES, is_sum=True), *parameter_chunks(SUM, 1), Bind(1, 0, ALL, 0)],
        ],
        "a sum from which other parameters follow than were announced",
        "the digest of the parameters that follow from a sum",
        lambda: patched(site_rounds, parameters_digest=lambda _: bytes(32)),
    ),
    "scales-that-clip-everything": (
        "offers scales so fine that each number is clipped, so that the sum shows signs at single sites",
        "short",
        [asked(0, scales=pack_exponents((60, 60)))],
        "first scales that are not the plan's",
        "the check of scales",
        lambda: patched(Itinerary, _check_scales=_nothing),
    ),
    "scales-after-a-round-that-was-left-out": (
        "leaves a round out, so that the site has no scales with which it compares the next ones",
        "short",
        [asked(0, scales=SCALES), asked(2, scales=pack_exponents((40, 40)))],
        "scales that grow faster than they may",
        "the check of scales",
        lambda: patched(Itinerary, _check_scales=_nothing),
    ),
    "scales-after-a-restart": (
        "offers scales that grow too fast after the gate has started again",
        "short",
        [asked(0, scales=SCALES), AGAIN, asked(1, scales=pack_exponents((40, 40)))],
        "scales that grow faster than they may",
        "the check of scales",
        lambda: patched(Itinerary, _check_scales=_nothing),
    ),
    "best-round-that-nobody-measured": (
        "names a best round that no site has measured, so that a site reports on a model of its choice",
        "measuring",
        [asked(0), asked(1, best_round=0)],
        "a best round that no site has measured",
        "the check of the best round",
        lambda: patched(Itinerary, _check_best=_nothing),
    ),
    "other-layers-than-chosen": (
        "asks for layers that the probe has not chosen",
        "probing",
        [asked(1, TRAINING, FIRST_LAYER, b"\x01"), asked(2)],
        "other layers than those that the probe has chosen",
        "the memory of the chosen layers",
        lambda: patched(Itinerary, _check_layers=_nothing),
    ),
}


def _without_the_ends() -> AbstractContextManager[None]:
    honest = AuditLog.records

    def records(self: AuditLog, *events: str, **of: Any) -> list[dict[str, Any]]:
        return [] if events == ("run_finished",) else honest(self, *events, **of)

    return patched(AuditLog, records=records)


@as_attack(_without_the_ends)
async def run_that_is_over(folder: Path, is_restarted: bool) -> bool:
    """Announce a run that the site has finished, and offer its last round again."""
    plan = plan_of("plain")
    site = await joined(folder, plan)
    for number in range(3):
        assert of_kind(await site.tell(*asked(number)), Chunk)
    assert of_kind(await site.tell(Finish(3, parameters_digest(ZEROS)), *parameter_chunks(ZEROS, 3)), Done)
    if is_restarted:
        await _starts_again(site)
    await site.tell(Announcement(plan.run_name, plan.canonical))
    again = Offer(2, 1, parameters_digest(ZEROS), TRAINING), *parameter_chunks(ZEROS, 2, 1), Bind(2, 1, ALL, 0)
    return bool(of_kind(await site.tell(*again), Chunk))


def contributor_that_nobody_listed(weakened: bool) -> bool:
    """Bind a set in which an unlisted site takes a listed one's place."""

    @contextmanager
    def without_listing() -> Iterator[None]:
        from site_agent.gate.permission import Permission

        with patched(Rounds, _are_the_plans=lambda self, sites: True), patched(Permission, forbidden=lambda *facts: ()):
            yield

    async def scene(folder: Path) -> bool:
        site = await joined(folder, plan_of("plain"))
        *before, _ = asked(0)
        answer = of_kind(await site.tell(*before, Bind(0, 0, ("a", "b", "d"), 0)), Chunk)
        if not answer:
            (record,) = site.records("coordinator_refused")
            assert record["reason"] == "other contributors than the sites of the plan"
        return bool(answer)

    return played(scene, weakened, without_listing)


def terminal_codes_in_a_farewell(weakened: bool) -> bool:
    """Send a farewell with terminal codes, which an operator's screen would obey."""
    raw = encode_coordinator_message(Farewell(CoordinatorReason.NOT_ACCEPTED, "XYZ")).replace(b"XYZ", b"\x1b[2")
    with in_copy(weakened, lambda: patched(protos.wire.messages, require_line=_nothing)):
        try:
            message = decode_coordinator_message(raw)
        except MalformedMessage:
            return False
        assert isinstance(message, Farewell)
        return "\x1b" in message.detail


def newton_round_after_the_guard(weakened: bool) -> bool:
    """Ask for a further sum of a regression after its last one."""
    plan = receiving_plan("abcd", "", newton_rounds=4)
    assert isinstance(plan, PriorPlan)
    itinerary = Itinerary(plan, manifest_of(plan), ())
    nothing = parameters_digest(np.zeros(0, np.float32))
    stages = (Stage.STATISTICS, Stage.NEWTON, Stage.GUARD, Stage.NEWTON)
    *honest, last = [Offer(number, 0, nothing, stage) for number, stage in enumerate(stages)]
    with in_copy(weakened, lambda: patched(Itinerary, _check_stage=_nothing)):
        for offer in honest:
            itinerary.accept(offer)
        try:
            itinerary.accept(last)
        except MalformedMessage:
            return False
        return True


ATTACKS = (
    *(
        Attack(
            name=name,
            tries=f"the coordinator {tries}",
            without=missing,
            run=partial(out_of_turn, kind=kind, steps=steps, reason=reason, without=without),
        )
        for name, (tries, kind, steps, reason, missing, without) in TURNS.items()
    ),
    *(
        Attack(
            name=f"run-that-is-over{'-after-a-restart' * is_restarted}",
            tries="the coordinator announces a run again that the site has finished, and offers its last round",
            without="the memory of ended runs",
            run=partial(run_that_is_over, is_restarted=is_restarted),
        )
        for is_restarted in (False, True)
    ),
    Attack("contributor-that-nobody-listed", "the plan's list of sites", contributor_that_nobody_listed),
    Attack("newton-round-after-the-guard", "the order of stages", newton_round_after_the_guard),
    Attack("terminal-codes-in-a-farewell", "the check of texts", terminal_codes_in_a_farewell),
)
