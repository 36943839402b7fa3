"""A program that hangs, was killed or has a mistake in its file is not mistaken for a program that never started."""

from __future__ import annotations

import json
import os
import signal

import pytest
from click.testing import CliRunner

from coordinator.commands.coordinator_cli import cli as coordinator
from coordinator.network import control_socket
from host.secret_files import hold_directory, holder_of
from protos.errors import OperatorError, UnavailableError
from site_agent.site_cli import cli as site_agent
from tests.coordinator.test_serve import started
from tests.doctor.conftest import Scene
from tests.rehearsal.programs import status


def program_of(scene: Scene) -> dict[str, str]:
    """What the office's doctor says about the program."""
    done = CliRunner().invoke(coordinator, ["doctor", "--config", str(scene.place.config), "--json"])
    (found,) = [finding for finding in json.loads(done.stdout) if finding["identifier"] == "D418"]
    return found


def test_a_coordinator_that_hangs_and_one_that_was_killed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` ends in time and names the process; after SIGKILL its socket file alone is no running program."""
    monkeypatch.setattr(control_socket, "_REPLY_SECONDS", 0.3)
    with started(scene.place) as process:
        assert program_of(scene)["severity"] == "fine"
        assert status(scene.place.config)["run"] is not None
        number = holder_of(scene.place.folder / "state")
        process.send_signal(signal.SIGSTOP)
        hangs = CliRunner().invoke(coordinator, ["status", "--config", str(scene.place.config)]).exception
        examined = program_of(scene)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()

    assert isinstance(hangs, UnavailableError)
    assert hangs.code == "E033"
    assert number
    assert str(number) in hangs.remedy
    assert examined["severity"] == "failure"
    assert (scene.place.folder / "state" / "status.socket").is_socket()
    assert program_of(scene)["severity"] == "warning"


def test_a_site_agent_that_does_not_answer_is_not_called_stopped(scene: Scene) -> None:
    """Its lock shows that it runs. Without the lock the remedy is to start it."""
    gate, words = scene.hospital.parent / "state" / "gate", ["status", "--config", str(scene.hospital)]
    stopped = CliRunner().invoke(site_agent, words).exception
    held = hold_directory(gate, "site agent")
    try:
        hangs = CliRunner().invoke(site_agent, words).exception
        found = json.loads(CliRunner().invoke(site_agent, ["doctor", "--config", words[-1], "--json"]).stdout)
    finally:
        os.close(held)

    assert isinstance(stopped, OperatorError)
    assert isinstance(hangs, OperatorError)
    assert (stopped.code, hangs.code) == ("E030", "E033")
    assert str(os.getpid()) in hangs.remedy
    assert ("D418", "failure") in {(finding["identifier"], finding["severity"]) for finding in found}


def test_a_mistake_in_a_running_programs_file_is_not_a_program_that_did_not_start(scene: Scene) -> None:
    """A command that starts nothing does not say that a program did not start."""
    scene.change(sight="a")
    scene.place.config.write_text(scene.place.config.read_text() + "lisen: x\n")

    for program, words in ((site_agent, ["status", "--config", str(scene.hospital)]),
                           (coordinator, ["runs", "--config", str(scene.place.config)])):  # fmt: skip
        error = CliRunner().invoke(program, words).exception
        assert isinstance(error, OperatorError)
        assert "did not start" not in error.consequence
