"""Starts or finds the two other processes of a site: the agent (network access) and the trainer (patients' data).

In a terminal, each is a child of this process over a socket pair, and ends with it. As a service the agent connects to
the Unix socket `gate_socket`, and the trainer listens on `trainer_socket`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from protos.errors import ConfigurationError, UnavailableError
from site_agent.hospital import Hospital
from site_agent.state_folders import agent_folder
from site_agent.trainer_socket import GateEnd

END_SECONDS: Final = 10.0
RESTART_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.2


class Neighbours:
    """Starts or finds the agent and the trainer for a gate process."""

    def __init__(self, hospital: Hospital, path: Path) -> None:
        """Store the configuration. `path` is its file, which a trainer that is started here reads itself."""
        self._hospital, self._path = hospital, path
        self._children: list[_Child] = []

    async def agent(self) -> socket.socket:
        if self._hospital.gate_socket is not None:
            return await _connected_agent(Path(self._hospital.gate_socket))
        return self._started("site_agent.agent", "--folder", str(agent_folder(self._hospital.state_path)))

    async def trainer(self) -> GateEnd:
        if self._hospital.trainer_socket is not None:
            return await _found_trainer(self._hospital.trainer_socket)
        return GateEnd(self._started("site_agent.trainer_process", "--config", str(self._path)))

    def _started(self, *words: str) -> socket.socket:
        self._children.append(_Child(words))
        return self._children[-1].ours.dup()

    def end(self) -> None:
        for child in self._children:
            child.end()


class _Child:
    """A child process of the gate process, with the gate's end of the socket pair between them.

    The gate uses a copy of this end, because `end` closes it while the event loop may still watch the copy.
    """

    def __init__(self, words: tuple[str, ...]) -> None:
        self.ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", *words, "--socket", str(theirs.fileno())]
        # Messages of the child process to the service manager would be mistaken for the gate's.
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment)
        theirs.close()

    def end(self) -> None:
        with suppress(OSError):
            self.ours.shutdown(socket.SHUT_RDWR)
        self.ours.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@asynccontextmanager
async def neighbours_of(hospital: Hospital, path: Path) -> AsyncIterator[Neighbours]:
    """Start the agent and the trainer for a gate process. When the block ends for any reason, both processes end."""
    neighbours = Neighbours(hospital, path)
    try:
        yield neighbours
    finally:
        neighbours.end()


async def _connected_agent(place: Path) -> socket.socket:
    """Wait at the gate's socket for the agent. A socket of an earlier process is replaced, and no other file."""
    if place.is_socket():
        place.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(str(place))
            place.chmod(0o660)
            listener.listen(1)
        except OSError as cause:
            raise ConfigurationError(
                what=f"The gate process cannot listen on its socket {place}: {cause}.",
                consequence="The gate process did not start. Nothing was sent.",
                remedy="Set gate_socket in hospital.yaml to an unused path to which the gate's user may write.",
            ) from cause
        listener.setblocking(False)
        try:
            return (await asyncio.get_running_loop().sock_accept(listener))[0]
        finally:
            place.unlink(missing_ok=True)


async def _found_trainer(place: str) -> GateEnd:
    """Connect to the trainer's socket. If the trainer's service is restarting, wait for a limited time."""
    deadline = asyncio.get_running_loop().time() + RESTART_SECONDS
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.connect(place)
            return GateEnd(connection)
        except OSError as cause:
            connection.close()
            if asyncio.get_running_loop().time() > deadline:
                raise UnavailableError(
                    what=f"The gate process cannot connect to the trainer's socket {place}: {cause}.",
                    consequence="Nothing was sent.",
                    remedy="Start the service site-trainer, then start the service site-gate again.",
                    code="E027",
                ) from cause
        await asyncio.sleep(_POLL_SECONDS)
