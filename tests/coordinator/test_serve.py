"""The running coordinator as a process: its address, its status, its signals, TLS and revocation."""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from coordinator.commands.serve import REGISTER_POLL_SECONDS
from coordinator.network.control_socket import short_path
from deploy.quickstart.ports import free_port
from host.address_checks import taken_addresses
from protos.errors import UnavailableError
from protos.wire.messages import PROTOCOL_VERSION, Announcement, CoordinatorReason, Farewell, Hello
from protos.wire.upkeep_messages import LogHeads
from tests.rehearsal.federation import Office, as_channel, calling
from tests.rehearsal.programs import called, finished, own_environment, running, says, status, wait_until
from tests.rehearsal.relayed_stream import Connection
from tests.rehearsal.study import plan_document


@dataclass(frozen=True)
class Place:
    """A coordinator's folder."""

    office: Office
    folder: Path
    address: str

    @property
    def config(self) -> Path:
        """Its coordinator.yaml."""
        return self.folder / "coordinator.yaml"

    @property
    def log(self) -> Path:
        """Its output."""
        return self.folder / "coordinator.log"

    @property
    def port(self) -> int:
        """The address at which it listens."""
        return int(self.address.rpartition(":")[2])


def place_in(folder: Path, **keys: object) -> Place:
    """An office with three members, a plan, and the configuration of their coordinator."""
    office = Office.found(folder)
    plan = plan_document(office.identities)
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))
    address = f"localhost:{free_port()}"
    document = {"listen": address, "authority": "authority", "state": "state", "plans": ["plan.yaml"]}
    (folder / "coordinator.yaml").write_text(yaml.safe_dump(document | keys))
    return Place(office, folder, address)


@contextmanager
def started(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    """The coordinator, listening."""
    with running(place.log, "coordinator", "start", "--config", place.config) as process:
        wait_until(says(place.log, "coordinator_listening"))
        yield process


def _shake_hands(place: Place, newest: ssl.TLSVersion) -> str | None:
    credentials = place.office.credentials("a")
    pair = place.folder / "pair.pem"
    pair.write_bytes(credentials.key + credentials.chain)
    context = ssl.create_default_context(cadata=credentials.root.decode())
    context.maximum_version = newest
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(pair)
    with (
        socket.create_connection(("localhost", place.port), timeout=5) as raw,
        context.wrap_socket(raw, server_hostname="localhost") as secure,
    ):
        return secure.version()


def test_a_running_coordinator(tmp_path: Path) -> None:
    """It speaks TLS 1.3 only, tells its status, and ends on Ctrl-C with 0 and a line that says what is kept."""
    place = place_in(tmp_path)

    with started(place) as process:
        assert _shake_hands(place, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises(ssl.SSLError):
            _shake_hands(place, ssl.TLSVersion.TLSv1_2)

        told = status(place.config)
        assert told["run"]["phase"] == "gathering"
        assert list(told["sites"]) == ["a", "b", "c"]
        assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "state" / "control.socket").stat().st_mode) & 0o077 == 0
        for_people = called("coordinator", "status", "--config", place.config)
        assert (for_people.returncode, "round 0 of 3" in for_people.stdout) == (0, True)

        twin = finished("coordinator", "start", "--config", place.config)
        assert twin.returncode == 78
        assert "Another coordinator already runs with the state directory" in twin.stderr
        elsewhere = place.config.with_name("elsewhere.yaml")
        elsewhere.write_text(place.config.read_text().replace("state: state", "state: elsewhere"))
        second = finished("coordinator", "start", "--config", elsewhere)
        assert second.returncode == 78
        assert f"Another program already uses the address {place.address}" in second.stderr
        assert status(place.config) == told  # the first one is not disturbed

        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert "snapshots and the register are kept" in place.log.read_text().splitlines()[-1]
    assert not (tmp_path / "state" / "control.socket").exists()
    after = called("coordinator", "status", "--config", place.config)
    assert (after.returncode, "E030" in after.stderr) == (1, True)


