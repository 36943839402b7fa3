"""An attacker controls one process of a site, and sends requests to the other processes with its files and sockets. The
attacker in the agent wants a site to take part without a person's approval, or to fill the gate's memory. The attacker
in the gate wants a trainer to train without an approval, or to answer one round for many chosen values. The attacker in
the trainer wants to send text."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import numpy as np

from protos.errors import ConfigurationError
from protos.plan.manifest import manifest_of
from protos.wire.codec import encode_coordinator_message
from protos.wire.messages import Announcement, Join, Refusal, SiteReason
from site_agent import approvals, gate_socket
from site_agent.approving import approve
from site_agent.desk import after_rounds
from site_agent.gate import agent_link
from site_agent.gate.consent import Consent
from site_agent.gate.run_admission import Admission
from site_agent.gate_socket import WINDOW
from site_agent.hospital import read_hospital
from site_agent.state_folders import agent_folder, approvals_folder
from site_agent.trainer.disk import AnsweredRounds
from site_agent.trainer.worker import Worker
from site_agent.trainer_socket import Failed, Prepare, Prepared, Trained, TrainerEnd
from tests.federation import MadeUpTrainer, hospital, masked_plan
from tests.hostile.attack import Attack, in_copy, patched, scratch
from tests.hostile.taken_over import Gate, gate_at, whole
from tests.site_agent.trainer.asked import train
from tests.site_agent.trainer.sites import approve_plan, make_plan, make_site

AGENT = 61002
PATIENT = "patient 4711 Jane Doe"


def forged_approval(weakened: bool) -> bool:
    """Write an approval as the agent's user, into a folder of its own, where the approvals have to be."""
    plan = masked_plan("abc")
    with scratch() as folder, in_copy(weakened, lambda: patched(approvals, require_guarded=lambda _: None)):
        agent_folder(folder).mkdir()
        approve(folder, plan, by="A. Jones", at=datetime(2026, 1, 1, tzinfo=UTC))
        if os.geteuid() == 0:
            for place in (agent_folder(folder), approvals_folder(folder), *approvals_folder(folder).rglob("*")):
                os.chown(place, AGENT, AGENT)
        guard = approvals.guard_of(hospital("a", folder).model_copy(update={"gate_socket": "gate.sock"}))
        consent = Consent(folder, plan, approvers=1, now=lambda: datetime.now(UTC), guard=guard)
        try:
            return consent.why_not() is None
        except ConfigurationError:
            return False


def joining_without_an_approval(weakened: bool) -> bool:
    """Announce a plan that nobody has approved, from the agent's end of the gate socket."""
    plan = masked_plan("abc")

    async def scene(folder: Path) -> bool:
        async with gate_at(folder, plan, "a") as gate:
            await _say(gate, Announcement(plan.run_name, plan.canonical))
            for _ in range(50):
                await asyncio.sleep(0.005)
                gate.read()
            return any(isinstance(said, Join) for said in gate.said)

    with scratch() as folder, in_copy(weakened, lambda: patched(Consent, why_not=lambda _: None)):
        return asyncio.run(scene(folder))


def flood_of_messages(weakened: bool) -> bool:
    """Send messages faster than the gate takes them, until they fill its memory."""
    plan = masked_plan("abc")

    async def scene(folder: Path) -> bool:
        async with gate_at(folder, plan, "a") as gate:
            # The gate waits for an approval meanwhile, and takes nothing more.
            await _say(gate, Announcement(plan.run_name, plan.canonical))
            frame = whole(gate_socket.Down(1, bytes(1000)))
            for _ in range(20 * WINDOW):
                gate.write(frame)
                await asyncio.sleep(0.001)
            return gate.waiting > 2 * WINDOW

    with scratch() as folder, in_copy(weakened, lambda: patched(agent_link, WINDOW=1 << 30)):
        return asyncio.run(scene(folder))


def failure_that_names_a_patient(weakened: bool) -> bool:
    """Report a failure as the trainer, with a patient's name in place of a tensor's name."""
    plan = masked_plan("abc")

    async def fails(*_: object) -> Failed:
        return Failed(SiteReason.DATA_UNFIT, 78, PATIENT)

    async def scene(folder: Path) -> bool:
        approve(folder, plan, by="A. Jones", at=datetime(2026, 1, 1, tzinfo=UTC))
        async with gate_at(folder, plan, "a") as gate:
            await _say(gate, Announcement(plan.run_name, plan.canonical))
            for _ in range(100):
                await asyncio.sleep(0.005)
                gate.read()
            refusals = [said for said in gate.said if isinstance(said, Refusal)]
            assert refusals
            return any(PATIENT in refusal.tensor for refusal in refusals)

    weaker = in_copy(weakened, lambda: patched(Admission, _named=lambda _, tensor: tensor))
    with scratch() as folder, patched(MadeUpTrainer, ask=fails), weaker:
        return asyncio.run(scene(folder))


async def _say(gate: Gate, message: Announcement) -> None:
    while not gate.has_stream:
        await asyncio.sleep(0.001)
    gate.socket.send(whole(gate_socket.Down(1, encode_coordinator_message(message))))


class _NoSocket:
    largest_payload = 0


def _worker(folder: Path, *, is_approved: bool) -> tuple[Worker, Any]:
    plan, config = make_plan(), make_site(folder, simple_models=False)
    if is_approved:
        approve_plan(config, plan)
    return Worker(read_hospital(config), cast(TrainerEnd, _NoSocket()), after_rounds), plan


def training_without_an_approval(weakened: bool) -> bool:
    """Prepare a plan that nobody has approved, from the gate's end of the trainer socket."""
    with scratch() as folder, in_copy(weakened, lambda: patched(Worker, _approved=_whatever_leaves)):
        one, plan = _worker(folder, is_approved=False)
        return isinstance(one._answer(Prepare(plan.run_name, plan.canonical)), Prepared)


def _whatever_leaves(_: Worker, plan: Any) -> str:
    return manifest_of(plan).digest.hex()


def one_round_for_many_values(weakened: bool) -> bool:
    """Prepare the approved plan again and again, each time with other values for the first round."""
    with scratch() as folder, in_copy(weakened, lambda: patched(AnsweredRounds, admit=lambda *_: None)):
        one, plan = _worker(folder, is_approved=True)
        first, answered = manifest_of(plan).initial_parameters(plan.seed), 0
        for number in range(3):
            assert isinstance(one._answer(Prepare(plan.run_name, plan.canonical)), Prepared)
            values = (first + np.float32(number)).astype("<f4")
            answered += isinstance(one._answer(train(0, memoryview(values).cast("B"))), Trained)
        assert answered >= 1
        return answered > 1


ATTACKS = (
    Attack("forged-approval", "the look at who could have written an approval", forged_approval),
    Attack("agent-without-approval", "the gate's question for an approval", joining_without_an_approval),
    Attack("flood-through-the-agent", "the window of the gate socket", flood_of_messages),
    Attack(
        "failure-that-names-a-patient",
        "the gate's comparison with the names of the plan's tensors",
        failure_that_names_a_patient,
    ),
    Attack("gate-without-approval", "the trainer's own question for an approval", training_without_an_approval),
    Attack("gate-asks-one-round-often", "the trainer's memory of answered rounds", one_round_for_many_values),
)
