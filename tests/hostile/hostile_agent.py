"""A site's agent that an attacker controls: the agent's user, groups and files, with this program instead of its own.

Usage: python -m tests.hostile.hostile_agent USER GROUPS STATE TRAINER_SOCKET PLAN OUTPUT

It forges two approvals, asks the trainer for a round with parameters of its own, and reads what it can of other
processes' files. What it got is written to OUTPUT as JSON: the names of what succeeded, and the trainer's answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from pki.identity_key import identity_key_path
from protos.errors import OperatorError
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_wire
from protos.wire.messages import Stage
from site_agent.approving import approve
from site_agent.state_folders import gate_folder, gate_store_path
from site_agent.trainer_socket import GateEnd, Prepare, Prepared, Train, Trained
from tests.hostile.imprinting import imprint

LARGEST_BYTES = 1 << 24


def become(user: int, groups: list[int]) -> None:
    """Give up root for good."""
    os.setgroups(groups)
    os.setgid(user)
    os.setuid(user)
    assert os.getuid() == os.geteuid() == user


def _forge_approvals(state: Path, plan: Plan) -> None:
    for name in ("A. Jones", "B. Smith"):
        approve(state, plan, by=name, at=datetime.now(UTC))


async def _ask_the_trainer(place: Path, plan: Plan) -> list[float]:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(place))
    trainer = GateEnd(connection)
    try:
        prepared = await trainer.ask(Prepare(plan.run_name, plan.canonical), LARGEST_BYTES)
        assert isinstance(prepared, Prepared), prepared
        parameters = imprint(plan, "input.layer1", -6.0, 6.0, "head.layer2")
        question = Train(0, int(Stage.TRAINING), "", -1, parameters.tobytes())
        trained = await trainer.ask(question, LARGEST_BYTES)
        assert isinstance(trained, Trained), trained
        return np.frombuffer(trained.payload, "<f4", manifest_of(plan).parameters).astype(float).tolist()
    finally:
        trainer.close()


def main() -> None:
    """Try everything, one after the other."""
    user, groups, state, place, plan_file, output = sys.argv[1:]
    plan = plan_from_wire(Path(plan_file).read_bytes())
    out = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
    become(int(user), [int(group) for group in groups.split(",")])
    folder = Path(state)
    tries: dict[str, Callable[[], Any]] = {
        "forged approvals": lambda: _forge_approvals(folder, plan),
        "read the identity key": lambda: bool(identity_key_path(gate_folder(folder)).read_bytes()),
        "wrote to the audit log": lambda: gate_store_path(folder).open("ab").close(),
        "asked the trainer": lambda: asyncio.run(_ask_the_trainer(Path(place), plan)),
    }
    found: dict[str, Any] = {}
    for name, way in tries.items():
        try:
            found[name] = way()
        except (OSError, OperatorError, AssertionError) as refused:
            print(f"{name}: {type(refused).__name__} {refused}", file=sys.stderr)
    os.write(out, json.dumps(found).encode())


if __name__ == "__main__":
    main()
