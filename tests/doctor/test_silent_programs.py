"""A program that hangs, was killed or has a mistake in its file: its commands end in time, with a reason."""

from __future__ import annotations

import json
import signal

import pytest
from click.testing import CliRunner

from coordinator.commands.coordinator_cli import cli as coordinator
from coordinator.network import control_socket
from protos.errors import OperatorError, UnavailableError
from site_agent.site_cli import cli as site_agent
from tests.coordinator.test_serve import started
from tests.doctor.conftest import Scene
from tests.rehearsal.programs import status


def _program_of(scene: Scene) -> str:
    done = CliRunner().invoke(coordinator, ["doctor", "--config", str(scene.place.config), "--json"])
    (found,) = [finding for finding in json.loads(done.stdout) if finding["identifier"] == "D418"]
    return str(found["severity"])


def test_a_coordinator_that_hangs_and_one_that_was_killed(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` ends in time. After SIGKILL its socket file alone is no running program."""
    monkeypatch.setattr(control_socket, "_REPLY_SECONDS", 0.3)
    with started(scene.place) as process:
        assert _program_of(scene) == "fine"
        assert status(scene.place.config)["run"] is not None
        process.send_signal(signal.SIGSTOP)
        hangs = CliRunner().invoke(coordinator, ["status", "--config", str(scene.place.config)]).exception
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()

    assert isinstance(hangs, UnavailableError)
    assert hangs.code == "E030"
    assert (scene.place.folder / "state" / "control.socket").is_socket()
    assert _program_of(scene) == "warning"


def test_a_mistake_in_a_running_programs_file_is_not_a_program_that_did_not_start(scene: Scene) -> None:
    """A command that starts nothing does not say that a program did not start."""
    scene.change(sight="a")
    scene.place.config.write_text(scene.place.config.read_text() + "lisen: x\n")

    for program, words in ((site_agent, ["status", "--config", str(scene.hospital)]),
                           (coordinator, ["runs", "--config", str(scene.place.config)])):  # fmt: skip
        error = CliRunner().invoke(program, words).exception
        assert isinstance(error, OperatorError)
        assert "did not start" not in error.consequence
