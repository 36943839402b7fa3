"""The data of each round: the same at both ends, a part of the manifest, and only as plan and offer allow."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.plan.exchange import Exchange, Exchanges, is_measured, pack_layers, stage_at, unpack_layers
from protos.plan.manifest import manifest_of, most_bytes, rounds_with
from protos.plan.plan import Plan
from protos.wire.messages import MalformedMessage, Stage
from tests.protos.examples import METHODS, plan_of_method

PROBE, TRAINING, VALIDATION = Stage.PROBE, Stage.TRAINING, Stage.VALIDATION
CHAIN: dict[str, Any] = {"architecture": {"name": "dense", "hidden": [4, 3, 2]}}  # four layers
MEASURING: dict[str, Any] = {"checkpoint": "global"}
SCHEDULES: dict[str, dict[str, Any]] = {
    "every-batch": {"aggregate": "every-batch", "epochs": 4, "batches_per_epoch": 3},
    "every-epoch": {"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 3},
    "every-round": {"aggregate": "every-round", "epochs": 8, "batches_per_epoch": 3, "epochs_per_round": 2},
    "every-steps": {"aggregate": "every-steps", "rounds": 6, "steps_per_round": 5, "batch_rows": 2},
}


def a_plan(method: str = "fedavg", schedule: str = "every-epoch", **keys: Any) -> Plan:
    """A plan of a method with one of the schedules."""
    return plan_of_method({"name": method}, schedule=SCHEDULES[schedule], **keys)


def _exchanges_of(plan: Plan) -> Exchanges:
    return Exchanges(plan, manifest_of(plan))


def _whole_run(plan: Plan, layers: bytes = b"") -> list[tuple[Stage, Exchange]]:
    exchanges, made = _exchanges_of(plan), []
    while (stage := stage_at(plan, len(made))) is not None:
        made.append((stage, exchanges.of(len(made), stage, b"" if stage is PROBE else layers)))
    return made


def names(exchange: Exchange) -> list[str]:
    """The scalars of a round."""
    return [scalar.name for scalar in exchange.scalars]


@given(raw=st.binary(min_size=1, max_size=8), count=st.integers(0, 40))
def test_one_choice_has_one_spelling(raw: bytes, count: int) -> None:
    """Bytes that are no packed choice of so many layers are refused; trailing bits and bytes are none."""
    try:
        chosen = unpack_layers(raw, count)
    except MalformedMessage:
        return

    assert pack_layers(chosen) == raw


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])
def test_whatever_goes_up_is_in_the_manifest(method: dict[str, Any]) -> None:
    """Every tensor and scalar of every round is one that the hospital approved, in the manifest's order."""
    plan = plan_of_method(method)
    manifest = manifest_of(plan)

    for _, exchange in _whole_run(plan):
        assert set(exchange.up) <= set(manifest.tensors)
        assert set(exchange.down) <= set(manifest.tensors)
        assert list(exchange.up) == [tensor for tensor in manifest.tensors if tensor in exchange.up]
        assert list(exchange.scalars) == [scalar for scalar in manifest.scalars if scalar in exchange.scalars]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])
def test_every_scalar_of_the_manifest_travels_at_some_time(method: dict[str, Any]) -> None:
    """A number that is approved and never sent would be a mistake of ours."""
    measuring = {} if method["name"] == "local" else MEASURING
    plan = plan_of_method(method, **measuring)

    sent = {scalar for _, exchange in _whole_run(plan) for scalar in exchange.scalars}

    assert sent == set(manifest_of(plan).scalars)


def test_a_run_has_its_stages_in_order() -> None:
    """Probe, training, validation, and then nothing."""
    plan = a_plan("player-fl", **CHAIN | MEASURING)

    stages = [stage for stage, _ in _whole_run(plan)]

    assert stages == [PROBE, *4 * [TRAINING], VALIDATION]
    assert stage_at(plan, 6) is None
    assert stage_at(plan, 1 << 31) is None


def test_only_training_takes_changes_up() -> None:
    """The probe brings nothing down; what measures brings the parameters down and only numbers up."""
    plan = a_plan("player-fl", **CHAIN | MEASURING)

    for stage, exchange in _whole_run(plan):
        assert exchange.stage is stage
        assert bool(exchange.up) == (stage is TRAINING)
        assert bool(exchange.down) == (stage is not PROBE)


