"""Real gRPC streams on the networks of hospitals: a CONNECT proxy, TCP passed through, an intercepting device."""

from __future__ import annotations

import asyncio
import shutil
import socket
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from coordinator.network.service import FederationService
from deploy.quickstart.ports import free_port
from host.diagnosis import Finding, Severity
from pki.enrolment_decisions import invite_site
from pki.names import Address, SiteName
from pki.register import Register
from protos.errors import UnavailableError
from site_agent.agent.connection import CallEnded, Connection
from site_agent.agent.kept_certificates import PROXY_LOGIN, KeptCertificates
from site_agent.agent.relaying import Relay
from site_agent.framed_messages import FramedSocket, packed
from site_agent.gate.mishaps import remedy_of, stream_ended
from site_agent.gate_socket import FRAMING, Call, Ended, Open, Through, Unable, largest_payload
from site_agent.hospital import read_hospital
from site_agent.service.site_doctor import examine_agent
from site_agent.state_folders import agent_folder
from tests.coordinator.test_serve import started
from tests.doctor.conftest import Scene, scene_in
from tests.doctor.network import ConnectProxy, intercepting, listening
from tests.rehearsal.federation import Office, serving, utc_now
from tests.rehearsal.study import plan_with


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


def connection(scene: Scene) -> Finding:
    """What the doctor finds on the way to the coordinator, with this process's environment as gRPC reads it."""
    findings = asyncio.run(examine_agent(read_hospital(scene.hospital)))
    (found,) = [finding for finding in findings if finding.identifier == "D411"]
    return found


