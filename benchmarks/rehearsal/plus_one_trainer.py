"""Runs a trainer that returns its input plus one: `plus_one_trainer.py SOCKET PARAMETERS ROUNDS`.

It speaks the trainer socket on a Unix socket like the trainer of a hospital, and loads no tensor library. The update
from the input to the input plus one is 1 everywhere, so it is made once. Before it takes in the last aggregate it
prints a line and waits for an answer, so that the measuring program finds every process idle with its work done.
"""

from __future__ import annotations

import socket
import sys

import numpy as np
import numpy.typing as npt

from protos.plan.manifest import manifest_of
from protos.plan.plan import LARGEST_PLAN_BYTES, plan_from_wire
from site_agent.trainer_socket import Agreed, Check, Conclude, Message, Prepare, Prepared, Train, Trained, TrainerEnd


def main() -> None:
    """Reply to one agent until the agent disconnects."""
    place, parameters, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    update = np.ones(parameters, np.float32)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(place)
        listener.listen(1)
        print("listening", flush=True)
        trainer_socket = TrainerEnd(listener.accept()[0])
    trainer_socket.largest_payload = max(4 * parameters, LARGEST_PLAN_BYTES)
    while (question := trainer_socket.receive()) is not None:
        trainer_socket.send(_answer(question, update, rounds))


def _answer(question: Message, update: npt.NDArray[np.float32], rounds: int) -> Message:
    match question:
        case Check():
            return Agreed()
        case Prepare(payload=payload):
            return Prepared(manifest_of(plan_from_wire(bytes(payload))).digest.hex())
        case Train(round=number, payload=payload):
            received = np.frombuffer(payload, "<f4")
            # Only the first and last values are read, because reading all values would add this trainer's time to the
            # round.
            assert received.size == update.size
            assert received[0] == received[-1] == number
            return Trained(number, 0, memoryview(update).cast("B"))
        case Conclude(payload=payload):
            assert bool((np.frombuffer(payload, "<f4") == rounds).all())
            print("concluding", flush=True)
            sys.stdin.readline()
            return Agreed()
        case _:
            raise ValueError("an answer instead of a request")


if __name__ == "__main__":
    main()
