"""The trainer's pulse: a service manager receives it during work, and waits while libraries work."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import site_agent.trainer_process as main_module
from site_agent import trainer_socket
from site_agent.hospital import read_hospital
from site_agent.trainer.pulse import LONG_SECONDS, Pulse
from site_agent.trainer_socket import Check, Trained, TrainerEnd
from tests.site_agent.trainer.test_main import hospital_yaml


def test_it_beats_no_oftener_than_it_has_to() -> None:
    """Thousands of batches in a second are one beat; after a quarter of the watchdog's time comes the next."""
    said: list[str] = []
    seconds = 0.0
    pulse = Pulse(said.append, lambda: seconds, 40.0)

    for _ in range(1000):
        pulse.beat()
    seconds = 9.9
    pulse.beat()
    assert said == ["WATCHDOG=1"]

    seconds = 10.1
    pulse.beat()
    assert said == ["WATCHDOG=1"] * 2


def test_long_work_is_announced_and_ended() -> None:
    """A library's work may take hours; after it, also after a failure, the unit's own time counts again."""
    said: list[str] = []
    pulse = Pulse(said.append, lambda: 0.0, 40.0)

    with pytest.raises(ZeroDivisionError), pulse.long_work():
        raise ZeroDivisionError

    assert said == [f"WATCHDOG_USEC={LONG_SECONDS}000000\nWATCHDOG=1", "WATCHDOG_USEC=40000000\nWATCHDOG=1"]


def _beats_awaited(number: int) -> tuple[Callable[[], None], threading.Event]:
    enough, beats = threading.Event(), [0]

    def idle() -> None:
        beats[0] += 1
        if beats[0] % number == 0:
            enough.set()

    return idle, enough


def test_a_trainer_that_waits_for_its_agent_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a question, between its bytes, and while nobody takes the answer: the trainer beats again and again."""
    monkeypatch.setattr("site_agent.trainer_socket._IDLE_SECONDS", 0.01)
    idle, enough = _beats_awaited(3)
    ours, theirs = socket.socketpair()
    answer = Trained(0, 0, bytes(32 << 20))  # more than two sockets hold
    found: list[object] = []

    def wait() -> None:
        found.append(enough.wait(10))
        enough.clear()

    def ask() -> None:
        wait()
        frame = trainer_socket.FRAMING.frame(Check())
        ours.sendall(frame[:5])
        wait()
        ours.sendall(frame[5:])
        wait()
        with ours.makefile("rb") as reader:
            found.append(len(reader.read(len(trainer_socket.FRAMING.frame(answer)) + len(answer.payload))))

    with ours, theirs:
        trainer, asking = TrainerEnd(theirs, idle), threading.Thread(target=ask)
        asking.start()
        question = trainer.receive()
        trainer.send(answer)
        asking.join()

    assert isinstance(question, Check)
    assert found == [True, True, True, len(trainer_socket.FRAMING.frame(answer)) + len(answer.payload)]


def test_a_trainer_without_an_agent_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listening for its agent, the trainer beats until one calls."""
    monkeypatch.setattr(main_module, "_IDLE_SECONDS", 0.01)
    idle, enough = _beats_awaited(3)
    hospital = read_hospital(hospital_yaml(tmp_path, trainer_socket="trainer.sock"))
    caller = socket.socket(socket.AF_UNIX)

    def call() -> None:
        enough.wait(10)
        caller.connect(str(tmp_path / "trainer.sock"))

    calling = threading.Thread(target=call)
    calling.start()
    connection = main_module._listen(hospital, idle)
    calling.join()

    assert enough.is_set()
    with caller, connection:
        connection.sendall(b"here")
        assert caller.recv(4) == b"here"