def test_through_a_connect_proxy(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `proxy` set, the stream takes the proxy, whatever the environment says, with the login of its file."""
    proxy, before = ConnectProxy(login=b64encode("jürgen:p@ss/w:rd%41".encode())), scene.hospital.read_text()
    login = agent_folder(read_hospital(scene.hospital).state_path) / PROXY_LOGIN
    with listening(proxy) as port:
        scene.change(proxy=f"127.0.0.1:{port}")
        for name in ("no_proxy", "no_grpc_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, "localhost,127.0.0.1,*")
        monkeypatch.setenv("no_grpc_proxy", "")  # as the agent's own process has it
        without = connection(scene)
        login.write_text("jürgen:p@ss/w:rd%41\n", encoding="utf-8-sig")
        login.chmod(0o600)
        told = connection(scene)
    scene.hospital.write_text(before)
    login.unlink()
    assert without.severity is Severity.FAILURE
    assert "p@ss" not in without.says + without.remedy
    assert f"127.0.0.1:{port}" in without.remedy
    assert told.severity is Severity.FINE
    assert len(proxy.asked) >= 2
    assert set(proxy.asked) == {scene.place.address}


@pytest.mark.parametrize("login", ["jürgen:käse".encode("latin-1"), b"only a name", b"anna:one\notto:two", b""])
def test_a_file_without_one_login_is_named_and_not_sent(scene: Scene, login: bytes) -> None:
    """A changed login would be refused at the proxy, and could lock the account."""
    proxy, before = ConnectProxy(), scene.hospital.read_text()
    file = agent_folder(read_hospital(scene.hospital).state_path) / PROXY_LOGIN
    file.write_bytes(login)
    file.chmod(0o600)
    with listening(proxy) as port:
        scene.change(proxy=f"127.0.0.1:{port}")
        (found,) = [one for one in asyncio.run(examine_agent(read_hospital(scene.hospital))) if one.remedy]
    scene.hospital.write_text(before)
    file.unlink()
    assert (found.severity, PROXY_LOGIN in found.says, proxy.asked) == (Severity.FAILURE, True, [])


def test_what_a_proxy_answers_is_told_apart_and_a_refused_login_is_not_repeated(scene: Scene) -> None:
    """Many logins in a row could lock the account at the proxy. So the agent waits, and says at once why."""
    kept = KeptCertificates(agent_folder(read_hospital(scene.hospital).state_path))

    async def ended(port: int) -> list[object]:
        ours, theirs = (FramedSocket(end, FRAMING) for end in socket.socketpair())
        relay = asyncio.create_task(Relay(theirs, kept).run())
        ours.post(Through(f"127.0.0.1:{port}"))
        found: list[object] = []
        for number in (1, 2):
            ours.post(Open(number, scene.place.address))
            found.append(await ours.receive(largest_payload))
        ours.post(Call("renew", scene.place.address, packed((b"", b""))))
        found.append(await ours.receive(largest_payload))
        ours.close()
        await relay
        theirs.close()
        return found

    for status, kind, calls in (("407 No", "proxy_407", 1), ("403 No", "proxy_403", 3), ("503 No", "proxy_fails", 3)):
        proxy = ConnectProxy(status=status.encode())
        with listening(proxy) as port:
            told = asyncio.run(ended(port))
        assert told == [Ended(1, kind), Ended(2, kind), Unable(UnavailableError.exit_status, kind)]
        assert len(proxy.asked) == calls


def test_the_environment_names_no_proxy(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables that gRPC or others read change nothing."""
    proxy = ConnectProxy()
    with listening(proxy) as port:
        for name in ("grpc_proxy", "https_proxy", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        told = connection(scene)
    assert not proxy.asked
    assert told.severity is Severity.FINE


def test_a_device_that_opens_tls_stops_the_site(scene: Scene, tmp_path: Path) -> None:
    """Behind an intercepting device no stream is opened at all."""
    before = scene.hospital.read_text()
    with listening(intercepting(tmp_path)) as port:
        scene.change(coordinator=f"localhost:{port}")
        told = connection(scene)
    scene.hospital.write_text(before)
    assert told.severity is Severity.FAILURE


def test_a_name_that_the_certificate_lacks_is_no_outage(scene: Scene) -> None:
    """gRPC calls both unavailable. The certificate is reported, because another name would do."""
    before = scene.hospital.read_text()
    scene.change(coordinator=f"127.0.0.1:{scene.place.port}")
    told = connection(scene)
    scene.hospital.write_text(before)
    assert told.severity is Severity.FAILURE
    assert told.remedy == remedy_of("name_differs") != remedy_of("unavailable") == remedy_of("deadline_exceeded")


def test_the_enrolment_port_is_tried_before_there_is_a_certificate(tmp_path: Path) -> None:
    """The coordinator answers there, and a device that opens TLS is no coordinator. No key is made."""
    scene, port = scene_in(tmp_path), free_port()
    with scene.place.config.open("a") as config:
        config.write(f"enrolment_listen: localhost:{port}\n")
    agent, hour = agent_folder(read_hospital(scene.hospital).state_path), timedelta(hours=1)
    shutil.rmtree(agent)
    authority, told = scene.place.office.authority, []
    with Register(authority.register_path) as register:
        made = invite_site(authority, register, SiteName("z"), valid_for=hour, is_pre_approved=False, now=utc_now())
    with listening(intercepting(tmp_path)) as device, started(scene.place):
        for at in (device, port):
            replace(made, enrolment=Address("localhost", at)).save(tmp_path / f"{at}.invitation")
            scene.change(site="z", invitation=str(tmp_path / f"{at}.invitation"))
            told.append(connection(scene).severity)
    assert (told, agent.exists()) == ([Severity.FAILURE, Severity.FINE], False)
    agent.mkdir(mode=0o700)
    (agent / PROXY_LOGIN).touch(0o600)  # without a login
    scene.change(proxy=f"127.0.0.1:{port}")
    assert [one.severity for one in asyncio.run(examine_agent(read_hospital(scene.hospital)))] == [Severity.FAILURE]


def test_a_stream_that_ends_like_a_success_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind haproxy in http mode: no acceptance, and an end after which the site connects again."""

    async def scene() -> str:
        monkeypatch.setattr(FederationService, "participate", AsyncMock())  # status OK
        office = Office.found(tmp_path)
        async with (
            serving(office, plan_with(office.identities), tmp_path / "state") as running,
            Connection(running.address, office.credentials("a"), accepted.append) as connection,
        ):
            with pytest.raises(CallEnded) as caught:
                await connection.receive()
        return caught.value.status

    accepted = list[float | None]()
    assert isinstance(stream_ended("", asyncio.run(scene())), UnavailableError)
    assert not accepted
