"""A coordinator that requests the wrong round or other layers, and a trainer that returns more than was requested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protos.errors import OperatorError, ProtocolError
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.codec import encode_coordinator_message
from protos.wire.messages import (
    Bind,
    Chunk,
    CoordinatorMessage,
    CoordinatorReason,
    Done,
    Farewell,
    Finish,
    Offer,
    Refusal,
    SiteReason,
    Stage,
)
from protos.wire.positions import parameters_digest
from tests.rehearsal.federation import Office
from tests.rehearsal.lying import Evidence, Lie, Stream, evidence_of, hospital_for
from tests.rehearsal.study import SITES, made_up_identities, parameter_chunks, plan_with

ALL = tuple(SITES)
NOTHING = np.zeros(0, np.float32)
ZEROS = np.zeros(10, np.float32)
CHAIN: dict[str, Any] = {"architecture": {"name": "dense", "hidden": [2, 2]}, "columns": ["x"], "outputs": 1}
PROBING: dict[str, Any] = {"method": {"name": "player-fl"}} | CHAIN
# As the plan starts it, whoever the sites are.
FIRST_LAYER = manifest_of(plan_with(made_up_identities(), changes=PROBING)).initial_parameters(0)[:4]
ALLOWED = {"methods": ["fedavg", "player-fl"]}


def plans(office: Office, name: str) -> Plan:
    """The hospital's approval."""
    measuring = {"checkpoint": "global", "early_stopping": {"signal": "local", "patience": 1}}
    schedule = {"aggregate": "every-epoch", "epochs": 4, "batches_per_epoch": 1}
    methods: dict[str, dict[str, Any]] = {
        "plain": {},
        "measuring": measuring,
        "probing": PROBING,
    }
    return plan_with(office.identities, changes=methods[name] | {"schedule": schedule})


def asked(
    number: int, stage: Stage, vector: Any = ZEROS, layers: bytes = b"", best: int | None = None
) -> list[CoordinatorMessage]:
    """A round in all its parts, from the offer to the contributors."""
    offer = Offer(number, 0, parameters_digest(vector), stage, layers, best)
    return [offer, *parameter_chunks(vector, number), Bind(number, 0, ALL, 0)]


def finish(number: int, vector: Any = ZEROS, layers: bytes = b"") -> list[CoordinatorMessage]:
    """A result in all its parts."""
    return [Finish(number, parameters_digest(vector), layers), *parameter_chunks(vector, number)]


def with_stage(number: int) -> bytes:
    """An offer of a stage that this version does not have."""
    return encode_coordinator_message(Offer(0, 0, bytes(32), Stage.STATISTICS)).replace(
        b"\x20\x03", bytes([0x20, number])
    )


PROBE, TRAINING, VALIDATION = Stage.PROBE, Stage.TRAINING, Stage.VALIDATION
LIES: dict[str, tuple[str, list[list[Any]], int]] = {
    "a probe under a plan without": ("plain", [asked(0, PROBE, NOTHING)], 0),
    "a validation under a plan without": ("plain", [asked(0, TRAINING), asked(1, VALIDATION)], 1),
    "a stage that this version does not have": ("plain", [[with_stage(6)]], 0),
    "half of the layers": ("plain", [asked(0, TRAINING, ZEROS[:3], b"\x01")], 0),
    "layers with the whole vector": ("plain", [asked(0, TRAINING, ZEROS, b"\x01")], 0),
    "a validation before anything was trained": ("measuring", [asked(0, VALIDATION)], 0),
    "a second validation": ("measuring", [asked(0, TRAINING), asked(1, VALIDATION), asked(2, VALIDATION)], 2),
    "training after the validation": ("measuring", [asked(0, TRAINING), asked(1, VALIDATION), asked(2, TRAINING)], 2),
    "a result before the validation": ("measuring", [asked(0, TRAINING), finish(1)], 1),
    "a best round that was never measured": ("measuring", [asked(0, TRAINING), asked(1, TRAINING, best=0)], 1),
    "parameters with the probe": ("probing", [asked(0, PROBE, FIRST_LAYER)], 0),
    "other layers in the second round": (
        "probing",
        [asked(1, TRAINING, FIRST_LAYER, b"\x01"), asked(2, TRAINING, np.zeros(10, np.float32))],
        1,
    ),
    "other layers in the result": (
        "probing",
        [*(asked(number, TRAINING, FIRST_LAYER, b"\x01") for number in range(1, 5)), finish(5, ZEROS)],
        4,
    ),
}


