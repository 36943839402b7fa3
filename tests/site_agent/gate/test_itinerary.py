"""The rounds that a site accepts from its coordinator: those that plan, probe and earlier rounds allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from protos.plan.exchange import Exchanges, stage_at
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Finish, MalformedMessage, Offer, Stage
from protos.wire.positions import parameters_digest
from site_agent.gate.itinerary import Itinerary
from tests.hostile.test_receiving_sites import receiving_plan
from tests.rehearsal.study import made_up_identities, plan_with

PROBE, TRAINING, VALIDATION = Stage.PROBE, Stage.TRAINING, Stage.VALIDATION
NEWTON, GUARD = Stage.NEWTON, Stage.GUARD
DIGEST = bytes(32)
CHAIN: dict[str, Any] = {"architecture": {"name": "dense", "hidden": [2, 2, 2]}, "columns": ["x"], "outputs": 1}


def a_plan(method: str = "fedavg", rounds: int = 4, **changes: Any) -> Plan:
    """So many training rounds of one step."""
    schedule = {"aggregate": "every-epoch", "epochs": rounds, "batches_per_epoch": 1}
    return plan_with(made_up_identities(), changes={"method": {"name": method}, "schedule": schedule} | changes)


MEASURING: dict[str, Any] = {"checkpoint": "global"}
PLANS = {
    "plain": a_plan(), "measuring": a_plan(**MEASURING), "regression": receiving_plan(receivers="", newton_rounds=4),
    "probing": a_plan("player-fl", **CHAIN), "probing and measuring": a_plan("player-fl", **CHAIN | MEASURING),
    "controlled": a_plan("scaffold"),
}  # fmt: skip


def begun(plan: Plan, *offers: Offer, released: tuple[dict[str, Any], ...] = ()) -> Itinerary:
    """A site that was offered these rounds."""
    itinerary = Itinerary(plan, manifest_of(plan), released)
    for offer in offers:
        itinerary.accept(started(plan, offer))
    return itinerary


def started(plan: Plan, offer: Offer) -> Offer:
    """The offer, with the plan's own first values in the rounds before anything was trained."""
    if offer.round > plan.has_probe:
        return offer
    exchanges = Exchanges(plan, manifest_of(plan))
    digest = exchanges.start_digest(exchanges.of(offer.round, offer.stage, offer.layers))
    return replace(offer, parameters_digest=digest)


def offer(number: int, stage: Stage = TRAINING, layers: bytes = b"", best: int | None = None) -> Offer:
    """A first attempt."""
    return Offer(number, 0, DIGEST, stage, layers, best)


def controlled(value: float) -> Offer:
    """The plan's own first parameters, and control variates of this value."""
    first = manifest_of(PLANS["controlled"]).initial_parameters(0)
    return replace(offer(0), parameters_digest=parameters_digest(np.append(first, np.full_like(first, value))))


def honest(plan: Plan, training_rounds: int | None = None, layers: bytes = b"") -> list[Offer]:
    """Every round that an honest coordinator offers, its layers after a probe being these."""
    made = []
    while (stage := stage_at(plan, len(made), training_rounds)) is not None:
        made.append(offer(len(made), stage, b"" if stage is PROBE else layers))
    return made


@pytest.mark.parametrize("name", PLANS)
def test_an_honest_run_is_accepted_to_its_end(name: str) -> None:
    """Every round of every kind of plan is accepted, and then the result."""
    plan = PLANS[name]
    rounds = honest(plan, layers=b"\x01" if plan.has_probe else b"")

    assert begun(plan, *rounds).accept_result(Finish(len(rounds), DIGEST, b"\x01" if plan.has_probe else b""))


def test_newton_rounds_may_end_early() -> None:
    """The guard comes after any number of them, and the result after it."""
    rounds = honest(PLANS["regression"], 1)

    assert begun(PLANS["regression"], *rounds).accept_result(Finish(len(rounds), DIGEST))


