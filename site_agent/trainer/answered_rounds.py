"""Records on the trainer's disk, for each plan, the rounds for which the trainer has returned a result.

The gate limits the coordinator's requests. This record limits the gate's requests. So a gate that an attacker controls
gets only the updates of an approved plan. The rules:

* a round is answered for one set of shared values. The same request is answered again;
* a request is recorded before it is answered. The run's name, or preparing the plan again, makes no difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, TypeAlias

from blake3 import blake3

from protos.errors import UnavailableError
from protos.plan.plan import Plan
from protos.wire.messages import MalformedMessage
from site_agent.trainer.failures import START_AGAIN
from site_agent.trainer_socket import Train

# Round, stage, layers, digest of the received values.
Question: TypeAlias = tuple[int, int, str, str]
_FOLDER: Final = "answered"


class AnsweredRounds:
    """The requests that the trainer has answered for one plan, with their rounds."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        """Read the record of a plan."""
        self._path = folder / _FOLDER / f"{plan.digest.hex()}.jsonl"
        self._known: dict[int, Question] = {question[0]: question for question in self._read()}

    def admit(self, train: Train) -> None:
        """Check that the trainer may answer this request of the gate, and record the request on disk.

        Raises:
            MalformedMessage: another request was answered for this round.
        """
        question = (train.round, train.stage, train.layers, blake3(train.payload).hexdigest())
        known = self._known.get(train.round)
        if known is None:
            self._write(question)
            self._known[train.round] = question
        elif known != question:
            raise MalformedMessage("another question for a round that was answered")

    def _read(self) -> list[Question]:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    def _write(self, question: Question) -> None:
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # The file is not synced, because written data survive the end of the process, and an attacker in the gate
            # process cannot cut the power.
            with self._path.open("a") as file:
                file.write(json.dumps(question) + "\n")
        except OSError as cause:
            raise UnavailableError(
                what=f"The file that lists the answered rounds cannot be written: {cause.strerror}.",
                consequence="Nothing more was trained or sent.",
                remedy=f"Free space on the disk of the state directory. {START_AGAIN}",
            ) from cause
