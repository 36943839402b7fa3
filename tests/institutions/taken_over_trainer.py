"""A hostile trainer at a booted hospital: the worker of the installed package, which changes its answers.

It runs inside the machine as the program of the trainer's unit, with its user, files, sockets and sandbox: `python -P
taken_over_trainer.py SEED`. In drawn rounds it lies about every number. After a few rounds it does one of ACTS, after
which the gate ends the conversation. The service manager starts it again, and it goes on to the next act. The file DONE
has its actions, one in each line.
"""

from __future__ import annotations

import os
import random
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np

from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_wire
from protos.wire.messages import SiteReason, Stage
from site_agent.desk import after_rounds
from site_agent.framed_messages import HEADER
from site_agent.hospital import read_hospital
from site_agent.trainer.worker import Worker
from site_agent.trainer_process import _listen
from site_agent.trainer_socket import FRAMING, Agreed, Failed, Message, Prepare, Prepared, Train, Trained, TrainerEnd

CONFIGURATION = Path("/etc/global-layers/hospital.yaml")
DONE = Path("/var/lib/global-layers/site/scores/taken-over")
# Texts that no message of a site may hold in clear.
PATIENT = "patient 4711 Jane Doe"


class Tampering(TrainerEnd):
    """The socket to the gate; what the worker answers is changed as drawn."""

    def __init__(self, connection: socket.socket, seed: str) -> None:
        super().__init__(connection)
        self._connection, self._seed = connection, seed
        done = DONE.read_text().splitlines() if DONE.exists() else []
        self._luck = random.Random(f"{seed} {len(done)}")
        self._act, self._rounds_left = list(ACTS)[len(done) % len(ACTS)], self._luck.randrange(3)
        self._plan: Plan | None = None
        self._parameters = 0

    def receive(self) -> Message | None:
        """The gate's next question; what it asks for is noted."""
        question = super().receive()
        if isinstance(question, Prepare):
            self._plan = plan_from_wire(bytes(question.payload))
        elif isinstance(question, Train) and self._plan is not None:
            exchanges = Exchanges(self._plan, manifest_of(self._plan))
            exchange = exchanges.of(question.round, Stage(question.stage), bytes.fromhex(question.layers))
            self._parameters = exchange.layout.parameters
        return question

    def send(self, message: Message) -> None:
        """Hand an answer to the gate, or do something else and end."""
        if not isinstance(message, Trained):
            super().send(message)
        elif self._rounds_left > 0:
            self._rounds_left -= 1
            # The same lie whenever the same round is asked for: a gate masks one answer for a round.
            luck = random.Random(f"{self._seed} {message.round}")
            super().send(self.with_numbers(message, luck, 1e-3) if luck.random() < 0.5 else message)
        else:
            with DONE.open("a") as file:
                file.write(f"{self._act}\n")
            self._connection.sendall(ACTS[self._act](self, message, self._luck))
            os._exit(0)

    def with_numbers(self, answer: Trained, luck: random.Random, largest: float) -> Trained:
        """The same answer with other changes; the scalars behind them stay."""
        changes = np.random.default_rng(luck.randrange(1 << 32)).normal(0.0, largest, self._parameters)
        scalars = bytes(answer.payload)[4 * self._parameters :]
        return replace(answer, payload=changes.astype("<f4").tobytes() + scalars)


Act: TypeAlias = Callable[[Tampering, Trained, random.Random], bytes]


def whole(message: Message) -> bytes:
    """A message as it lies on the socket."""
    return FRAMING.frame(message) + bytes(message.payload)


def longer(answer: Trained, size: int) -> Trained:
    """The same answer with this many more bytes, which name a patient."""
    return replace(answer, payload=bytes(answer.payload) + (PATIENT.encode() * size)[:size])


def shorter(answer: Trained, size: int) -> Trained:
    """The same answer with this many fewer bytes."""
    return replace(answer, payload=bytes(answer.payload)[:-size])


def another_kind(luck: random.Random) -> Message:
    """An answer to another question, or a question."""
    text = PATIENT.encode()
    return luck.choice((Agreed(text), Prepared(PATIENT, text), Prepare(PATIENT, text), Train(0, 3, PATIENT, -1, b"")))


def garbage(luck: random.Random) -> bytes:
    """Bytes that are no frame, or the header of one that is never sent."""
    header = HEADER.pack(b"GLH1", luck.randrange(256), luck.randrange(1 << 32), luck.randrange(1 << 63))
    return luck.choice((PATIENT.encode() * 20, header, luck.randbytes(500)))


ACTS: Final[dict[str, Act]] = {
    "a failure with words": lambda _, answer, luck: whole(Failed(luck.choice(list(SiteReason)), 78, PATIENT)),
    "a later round": lambda _, answer, luck: whole(replace(answer, round=answer.round + luck.randrange(1, 9))),
    "an earlier round": lambda _, answer, luck: whole(replace(answer, round=answer.round - luck.randrange(1, 9))),
    "a shorter answer": lambda _, answer, luck: whole(shorter(answer, luck.randrange(1, 500))),
    "a longer answer": lambda _, answer, luck: whole(longer(answer, luck.randrange(1, 1 << 16))),
    "the answer twice": lambda _, answer, luck: whole(answer) * 2,
    "far too many answers": lambda _, answer, luck: whole(answer) * 40,
    "another kind": lambda _, answer, luck: whole(another_kind(luck)),
    "garbage": lambda _, answer, luck: garbage(luck),
    "half an answer": lambda _, answer, luck: whole(answer)[: len(answer.payload) // 2],
    "numbers out of range": lambda end, answer, luck: whole(end.with_numbers(answer, luck, 1e9)),
}


def main() -> None:
    """Be the trainer until the act is done."""
    os.umask(0o077)
    hospital = read_hospital(CONFIGURATION)
    connection = _listen(hospital, lambda: None)
    sys.exit(Worker(hospital, Tampering(connection, sys.argv[1]), after_rounds).serve())


if __name__ == "__main__":
    main()