def test_revocation_ends_an_open_stream(tmp_path: Path) -> None:
    """A revoked site's stream ends by itself. The coordinator looks twice a second, and the seconds are printed."""
    place = place_in(tmp_path)

    async def scene() -> float:
        async with (
            calling(place.address, as_channel(place.office.credentials("a"))) as revoked,
            calling(place.address, as_channel(place.office.credentials("b"))) as member,
        ):
            for caller in (revoked, member):
                await caller.send(Hello(PROTOCOL_VERSION, "test"))
                assert isinstance(await caller.receive(), LogHeads)
                assert isinstance(await caller.receive(), Announcement)
            place.office.revoke("a")
            began = time.monotonic()
            *_, farewell = await revoked.rest()
            seconds = time.monotonic() - began

            assert isinstance(farewell, Farewell)
            assert farewell.reason is CoordinatorReason.NOT_ACCEPTED
            async with calling(place.address, as_channel(place.office.credentials("a"))) as again:
                await again.send(Hello(PROTOCOL_VERSION, "test"))
                assert await again.rest() == []
            told = status(place.config)
            assert (told["sites"]["a"]["revoked"], told["sites"]["b"]["connected"]) == (True, True)
            assert told["taken_out"][0].startswith("The federation office has revoked a. The run waits for it. ")
            return seconds

    with started(place):
        seconds = asyncio.run(scene())

    print(f"revocation_seconds={seconds:.2f}")
    assert REGISTER_POLL_SECONDS <= 0.5


def test_an_agent_speaks_tls_1_3_only(tmp_path: Path) -> None:
    """A server with the coordinator's own certificate and TLS 1.2 gets no greeting from a site."""
    office = Office.found(tmp_path)
    office.enrol("a")
    code = (
        "import asyncio, sys\n"
        "from tests.rehearsal.relayed_stream import Connection, Credentials\n"
        "from protos.errors import UnavailableError\n"
        "from protos.wire.messages import Hello\n"
        "read = lambda name: open(name, 'rb').read()\n"
        "async def main():\n"
        "    credentials = Credentials(key=read('tls.key'), chain=read('tls.crt'), root=read('root.crt'))\n"
        "    async with Connection(sys.argv[1], credentials) as connection:\n"
        "        await connection.send(Hello(1, 'test'))\n"
        "        await connection.receive()\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except UnavailableError:\n"
        "    sys.exit(7)\n"
    )
    outcomes = {}
    for newest in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.maximum_version = newest
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(office.authority.coordinator_certificate_path, office.authority.coordinator_key_path)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(20)
            agent = subprocess.Popen(
                [sys.executable, "-c", code, f"localhost:{listener.getsockname()[1]}"],
                cwd=office.folder / "a",
                env=own_environment() | {"PYTHONPATH": str(Path.cwd()), "GRPC_VERBOSITY": "NONE"},
            )
            raw, _ = listener.accept()
            with raw:
                raw.settimeout(20)
                try:
                    with context.wrap_socket(raw, server_side=True) as secure:
                        outcomes[newest] = secure.version()
                except ssl.SSLError:
                    outcomes[newest] = None
        assert agent.wait(30) == 7

    assert outcomes == {ssl.TLSVersion.TLSv1_2: None, ssl.TLSVersion.TLSv1_3: "TLSv1.3"}


async def greet(connection: Connection) -> None:
    """Say hello and wait for an answer."""
    await connection.send(Hello(PROTOCOL_VERSION, "test"))
    await connection.receive()


def test_a_site_certificate_is_no_coordinator(tmp_path: Path) -> None:
    """An agent does not greet a server that shows a site's certificate, or another federation's coordinator's."""
    office, stranger = Office.found(tmp_path / "heart"), Office.found(tmp_path / "stranger")
    office.enrol("a")
    site = office.keys("a")
    others = stranger.authority
    impostors = [
        (site.certificate_path, site.tls_key_path),
        (others.coordinator_certificate_path, others.coordinator_key_path),
    ]

    for chain, key in impostors:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(chain, key)

        async def scene(context: ssl.SSLContext = context) -> None:
            heard = bytearray()

            async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                heard.extend(await reader.read(1 << 16))
                writer.close()

            server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
            address = f"localhost:{server.sockets[0].getsockname()[1]}"
            async with server, Connection(address, office.credentials("a")) as connection:
                with pytest.raises(UnavailableError, match=r"cannot be reached|is not of this federation's authority"):
                    await greet(connection)
            assert bytes(heard) == b""

        asyncio.run(scene())


def test_a_socket_is_reached_below_a_path_of_any_length(tmp_path: Path) -> None:
    """Linux takes no socket path of more than a hundred characters; by its folder's descriptor any is short."""
    place = tmp_path / ("s" * 120) / "control.socket"
    place.parent.mkdir()

    with short_path(place) as short, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short))
        listener.listen()
        with short_path(place) as again, socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(again))

    assert place.is_socket()


def test_a_name_of_which_one_address_is_taken_is_taken() -> None:
    """localhost may be two addresses: a coordinator that got one of them would leave some sites to a stranger."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]

        assert "127.0.0.1" in taken_addresses(f"localhost:{port}")
        assert taken_addresses(f"0.0.0.0:{port}") == ["0.0.0.0"]
    assert taken_addresses(f"localhost:{port}") == []
    assert taken_addresses("no-such-host.invalid:8443") == []
