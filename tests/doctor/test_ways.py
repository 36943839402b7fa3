"""Real gRPC streams on the networks of hospitals: a CONNECT proxy, a name with IPv6 first, TCP passed through."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.diagnosis import Finding, Severity
from site_agent.agent.agent_doctor import examine
from site_agent.agent.kept_certificates import PROXY_LOGIN
from site_agent.hospital import read_hospital
from site_agent.state_folders import agent_folder
from tests.coordinator.test_serve import started
from tests.doctor.conftest import Scene, scene_in
from tests.doctor.network import ConnectProxy, intercepting, listening, passing_through
from tests.rehearsal.programs import PROGRAMS, own_environment


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A coordinator that runs, on IPv4 alone, and a member."""
    scene = scene_in(tmp_path_factory.mktemp("ways"))
    config = scene.place.config
    config.write_text(
        config.read_text().replace(f"listen: localhost:{scene.place.port}", f"listen: 127.0.0.1:{scene.place.port}")
    )
    with started(scene.place):
        yield scene


def found(scene: Scene) -> dict[str, Finding]:
    """The worst finding of each kind, with this process's environment as gRPC reads it."""
    findings = asyncio.run(examine(read_hospital(scene.hospital), os.environ))
    return {finding.identifier: finding for finding in sorted(findings, key=lambda finding: finding.severity)}


def test_through_a_connect_proxy(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `proxy` set, check and stream take the proxy, whatever the environment says, with the login of its file."""
    proxy, before = ConnectProxy(login=b64encode("jürgen:p@ss/w:rd%41".encode())), scene.hospital.read_text()
    login = agent_folder(read_hospital(scene.hospital).state_path) / PROXY_LOGIN
    with listening(proxy) as port:
        scene.change(proxy=f"127.0.0.1:{port}")
        for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, "localhost,127.0.0.1,*")
        monkeypatch.setenv("no_grpc_proxy", "")  # as the agent's own process has it
        without = found(scene)
        login.write_text("jürgen:p@ss/w:rd%41\n")
        login.chmod(0o600)
        told = found(scene)
    scene.hospital.write_text(before)
    login.unlink()

    assert without["D408"].severity is Severity.FAILURE
    assert "D411" not in without
    assert told["D411"].severity is Severity.FINE
    assert told["D408"].severity is Severity.FINE
    assert len(proxy.asked) >= 5  # three looks, gRPC's own stream, and the one without a login
    assert set(proxy.asked) == {scene.place.address}


def test_the_environment_names_no_proxy(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that gRPC or others read change nothing, and the doctor warns of them."""
    proxy = ConnectProxy()
    with listening(proxy) as port:
        for name in ("grpc_proxy", "https_proxy", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        told = found(scene)

    assert not proxy.asked
    assert told["D411"].severity is Severity.FINE
    assert told["D408"].severity is Severity.WARNING


def test_behind_a_load_balancer(scene: Scene) -> None:
    """A balancer that passes TCP through has no effect: the certificates prove both sides to each other."""
    before = scene.hospital.read_text()
    with listening(passing_through(scene.place.port)) as port:
        scene.change(coordinator=f"localhost:{port}")
        told = found(scene)
    scene.hospital.write_text(before)

    assert told["D411"].severity is Severity.FINE


def test_a_device_that_opens_tls_stops_the_site(scene: Scene, tmp_path: Path) -> None:
    """Behind an intercepting device no stream is opened at all, and the device is named."""
    before = scene.hospital.read_text()
    with listening(intercepting(tmp_path, "Acme Web Gateway")) as port:
        scene.change(coordinator=f"localhost:{port}")
        told = found(scene)
    scene.hospital.write_text(before)

    assert "Acme Web Gateway" in told["D410"].says
    assert "D411" not in told


def can_have_hosts_of_its_own() -> bool:
    """Whether a child of this process may see another /etc/hosts."""
    words = ["unshare", "--mount", "true"]
    try:
        return subprocess.run(words, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_have_hosts_of_its_own(), reason="a hosts file of its own needs root and unshare")
def test_a_name_with_ipv6_first(scene: Scene, tmp_path: Path) -> None:
    """If the name has IPv6 first and only IPv4 answers, gRPC still connects, and the doctor reports it."""
    (tmp_path / "hosts").write_text("::1 localhost\n127.0.0.1 localhost\n")
    doctor = f"{PROGRAMS / 'site-agent'} doctor --side agent --json --config {scene.hospital}"
    words = f"mount --bind {tmp_path / 'hosts'} /etc/hosts && exec {doctor}"

    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", words],
        capture_output=True,
        text=True,
        check=False,
        env=own_environment(),
        timeout=120,
    )
    told = {finding["identifier"]: finding for finding in json.loads(done.stdout)}

    assert told["D407"]["says"].endswith("IPv6 first.")
    assert told["D409"]["severity"] == "warning"
    assert told["D411"]["severity"] == "fine"
