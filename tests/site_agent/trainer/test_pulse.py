"""The trainer's pulse: a service manager hears it while work is done, and waits while libraries work."""

from __future__ import annotations

import socket
import threading

import pytest

from site_agent.hatch import Agreed, Check, TrainerEnd
from site_agent.trainer.pulse import LONG_SECONDS, Pulse


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


def test_without_a_watchdog_nothing_is_said() -> None:
    """A trainer that no service manager watches says nothing."""
    said: list[str] = []
    pulse = Pulse(said.append, lambda: 0.0, 0.0)

    pulse.beat()
    with pulse.long_work():
        pulse.beat()

    assert said == []


def test_an_idle_trainer_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing is asked the trainer beats again and again, and a question is answered all the same."""
    monkeypatch.setattr("site_agent.hatch._IDLE_SECONDS", 0.01)
    ours, theirs = socket.socketpair()
    waited = threading.Event()
    beats: list[int] = []

    def idle() -> None:
        beats.append(1)
        if len(beats) == 3:
            waited.set()

    with ours, theirs:
        trainer = TrainerEnd(theirs, idle)

        def ask() -> None:
            waited.wait(10)
            TrainerEnd(ours).send(Check())

        asking = threading.Thread(target=ask)
        asking.start()
        question = trainer.receive()
        trainer.send(Agreed())
        asking.join()

    assert isinstance(question, Check)
    assert len(beats) >= 3
