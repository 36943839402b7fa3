"""`doctor` and `status` as people run them, with real running programs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from coordinator.commands.coordinator_cli import cli as coordinator
from site_agent.hospital import read_hospital
from site_agent.service.site_doctor import examine_agent, examine_gate
from site_agent.site_cli import cli as site_agent
from tests.coordinator.test_serve import started
from tests.doctor.conftest import Scene
from tests.doctor.network import intercepting_as, listening
from tests.rehearsal.programs import children, running, says, wait_until


def examined(scene: Scene) -> dict[str, tuple[str, str]]:
    """Identifier -> severity and line of what the halves of agent and gate find; the worst of each."""
    hospital = read_hospital(scene.hospital)
    found = asyncio.run(examine_agent(hospital)) + asyncio.run(examine_gate(hospital))
    return {
        finding.identifier: (finding.severity.name, finding.line) for finding in sorted(found, key=lambda f: f.severity)
    }


def test_a_site_is_examined_while_the_coordinator_runs(scene: Scene) -> None:
    """A member is accepted. A revoked member is refused and reads whom to ask. Nothing is logged."""
    with started(scene.place):
        taken = examined(scene)
        scene.place.office.revoke("a")
        wait_until(lambda: examined(scene)["D411"][0] == "FAILURE", 20)

    assert taken["D411"][0] == "FINE"
    assert "message_refused" not in scene.place.log.read_text()


def test_both_halves(scene: Scene) -> None:
    """Without running programs, each fault is one line, and none has a patient's values."""
    _write_canaries(scene)

    done = CliRunner().invoke(site_agent, ["doctor", "--config", str(scene.hospital), "--json"])
    found = {finding["identifier"]: finding for finding in json.loads(done.stdout)}

    assert done.exit_code == 1
    assert found["D411"]["severity"] == "failure"
    assert found["D412"]["severity"] == "failure"
    assert found["D414"]["subject"] == "trainer's isolation"
    assert [word for word in ("Canaryson", "666123") if word in done.stdout] == []


def _write_canaries(scene: Scene) -> None:
    table = scene.hospital.parent / "canary-ward.csv"
    table.write_text("patient,age,ill\nCanaryson,666123,perhaps\n")
    scene.change(data={"table": table.name, "contract": "contract.yaml", "split": {"seed": 0}})


def test_a_broken_configuration_is_a_finding(scene: Scene) -> None:
    """Every mistake of the file is reported, nothing else is checked, and the corrected file is fine."""
    good = scene.hospital.read_text()
    scene.change(sight="a")
    told = CliRunner().invoke(site_agent, ["doctor", "--config", str(scene.hospital), "--side", "agent", "--json"])
    scene.hospital.write_text(good)
    corrected = CliRunner().invoke(site_agent, ["doctor", "--config", str(scene.hospital), "--side", "agent", "--json"])

    (finding,) = json.loads(told.stdout)
    assert finding["identifier"] == "D401"
    assert json.loads(corrected.stdout)[0]["severity"] == "fine"


def test_the_coordinators_doctor(scene: Scene) -> None:
    """The doctor reports a stopped coordinator, a broken plan and an unmoved root key."""
    (scene.place.folder / "plan.yaml").write_text("study: x\n")

    done = CliRunner().invoke(coordinator, ["doctor", "--config", str(scene.place.config), "--json"])
    found = [(finding["identifier"], finding["severity"]) for finding in json.loads(done.stdout)]

    assert done.exit_code == 1
    assert {("D421", "failure"), ("D420", "warning"), ("D418", "warning")} <= set(found)


@contextmanager
def service_manager(place: Path) -> Iterator[list[str]]:
    """The messages that a service manager receives on its socket."""
    heard: list[str] = []

    def listen() -> None:
        while (words := ear.recv(4096)) != b"end":
            heard.append(words.decode())

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(place))
        listening = threading.Thread(target=listen)
        listening.start()
        try:
            yield heard
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
                end.sendto(b"end", str(place))
            listening.join()


def asked(scene: Scene) -> dict[str, Any]:
    """The status that the agent reports."""
    done = CliRunner().invoke(site_agent, ["status", "--config", str(scene.hospital), "--json"])
    return dict(json.loads(done.stdout)) if done.exit_code == 0 else {}


def test_a_running_agent(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports status and metrics, and ends with the processes that it started when one of them was killed."""
    manager = tmp_path / "manager"
    monkeypatch.setenv("NOTIFY_SOCKET", str(manager))
    log = tmp_path / "agent.log"
    with (
        service_manager(manager) as heard,
        started(scene.place),
        running(log, "site-agent", "join", "--config", scene.hospital) as agent,
    ):
        wait_until(lambda: asked(scene).get("phase") == "awaiting approval", 150)
        told = asked(scene)
        assert told["connected_since"]
        assert told["coordinator"] == scene.place.address
        assert 89 < told["certificate_days_left"] <= 90
        assert told["left"] == {"contributions": 0, "bytes": 0}
        assert told["trainer"] == "idle"
        for program, config, metric in (
            (site_agent, scene.hospital, "global_layers_site_connected 1.0"),
            (coordinator, scene.place.config, "global_layers_coordinator_sites_connected 1.0"),
        ):
            assert metric in CliRunner().invoke(program, ["status", "--config", str(config), "--metrics"]).stdout
        wait_until(lambda: any(words.startswith("READY=1\nWATCHDOG=1\nSTATUS=") for words in heard), 20)
        wait_until(lambda: "WATCHDOG=1\nSTATUS=awaiting approval" in heard, 20)

        started_by_it = children(agent.pid)
        assert len(started_by_it) == 2  # agent and trainer
        (trainer,) = [
            child
            for child in started_by_it
            if b"site_agent.trainer_process" in Path(f"/proc/{child}/cmdline").read_bytes()
        ]
        os.kill(trainer, signal.SIGKILL)  # while it has nothing to do
        assert agent.wait(30) == 1  # so that a service manager starts it again
        assert not any(Path(f"/proc/{process}").exists() for process in started_by_it)
    assert "Traceback" not in log.read_text()
    assert asked(scene) == {}


def test_a_clock_that_is_days_behind(scene: Scene, tmp_path: Path) -> None:
    """`join` reports that the coordinator's certificate does not fit this clock, once, and goes on. Logs are JSON."""
    scene.place.office.authority.renew_coordinator(datetime.now(UTC) + timedelta(days=9))
    log = tmp_path / "agent.log"
    with listening(intercepting_as(scene.place.office)) as port:
        scene.change(coordinator=f"localhost:{port}", training={"siloed_baseline": False, "simple_models": False})
        with running(log, "site-agent", "join", "--config", scene.hospital):
            wait_until(says(log, "coordinator_unavailable"), 60)
            error = asked(scene)["last_error"]
            wait_until(lambda: asked(scene)["last_error"]["at"] > error["at"], 30)  # a further attempt
            lines = [json.loads(line) for line in log.read_text().splitlines()]

    assert [line["event"] for line in lines].count("coordinator_unavailable") == 1
    assert error["identifier"] == "E020"
