"""The trainer has no network, whoever started it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.site_agent.reachable import let_others_in

REPOSITORY = Path(__file__).parents[3]

ISOLATED = """
import socket, sys
from site_agent.trainer.isolation import give_up_network, leads_out
if not give_up_network():
    sys.exit(3)
assert not leads_out()
open(sys.argv[3], "w").close()
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=2)
except OSError as refused:
    print(type(refused).__name__, refused.errno)
    sys.exit(0)
sys.exit(4)
"""


@pytest.fixture
def listener() -> Iterator[tuple[str, int]]:
    """Somebody on loopback who would answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[:2]


def _run(program: str, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)


def _check_refused(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode == 3:
        pytest.skip("this kernel gives nobody here a network namespace")
    assert done.returncode == 0, done.stderr


def test_after_giving_up_the_network_nobody_is_reached(listener: tuple[str, int], tmp_path: Path) -> None:
    """A connection that was possible before is refused by the kernel; files can still be written."""
    socket.create_connection(listener, timeout=2).close()

    done = _run(ISOLATED, *listener, tmp_path / "mine")

    _check_refused(done)
    assert (tmp_path / "mine").stat().st_uid == os.getuid()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_gives_it_up_too(listener: tuple[str, int], tmp_path: Path) -> None:
    """By a user namespace, in which the files it writes are still its own."""
    let_others_in(tmp_path)
    tmp_path.chmod(0o777)
    # The interpreter may lie where others cannot read, so the child is root until all is loaded; and
    # changing users hides /proc/self from the process, which a program started by that user does not see.
    become = """
import ctypes, os, socket, encodings.idna
import site_agent.trainer.isolation
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
"""

    done = _run(become + ISOLATED, *listener, tmp_path / "mine")

    _check_refused(done)
    assert (tmp_path / "mine").stat().st_uid == 65534


def test_it_is_too_late_once_there_are_threads() -> None:
    """The other threads would keep the network, and the kernel would refuse an ordinary user."""
    program = """
import threading
from site_agent.trainer.isolation import give_up_network
wait = threading.Event()
threading.Thread(target=wait.wait, daemon=True).start()
try:
    give_up_network()
except RuntimeError as error:
    print(error)
"""

    assert _run(program).stdout == "threads were started before the network was given up\n"


def test_the_trainer_loads_nothing_that_starts_threads_before() -> None:
    """numpy starts some, so the entry point must come to `give_up_network` without it."""
    program = """
import os, sys, site_agent.trainer_process
print("numpy" in sys.modules, "torch" in sys.modules, len(os.listdir("/proc/self/task")))
"""

    assert _run(program).stdout == "False False 1\n"
