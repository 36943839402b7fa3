"""The trainer with requests like the agent's: in its own process, or in this one from a list of requests."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from protos.wire.messages import Stage
from site_agent.trainer.training.flat_network import Vector
from site_agent.trainer_socket import Conclude, GateEnd, Message, Train

REPOSITORY = Path(__file__).parents[3]
NOTHING = memoryview(bytearray())  # as the trainer socket hands out a payload without bytes


class Asked:
    """A trainer process and the agent's end of its trainer socket; every byte it sent is kept."""

    def __init__(self, process: subprocess.Popen[str], ours: socket.socket) -> None:
        self.process, self._end, self._loop = process, GateEnd(ours), asyncio.new_event_loop()
        self.received = b""

    def ask(self, message: Message) -> Message:
        """One question, one answer."""
        answer = self._loop.run_until_complete(self._end.ask(message, largest_payload=1 << 24))
        self.received += repr(answer).encode() + bytes(answer.payload)
        return answer

    def send_raw(self, raw: bytes) -> None:
        """Send bytes that are no message."""
        self._end._socket._socket.sendall(raw)

    def close(self) -> None:
        """Close our end."""
        self._end.close()
        self._loop.close()

    def end(self) -> tuple[int, str]:
        """Close our end; its exit status and what it printed for its operator."""
        self.close()
        _, said = self.process.communicate(timeout=120)
        return self.process.returncode, said


@contextmanager
def trainer(config: Path, program: tuple[str, ...] = ("-m", "site_agent.trainer_process")) -> Iterator[Asked]:
    """Start the trainer as the agent does."""
    ours, theirs = socket.socketpair()
    words = [sys.executable, *program, "--config", str(config), "--socket", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    asked = Asked(process, ours)
    try:
        yield asked
    finally:
        if process.poll() is None:
            process.kill()
        asked.close()
        process.communicate()


def as_bytes(vector: Vector) -> memoryview:
    """A vector as a payload."""
    return vector.view(np.uint8).data


def question(number: int, stage: int, payload: bytes | memoryview, layers: str = "", best: int = -1) -> Train:
    """A round of any stage; nothing is saved after it."""
    return Train(round=number, stage=stage, layers=layers, best_round=best, saves=False, oldest=0, payload=payload)


def train(number: int, payload: bytes | memoryview) -> Train:
    """A training round in which all layers take part."""
    return question(number, int(Stage.TRAINING), payload)


def conclude(number: int, payload: bytes | memoryview) -> Conclude:
    """The last aggregate."""
    return Conclude(number, "", -1, payload)


class ScriptedSocket:
    """An agent that asks from a list and keeps what it receives."""

    def __init__(self, *questions: Message) -> None:
        self._questions, self.answers = iter(questions), list[Message]()
        self.largest_payload = 0

    def receive(self) -> Message | None:
        """The next question, None after the last."""
        return next(self._questions, None)

    def send(self, message: Message) -> None:
        """Keep an answer."""
        self.answers.append(message)
