"""Implements `site-agent review --dry-run`, which makes and checks one round as in a run, but sends nothing.

The trainer is started with `--rehearse`: it requires no approval, stores nothing on disk and answers for one round. A
person who can start it can read the table anyway. The service, which other processes can reach, is never started in
this way.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from host.starting_files import starting_values
from protos.plan.exchange import Exchange, Exchanges, stage_at
from protos.plan.manifest import Manifest, manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Stage
from site_agent.gate.door import Builder, payload_bytes, unexpected_answer
from site_agent.gate.mishaps import TrainerFailed
from site_agent.gate.privacy_ledger import with_noise
from site_agent.hospital import Hospital
from site_agent.trainer_socket import Failed, GateEnd, Prepare, Prepared, Train, Trained


@dataclass(frozen=True, kw_only=True)
class Made:
    """The contribution of a dry run before masking: its bytes, their BLAKE3, the number of clipped values."""

    stage: str
    bytes: int
    clipped: int
    digest: str


async def rounds_without_sending(hospital: Hospital, path: Path, plan: Plan) -> tuple[Made, ...]:
    """Compute the first round of a plan without sending it. After a probe, also compute the first training round.

    Args:
        path: its file, which the trainer reads itself.
        plan: not necessarily approved.

    Raises:
        OperatorError: the plan or the table does not fit, or the gate would have refused.
    """
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-P", "-m", "site_agent.trainer_process", "--config", str(path), "--rehearse"]
    command = [*words, "--socket", str(theirs.fileno())]
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL):
        theirs.close()
        end = GateEnd(ours)
        try:
            return await _make(hospital, plan, end)
        finally:
            end.close()  # the trainer ends with it


async def _make(hospital: Hospital, plan: Plan, end: GateEnd) -> tuple[Made, ...]:
    prepared = await end.ask(Prepare(plan.run_name, plan.canonical), 0)
    if isinstance(prepared, Failed):
        raise TrainerFailed(prepared)
    if not isinstance(prepared, Prepared):
        raise unexpected_answer()
    if plan.tier_of(hospital.site) == "receiving":
        return ()
    trains = plan.tier_of(hospital.site) == "training"
    builder = Builder(plan, trains=trains, smallest_rows=hospital.policy.smallest_training_rows)
    made = []
    manifest = manifest_of(plan, starting_values(Path(hospital.starting_files), plan))
    for number, exchange in _first_rounds(plan, manifest):
        received = _received(plan, manifest, exchange)
        question = Train(number, int(exchange.stage), exchange.layers.hex(), -1, received)
        answer = await end.ask(question, payload_bytes(exchange))
        if isinstance(answer, Failed):
            raise TrainerFailed(answer)
        if not isinstance(answer, Trained):
            raise unexpected_answer()
        # This noise costs no budget, because these bytes are never sent.
        noise = None if plan.privacy is None else partial(with_noise, plan)
        built = builder.build(b"", exchange, memoryview(answer.payload), rows=answer.rows, noise=noise)
        stage = exchange.stage.name.lower()
        made.append(Made(stage=stage, bytes=len(built.buffer), clipped=built.clipped, digest=built.digest.hex()))
    return tuple(made)


def _first_rounds(plan: Plan, manifest: Manifest) -> Iterator[tuple[int, Exchange]]:
    exchanges = Exchanges(plan, manifest)
    for number in (0, 1):
        stage = stage_at(plan, number)
        assert stage is not None
        yield number, exchanges.of(number, stage, b"")
        if stage is not Stage.PROBE:
            return


def _received(plan: Plan, manifest: Manifest, exchange: Exchange) -> bytes:
    """Return what the site would receive: the first values, then control variates and sums of private layers, all 0."""
    values = manifest.initial_parameters(plan.seed) if exchange.down else np.empty(0, np.float32)
    return values.tobytes() + bytes(4 * (exchange.down_numbers - values.size) + 8 * exchange.own_numbers)
