"""Runs a trainer that returns its input plus one: `plus_one_trainer.py SOCKET PARAMETERS ROUNDS`.

It speaks the trainer socket on a Unix socket like the trainer of a hospital, and loads no tensor library for updates of
32 bits. The update from the input to the input plus one is 1 everywhere, so it is made once. Under a plan with short
integers it is encoded in each round, as a hospital's trainer does. Before it takes in the last aggregate it prints a
line and waits for an answer, so that the measuring program finds every process idle with its work done.
"""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import numpy as np

from protos.plan.manifest import manifest_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import LARGEST_PLAN_BYTES, Plan, plan_from_wire
from site_agent.trainer.requests import Asked
from site_agent.trainer_socket import Agreed, Check, Conclude, Message, Prepare, Prepared, Train, Trained, TrainerEnd

if TYPE_CHECKING:
    from site_agent.trainer.study import ShortUpdates


def main() -> None:
    """Reply to one agent until the agent disconnects."""
    place, parameters, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    trainer = _PlusOne(parameters, rounds)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(place)
        listener.listen(1)
        print("listening", flush=True)
        trainer_socket = TrainerEnd(listener.accept()[0])
    trainer_socket.largest_payload = max(4 * parameters, LARGEST_PLAN_BYTES)
    while (question := trainer_socket.receive()) is not None:
        trainer_socket.send(trainer.answer(question))


class _PlusOne:
    def __init__(self, parameters: int, rounds: int) -> None:
        self._update, self._rounds = np.ones(parameters, np.float32), rounds
        self._short: ShortUpdates | None = None

    def answer(self, question: Message) -> Message:
        """Return the answer to a request of the gate."""
        match question:
            case Check():
                return Agreed()
            case Prepare(payload=payload):
                return self._prepare(plan_from_wire(bytes(payload)))
            case Train(round=number, payload=payload):
                received = np.frombuffer(payload, "<f4")
                # Only the first and last values are read, because reading all values would add this trainer's time to
                # the round.
                assert received.size == self._update.size
                assert received[0] == received[-1] == number
                return Trained(number, 0, self._sent(question))
            case Conclude(payload=payload):
                assert bool((np.frombuffer(payload, "<f4") == self._rounds).all())
                print("concluding", flush=True)
                sys.stdin.readline()
                return Agreed()
            case _:
                raise ValueError("an answer instead of a request")

    def _prepare(self, plan: Plan) -> Prepared:
        manifest = manifest_of(plan)
        if plan.bits != 32:
            from site_agent.trainer.study import ShortUpdates

            assert isinstance(plan, NetworkPlan)
            self._short = ShortUpdates(plan, manifest, manifest.tensors, b"benchmark")
        return Prepared(manifest.digest.hex())

    def _sent(self, question: Train) -> memoryview:
        if self._short is None:
            return memoryview(self._update).cast("B")
        asked = Asked(round=question.round, scales=bytes.fromhex(question.scales))
        return memoryview(self._short.encode(self._update, asked, 1.0)).cast("B")


if __name__ == "__main__":
    main()