def telling(plan: Plan, steps: list[list[Any]], honest: int) -> Lie:
    """So many steps to which the site sends its chunk, and then the lie."""

    async def lie(stream: Stream) -> None:
        await stream.joined(plan)
        for messages in steps[:honest]:
            await stream.send(*messages)
            await stream.expect(Chunk)
        await stream.send(*steps[honest])

    return lie


@pytest.mark.parametrize("name", LIES)
def test_what_is_asked_out_of_turn_is_not_answered(tmp_path: Path, office: Office, name: str) -> None:
    """The site stops at the lie and records it. It sent only agreed data before, and nothing afterwards."""
    kind, steps, honest = LIES[name]
    plan = plans(office, kind)

    evidence = evidence_of(
        office,
        tmp_path,
        telling(plan, steps, honest),
        approved=(plan,),
        hospital=hospital_for(tmp_path, policy=ALLOWED),
    )

    assert len(evidence.chunks) == len(evidence.events("contribution_released")) == honest
    assert isinstance(evidence.error, ProtocolError), evidence.error
    (record,) = evidence.events("coordinator_refused")
    assert record["reason"] in evidence.error.what
    refusals = [message for message in evidence.received if isinstance(message, Refusal)]
    assert [refusal.reason for refusal in refusals] == [SiteReason.COORDINATOR_MISBEHAVED]


def test_an_honest_run_with_every_stage_is_answered_to_its_end(tmp_path: Path, office: Office) -> None:
    """The same words in their turn: two rounds of training, an early end, validation, result."""
    plan = plans(office, "measuring")
    steps = [asked(0, TRAINING), asked(1, TRAINING), asked(2, VALIDATION, best=1), finish(3)]

    evidence = evidence_of(office, tmp_path, _then_over(plan, steps), approved=(plan,))

    assert evidence.error is None
    released = evidence.events("contribution_released")
    assert [entry["stage"] for entry in released] == ["training", "training", "validation"]
    assert [len(entry["scalars"]) for entry in released] == [0, 3, 3]
    assert [len(chunk.body) for chunk in evidence.chunks] == [48, 72, 32]
    assert evidence.events("run_finished")[0]["rounds"] == 3


def _then_over(plan: Plan, steps: list[list[Any]]) -> Lie:
    async def honest(stream: Stream) -> None:
        await telling(plan, steps, len(steps) - 1)(stream)
        await stream.expect(Done)
        await stream.send(Farewell(CoordinatorReason.ALL_RUNS_OVER, "over"))

    return honest


def refused(office: Office, folder: Path, **lie: Any) -> Evidence:
    """A trainer that answers so in a measured round; the first round is honest."""
    plan = plans(office, "measuring")
    steps = [asked(0, TRAINING), asked(1, TRAINING)]
    return evidence_of(office, folder, telling(plan, steps, 1), approved=(plan,), **lie)


@pytest.mark.parametrize("scalar", [-1, 2, 1 << 62, -(1 << 63)])
def test_a_number_out_of_bounds_does_not_leave(tmp_path: Path, office: Office, scalar: int) -> None:
    """Whatever the trainer has measured, beyond the agreed bound it stops this site by a reason of the list."""
    evidence = refused(office, tmp_path, scalar=scalar)

    assert [chunk.round for chunk in evidence.chunks] == [0]
    assert isinstance(evidence.error, OperatorError)
    assert "is outside its agreed limits" in evidence.error.what
    assert isinstance(evidence.received[-1], Refusal)
    assert evidence.received[-1].reason is SiteReason.TRAINER_FAILED


@pytest.mark.parametrize("bytes_more", [1, 8, 80, 1 << 20])
def test_a_trainer_that_hands_out_more_is_refused(tmp_path: Path, office: Office, bytes_more: int) -> None:
    """One number more than the round's exchange is refused at the trainer socket, before it is in memory."""
    plan = plans(office, "measuring")

    evidence = evidence_of(
        office, tmp_path, telling(plan, [asked(0, TRAINING)], 0), approved=(plan,), too_much=bytes(bytes_more)
    )

    assert evidence.chunks == []
    assert evidence.events("coordinator_refused") == []
    assert isinstance(evidence.received[-1], Refusal)
    assert evidence.received[-1].reason is SiteReason.TRAINER_FAILED