@pytest.mark.parametrize(
    ("schedule", "measured"),
    [
        ("every-batch", [3, 6, 9]),  # at the ends of epochs of three batches
        ("every-epoch", [1, 2, 3]),
        ("every-round", [1, 2, 3]),
        ("every-steps", [1, 2, 3, 4, 5]),
    ],
)
def test_models_are_measured_at_the_ends_of_epochs(schedule: str, measured: list[int]) -> None:
    """Validation losses travel in training rounds that begin with such a model, never in the first, and at the end."""
    plan = a_plan(schedule=schedule, checkpoint="global")

    told = [number for number, (_, exchange) in enumerate(_whole_run(plan)) if "validation loss" in names(exchange)]

    assert told == [*measured, plan.schedule.rounds]
    assert [number for number in range(plan.schedule.rounds) if is_measured(plan, number)] == measured


NOT_ALLOWED: list[tuple[Plan, int, Stage, bytes]] = [
    (a_plan(), 4, TRAINING, b""),
    (a_plan(), 4, VALIDATION, b""),
    (a_plan(), 0, PROBE, b""),
    (a_plan(), 0, TRAINING, b"\x01"),
    (a_plan(**MEASURING), 4, TRAINING, b""),
    (a_plan(**MEASURING), 3, VALIDATION, b""),
    (a_plan(**MEASURING), 0, VALIDATION, b""),
    (a_plan("player-fl", **CHAIN), 0, TRAINING, b""),
    (a_plan("player-fl", **CHAIN), 0, PROBE, b"\x01"),
    (a_plan("player-fl", **CHAIN), 1, PROBE, b""),
    (a_plan("player-fl", **CHAIN), 1, TRAINING, b"\x00"),
    (a_plan("player-fl", **CHAIN), 1, TRAINING, b"\x02"),
    (a_plan("player-fl", **CHAIN), 1, TRAINING, b"\x05"),
    (a_plan("player-fl", **CHAIN), 1, TRAINING, b"\x07"),  # all three, in a spelling that packs nothing
    (a_plan("player-fl", **CHAIN), 1, TRAINING, b"\x0f"),
    (a_plan("player-fl", **CHAIN | MEASURING), 1, VALIDATION, b""),
]


@pytest.mark.parametrize(
    ("plan", "number", "stage", "layers"), NOT_ALLOWED, ids=lambda value: getattr(value, "name", "")
)
def test_what_the_plan_does_not_allow_is_no_round(plan: Plan, number: int, stage: Stage, layers: bytes) -> None:
    """Another stage, another number or another choice of layers is a MalformedMessage at whoever computes it."""
    with pytest.raises(MalformedMessage):
        _exchanges_of(plan).of(number, stage, layers)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["name"])
def test_the_volume_of_a_run_is_counted_without_walking_through_it(method: dict[str, Any], schedule: str) -> None:
    """The most bytes, and how often each kind of number travels, are those of all rounds added up."""
    name = method["name"]
    measuring = {} if name == "local" else MEASURING
    if name == "fedrep" and schedule not in {"every-epoch", "every-round"}:
        pytest.skip("the method cannot be planned so")
    plan = a_plan(name, schedule, **measuring)
    rounds = _whole_run(plan)

    assert most_bytes(plan, manifest_of(plan)) == sum(exchange.layout.total_bytes for _, exchange in rounds)
    for scalar in manifest_of(plan).scalars:
        times = sum(scalar in exchange.scalars for _, exchange in rounds)
        assert rounds_with(plan, scalar.stage) == times


def test_two_billion_rounds_are_counted_at_once() -> None:
    """The longest plan that there can be is counted in no time."""
    schedule = {"aggregate": "every-batch", "epochs": 21_474, "batches_per_epoch": 100_000}
    plan = plan_of_method({"name": "fedavg"}, schedule=schedule, checkpoint="global", **CHAIN)

    assert rounds_with(plan, Stage.VALIDATION) == 21_474
    assert most_bytes(plan, manifest_of(plan)) > 2_147_400_000 * 4 * manifest_of(plan).parameters
