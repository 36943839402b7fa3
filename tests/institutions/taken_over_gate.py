"""A hostile gate at a booted hospital: a program that sends any requests to the real trainer.

It runs inside the machine as the program of the gate's unit, with its user, files, sockets and sandbox: `python -P
taken_over_gate.py SECONDS SEED APPROVED WITHDRAWN`, the last two being names of studies. It repeatedly connects to the
trainer, prepares a plan and sends a drawn sequence of requests. At its end it prints its requests and the answers, as
JSON.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np

from protos.errors import OperatorError
from protos.plan.exchange import Exchanges, stage_at
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_json, plan_from_wire
from protos.wire.messages import MalformedMessage, Stage
from site_agent.approving import approve
from site_agent.framed_messages import HEADER
from site_agent.gate.door import payload_bytes
from site_agent.trainer_socket import Conclude, Failed, Message, Prepare, Prepared, Train, Trained, TrainerEnd

STATE: Final = Path("/var/lib/global-layers/site")
PLACE: Final = "/run/site-trainer/trainer.sock"
LARGEST_BYTES: Final = 1 << 26


class Conversation:
    """One connection to the trainer; each answer is held against what may come."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._exchanges = Exchanges(plan, manifest_of(plan))
        self._connection = _connected()
        self._end = TrainerEnd(self._connection)
        self._end.largest_payload = LARGEST_BYTES

    def ask(self, message: Message | bytes) -> Message | None:
        """Send a question, or bytes that are none; the answer, None where the trainer has hung up."""
        with suppress(OSError):
            if isinstance(message, bytes):
                self._connection.sendall(message)
            else:
                self._end.send(message)
            return self._end.receive()
        return None

    def honest(self, number: int) -> Train:
        """A gate's request in a round, with the same values each time."""
        stage = stage_at(self.plan, number) or Stage.TRAINING
        numbers = self._exchanges.of(number, stage, b"").down_numbers
        values = np.random.default_rng(number).normal(0.0, 0.05, numbers).astype("<f4")
        return Train(number, int(stage), "", -1, values.tobytes(), saves=number % 3 == 0)

    def expected_bytes(self, question: Train) -> int:
        """How long the answer to a question is under the plan.

        Raises:
            MalformedMessage: the plan has no such round.
        """
        stage, layers = Stage(question.stage), bytes.fromhex(question.layers)
        return payload_bytes(self._exchanges.of(question.round, stage, layers))

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


ACTS: Final[dict[str, Callable[[Train, random.Random], Message | bytes]]] = {
    "another stage": lambda asked, luck: replace(
        asked, stage=luck.choice([int(stage) for stage in Stage if stage != asked.stage] + [99])
    ),
    "other values": lambda asked, luck: replace(asked, payload=_drawn(asked, luck)),
    "other layers": lambda asked, luck: replace(asked, layers=luck.choice(("01", "ff", "zz", "0" * 300))),
    "a round beyond the last": lambda asked, luck: replace(asked, round=luck.choice((-1, 20_001, 1 << 40))),
    "too few values": lambda asked, luck: replace(asked, payload=bytes(asked.payload)[: -4 * luck.randrange(1, 50)]),
    "too many values": lambda asked, luck: replace(asked, payload=bytes(asked.payload) + bytes(4096)),
    "values that are no numbers": lambda asked, luck: replace(asked, payload=b"\xff" * len(asked.payload)),
    "a best round to come": lambda asked, luck: replace(asked, best_round=asked.round + luck.randrange(1, 99)),
    "the result at once": lambda asked, _: Conclude(asked.round, "", -1, asked.payload),
    "an answer": lambda asked, _: Trained(asked.round, 0, asked.payload),
    "garbage": lambda _, luck: HEADER.pack(b"GLH1", luck.randrange(9), luck.randrange(1 << 32), 1 << 62),
}


