"""The attempts of an attacker in a service on the hospital's computer, beside the sockets of that service. It runs
inside a booted hospital, as the unit's program under the unit's sandbox: `python -P reaching_out.py ADDRESS`. At its
end it prints the names of what it could do, as JSON. Root can do everything in the list."""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

STATE = Path("/var/lib/global-layers/site")
PATIENTS = Path("/var/lib/global-layers/patients/patients.csv")
PROGRAM = Path("/usr/lib/global-layers/site")
PORT = 8443
_CLONE_NEWUSER = 0x10000000


def _in_child(act: Callable[[], object]) -> bool:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            act()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def require(is_done: bool) -> None:
    """Raise if an action was refused without an error of its own."""
    if not is_done:
        raise PermissionError


def first(folder: str, pattern: str = "*") -> Path:
    """A file of the state."""
    return next(path for path in sorted((STATE / folder).glob(f"**/{pattern}")) if path.is_file())


def read(path: Path) -> None:
    """Read from a file."""
    require(bool(path.read_bytes()))


def _open_to_write(path: Path) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_APPEND))


def make(path: Path) -> None:
    """Make a file, and take it away."""
    path.touch()
    path.unlink()


def call(address: str) -> None:
    """Reach the coordinator's computer, where a program may listen or not."""
    with suppress(ConnectionRefusedError), socket.create_connection((address, PORT), timeout=5):
        pass


def datagram(address: str) -> None:
    """Send a datagram, as a name server would get it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"patients", (address, 53))


def others() -> list[str]:
    """The services whose user this process is not."""
    own = pwd.getpwuid(os.getuid()).pw_name
    return [name for name in ("site-agent", "site-gate", "site-trainer") if name != own]


def _become_another() -> None:
    user = pwd.getpwnam(others()[0])

    def act() -> None:
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)

    require(_in_child(act))


def _start_as_another() -> None:
    words = ["systemd-run", "--wait", "--quiet", f"--uid={others()[0]}", "/bin/true"]
    done = subprocess.run(words, capture_output=True, check=False, timeout=30)
    require(done.returncode == 0)


def _own_namespace() -> None:
    require(_in_child(lambda: require(ctypes.CDLL(None).unshare(_CLONE_NEWUSER) == 0)))


def tries(address: str) -> dict[str, Callable[[], None]]:
    """Return every attempt, by name."""
    return {
        "read the identity key": lambda: read(STATE / "gate/identity.key"),
        "read the TLS key": lambda: read(STATE / "agent/tls.key"),
        "read the table": lambda: read(PATIENTS),
        "read a model": lambda: read(first("models")),
        "read a report": lambda: read(first("reports")),
        "read an approval": lambda: read(first("approvals", "*.json")),
        "read an approved plan": lambda: read(first("approvals/plans")),
        "write the audit log": lambda: _open_to_write(STATE / "gate/gate.sqlite"),
        "write an approval": lambda: make(STATE / "approvals/forged.json"),
        "change an approval": lambda: _open_to_write(first("approvals", "*.json")),
        "change the program": lambda: make(PROGRAM / "forged.py"),
        "call the coordinator": lambda: call(address),
        "send a datagram": lambda: datagram(address),
        "become another user": _become_another,
        "start a program as another user": _start_as_another,
        "make a namespace": _own_namespace,
        "signal the first process": lambda: os.kill(1, 0),
        "read another process's memory": lambda: Path("/proc/1/mem").open("rb").close(),
    }


def main() -> None:
    """Make all attempts, one after the other."""
    done = []
    for name, way in tries(sys.argv[1]).items():
        try:
            way()
            done.append(name)
        except (OSError, StopIteration, subprocess.SubprocessError) as refused:
            print(f"{name}: {type(refused).__name__} {refused}", file=sys.stderr)
    print(json.dumps(done), flush=True)


if __name__ == "__main__":
    main()