LIES: dict[str, tuple[str, list[Offer], str]] = {
    "a round beyond the last": ("plain", [offer(4)], "the plan does not have"),
    "a validation that the plan does not have": ("plain", [offer(4, VALIDATION)], "the plan does not have"),
    "a probe that the plan does not have": ("plain", [offer(0, PROBE)], "the plan does not have"),
    "a validation instead of training": ("measuring", [offer(2, VALIDATION)], "the plan does not have"),
    "training instead of the probe": ("probing", [offer(0)], "the plan does not have"),
    "a second probe": ("probing", [offer(0, PROBE), offer(1, PROBE)], "the plan does not have"),
    "a validation before anything was trained": ("measuring", [offer(0, VALIDATION)], "the plan does not have"),
    "training after the validation": ("measuring", [offer(4, VALIDATION), offer(5)], "the plan does not have"),
    "a Newton round after the guard": ("regression", [offer(2, GUARD), offer(3, NEWTON)], "a stage that is over"),
    "a second guard": ("regression", [offer(2, GUARD), offer(3, GUARD)], "a stage that is over"),
    "a round that is over": ("plain", [offer(2), offer(1)], "a round that is over"),
    "the same round as another stage": ("regression", [offer(2, NEWTON), offer(2, GUARD)], "other parameters"),
    "the same round with another best": ("measuring", [offer(2, best=1), offer(2)], "other parameters"),
    "layers where all take part": ("plain", [offer(0, layers=b"\x01")], "does not choose"),
    "layers that there are not": ("plain", [offer(0, layers=b"\x04")], "does not have"),
    "layers in another spelling": ("plain", [offer(0, layers=b"\x03")], "does not have"),
    "layers with trailing bytes": ("probing", [offer(1, layers=b"\x01\x00")], "does not have"),
    "layers of the probe": ("probing", [offer(0, PROBE, b"\x01")], "does not choose"),
    "a hole among the first layers": ("probing", [offer(1, layers=b"\x05")], "does not choose"),
    "the last layers instead of the first": ("probing", [offer(1, layers=b"\x06")], "does not choose"),
    "other layers than before": ("probing", [offer(1, layers=b"\x01"), offer(2, layers=b"\x03")], "probe has chosen"),
    "all layers after some": ("probing", [offer(1, layers=b"\x01"), offer(2)], "probe has chosen"),
    "some layers after all": ("probing", [offer(1), offer(2, layers=b"\x03")], "probe has chosen"),
    "first parameters of the coordinator's": ("plain", [offer(0)], "not the plan's"),
    "other values for the probe": ("probing", [offer(0, PROBE)], "not the plan's"),
    "first parameters of its own after the probe": ("probing", [offer(1, layers=b"\x01")], "not the plan's"),
    "control variates before any training": ("controlled", [controlled(1e-6)], "not the plan's"),
    "a best round that nobody measured": ("plain", [offer(2, best=1)], "no site has measured"),
    "the first round as the best": ("measuring", [offer(2, best=0)], "no site has measured"),
    "the probe as the best": ("probing and measuring", [offer(2, best=0)], "no site has measured"),
}


@pytest.mark.parametrize("name", LIES)
def test_what_plan_and_past_leave_no_room_for_is_refused(name: str) -> None:
    """Such an offer is a MalformedMessage, and the messages before it were correct."""
    plan, (*before, lie), reason = PLANS[LIES[name][0]], LIES[name][1], LIES[name][2]
    itinerary = begun(plan, *before)

    with pytest.raises(MalformedMessage, match=reason):
        itinerary.accept(lie)


@pytest.mark.parametrize("name", PLANS)
def test_a_result_before_the_last_round_is_refused(name: str) -> None:
    """Whatever the plan, a result is refused before it has made the rounds that come after training."""
    plan = PLANS[name]
    rounds = honest(plan)

    for made in range(len(rounds)):
        with pytest.raises(MalformedMessage, match="before the last round"):
            begun(plan, *rounds[:made]).accept_result(Finish(made, DIGEST))
        with pytest.raises(MalformedMessage, match="before the last round"):
            begun(plan, *rounds[:made]).accept_result(Finish(len(rounds), DIGEST))


@pytest.mark.parametrize(
    ("name", "layers", "best", "reason"),
    [
        ("plain", b"\x01", None, "does not choose"),
        ("plain", b"", 3, "no site has measured"),
        ("probing", b"", None, "probe has chosen"),
        ("probing", b"\x01", None, "probe has chosen"),
    ],
)
def test_a_result_names_what_was_made(name: str, layers: bytes, best: int | None, reason: str) -> None:
    """Other layers than those of the run, or a best round that there was not, are refused in a result too."""
    plan = PLANS[name]
    rounds = honest(plan, layers=b"\x03" if plan.has_probe else b"")

    with pytest.raises(MalformedMessage, match=reason):
        begun(plan, *rounds).accept_result(Finish(len(rounds), DIGEST, layers, best))


def released(number: int, stage: str, layers: str = "") -> dict[str, Any]:
    """What the audit log holds of a release."""
    return {"round": number, "attempt": 0, "position": "", "stage": stage, "offered_layers": layers, "scales": ""}


def test_what_was_released_is_remembered_over_a_restart() -> None:
    """A restarted site requires the coordinator's earlier layers and stages."""
    before, plan = (released(0, "probe"), released(1, "training", "03")), PLANS["probing and measuring"]
    guarded = (released(0, "statistics"), released(1, "newton"), released(2, "guard"))

    with pytest.raises(MalformedMessage, match="probe has chosen"):
        begun(plan, released=before).accept(offer(2, TRAINING, b"\x01"))
    with pytest.raises(MalformedMessage, match="a stage that is over"):
        begun(PLANS["regression"], released=guarded).accept(offer(3, NEWTON))


def test_a_run_may_go_back_to_what_it_has_not_forgotten_and_repeat_it_as_it_was() -> None:
    """An earlier round is repeated byte for byte, under no earlier attempt, until the run reports that it is over."""
    plan = PLANS["measuring"]
    itinerary = begun(plan, offer(0), offer(1), Offer(2, 3, DIGEST), offer(3))

    for again in (Offer(1, 1, DIGEST, oldest=1), Offer(2, 3, DIGEST, oldest=1), Offer(3, 1, DIGEST, oldest=1)):
        assert itinerary.accept(again).stage is TRAINING
    for lie, reason in (
        (Offer(0, 1, DIGEST), "a round that is over"),
        (Offer(1, 0, DIGEST), "a round that is over"),
        (Offer(2, 2, DIGEST), "a round that is over"),
        (Offer(2, 4, b"another digest".ljust(32)), "other parameters"),
        (Offer(2, 4, DIGEST, best_round=1), "other parameters"),
    ):
        with pytest.raises(MalformedMessage, match=reason):
            itinerary.accept(lie)
    assert itinerary.accept(offer(4, VALIDATION)).stage is VALIDATION