def _drawn(asked: Train, luck: random.Random) -> bytes:
    values = np.random.default_rng(luck.randrange(1 << 32)).normal(0.0, 1.0, len(asked.payload) // 4)
    return values.astype("<f4").tobytes()


def _connected() -> socket.socket:
    """The trainer's socket; a trainer that has ended is started again by the service manager."""
    deadline = time.monotonic() + 30
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(PLACE)
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


class TakenOverGate:
    """The attacker in the gate, with the answers so far."""

    def __init__(self, approved: Plan, withdrawn: Plan, seed: int) -> None:
        self._approved, self.luck = approved, random.Random(seed)
        self._refused = {"withdrawn": withdrawn} | dict(_changed(approved))
        self._names, self._acts = list(self._refused), list(ACTS)
        self.forged: list[str] = []
        self.asked: Counter[str] = Counter()
        self.got: Counter[str] = Counter()
        self.updates: dict[int, set[str]] = {}  # of the approved plan, by round
        self.wrong: list[str] = []

    def forge(self) -> None:
        """Say yes to each plan in a person's name."""
        for name, plan in self._refused.items():
            try:
                approve(STATE, plan, by="A. Jones", at=datetime.now(UTC))
                self.forged.append(name)
            except (OSError, OperatorError):
                pass

    def converse(self, turn: int) -> None:
        """One connection about a plan that must not train, and one about the approved plan."""
        self._ask_refused(self._names[turn % len(self._names)])
        talk = Conversation(self._approved)
        try:
            prepared = talk.ask(Prepare(self._approved.run_name, self._approved.canonical))
            self._hold(prepared, None, talk)
            rounds = 3 if turn == 0 else self.luck.randrange(3)
            for number in range(rounds):
                question = talk.honest(number)
                if not isinstance(self._hold(talk.ask(question), question, talk), Trained):
                    return
            act = self._acts[turn % len(self._acts)]
            # Of a round that was answered before, and whose turn it is again: no other rule refuses it.
            question = ACTS[act](talk.honest(min(rounds, 2)), self.luck)
            self.asked[act] += 1
            self._hold(talk.ask(question), question, talk)
        finally:
            talk.close()

    def _ask_refused(self, name: str) -> None:
        """Prepare a plan that nobody has approved, or ask for its round without preparing it."""
        plan = self._refused[name]
        talk = Conversation(plan)
        try:
            self.asked[name] += 1
            prepare: Message = Prepare(self.luck.choice((plan.run_name, self._approved.run_name)), plan.canonical)
            answer = talk.ask(self.luck.choice((prepare, prepare, talk.honest(0))))
            if answer is not None and not isinstance(answer, Failed):
                self.wrong.append(f"{name}: {type(answer).__name__}")
        finally:
            talk.close()

    def _hold(self, answer: Message | None, question: Message | bytes | None, talk: Conversation) -> Message | None:
        """Hold an answer against what the approved plan lets out."""
        self.got[type(answer).__name__] += 1
        match answer:
            case None | Failed(tensor=""):
                pass
            case Prepared(manifest_digest=digest, payload=payload) if question is None:
                if digest != manifest_of(self._approved).digest.hex() or len(payload) % 16:
                    self.wrong.append("prepared something else")
            case Trained() if isinstance(question, Train):
                self._hold_update(answer, question, talk)
            case _:
                self.wrong.append(f"{type(answer).__name__} to {type(question).__name__}")
        return answer

    def _hold_update(self, answer: Trained, question: Train, talk: Conversation) -> None:
        self.updates.setdefault(question.round, set()).add(sha256(answer.payload).hexdigest())
        try:
            is_whole = len(answer.payload) == talk.expected_bytes(question)
        except MalformedMessage:
            is_whole = False
        if not is_whole or answer.round != question.round or answer.rows:
            self.wrong.append(f"an update that the plan does not have, to {question}")


def _changed(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Plans like the approved one that nobody has approved."""
    document = json.loads(plan.canonical)
    changes: dict[str, dict[str, Any]] = {
        "without masks": {"masking": {"required": False}},
        "another study": {"study": "another"},
        "a later version": {"version": document["version"] + 1},
        "other first values": {"start": document["start"] | {"seed": 12}},
        "more rounds": {"schedule": document["schedule"] | {"epochs": 19_999}},
        "a wider layer": {"architecture": document["architecture"] | {"latent": 16}},
    }
    for name, change in changes.items():
        yield name, plan_from_json(json.dumps(document | change))


def plan_of(study: str) -> Plan:
    """A plan that the persons here have said something to."""
    plans = (plan_from_wire(path.read_bytes()) for path in sorted((STATE / "approvals/plans").glob("*.json")))
    return next(plan for plan in plans if plan.study == study)


def main() -> None:
    """Ask for this number of seconds."""
    deadline = time.monotonic() + float(sys.argv[1])
    gate = TakenOverGate(plan_of(sys.argv[3]), plan_of(sys.argv[4]), int(sys.argv[2]))
    gate.forge()
    turn = 0
    while time.monotonic() < deadline:
        gate.converse(turn)
        turn += 1
    updates = {number: len(found) for number, found in gate.updates.items()}
    print(
        json.dumps(
            {"turns": turn, "asked": gate.asked, "got": gate.got, "updates": updates, "forged": gate.forged}
            | {"wrong": gate.wrong}
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
