"""Attempts to break out from either side, as an ordinary user: the kernel's refusals, and the programs' logs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from site_agent.gate.separation import tell_separation
from site_agent.hospital import read_hospital
from tests.site_agent.reachable import let_others_in
from tests.site_agent.trainer.sites import make_site

REPOSITORY = Path(__file__).parents[2]
only_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
# The interpreter may lie where others cannot read, so the child is root until all is loaded; and changing users
# hides /proc/self from the process, which a program started by that user does not see.
BECOME = """
import ctypes, json, os, socket, sys, encodings.idna
import site_agent.trainer.isolation
from site_agent.trainer.isolation import give_up_network
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""
TRAINER = """
if not give_up_network():
    sys.exit(3)
port, outside = int(sys.argv[1]), sys.argv[2]

def stream(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as out:
        out.settimeout(2)
        out.connect(address)

def datagram():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        out.sendto(b"canary", ("192.0.2.1", 53))

def raw():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).sendto(b"canary", ("192.0.2.1", 0))

def back():
    namespace = os.open(outside, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, 0x40000000) != 0:
        raise OSError(ctypes.get_errno(), "setns")
    stream(socket.AF_INET, ("127.0.0.1", port))

WAYS = {
    "a stream to loopback": lambda: stream(socket.AF_INET, ("127.0.0.1", port)),
    "a stream to another machine": lambda: stream(socket.AF_INET, ("192.0.2.1", 443)),
    "the sixth version": lambda: stream(socket.AF_INET6, ("2001:db8::1", 443)),
    "a datagram": datagram,
    "a name": lambda: socket.getaddrinfo("example.org", 443),
    "a raw packet": raw,
    "an abstract socket of the host": lambda: stream(socket.AF_UNIX, "\\0canary-" + str(port)),
    "the namespace that it came from": back,
}
found = {}
for name, way in WAYS.items():
    try:
        way()
        found[name] = "got out"
    except OSError as refused:
        found[name] = type(refused).__name__
print(json.dumps(found))
"""
AGENT = """
try:
    print(json.dumps(len(open(sys.argv[1], "rb").read())))
except OSError as refused:
    print(json.dumps(type(refused).__name__))
"""


@pytest.fixture
def listener() -> Iterator[int]:
    """Somebody on loopback, and on an abstract socket of the host, who would answer."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
        port = server.getsockname()[1]
        abstract.bind(f"\0canary-{port}")
        abstract.listen()
        yield port


def run(program: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A program as an ordinary user."""
    command = [sys.executable, "-c", BECOME + program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)


@only_root
def test_the_trainer_does_not_get_out(listener: int) -> None:
    """No stream, datagram, name, raw packet or host's socket, and no way back into the network that it left."""
    socket.create_connection(("127.0.0.1", listener), timeout=2).close()

    done = run(TRAINER, listener, f"/proc/{os.getpid()}/ns/net")

    if done.returncode == 3:
        pytest.skip("this kernel gives nobody here a network namespace")
    found = json.loads(done.stdout)
    assert len(found) == 8
    assert [name for name, outcome in found.items() if outcome == "got out"] == []


@only_root
def test_the_agents_user_does_not_read_the_trainers_table(tmp_path: Path) -> None:
    """A table of another user with mode 0600 is refused by the kernel; with mode 0644 it is read: the test can fail."""
    table = tmp_path / "patients.csv"
    table.write_text("canary")
    let_others_in(tmp_path)

    table.chmod(0o600)
    assert json.loads(run(AGENT, table).stdout) == "PermissionError"
    table.chmod(0o644)
    assert json.loads(run(AGENT, table).stdout) == len("canary")


def test_the_log_says_who_keeps_the_patients_from_the_agent(tmp_path: Path) -> None:
    """One user for both: a warning with the remedy. A table out of reach: that the kernel keeps it."""
    hospital = read_hospital(make_site(tmp_path))

    with structlog.testing.capture_logs() as log:
        assert not tell_separation(hospital)
        Path(hospital.data.table).unlink()
        assert tell_separation(hospital)

    assert [entry["event"] for entry in log] == ["agent_may_read_patients", "agent_kept_from_patients"]
    assert log[0]["log_level"] == "warning"
    assert "docs/hospital.md" in log[0]["remedy"]
    assert all(str(tmp_path) not in str(entry) for entry in log)
