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
    """Starts or finds the agent and the trainer for a gate process, and another agent if the agent has ended."""

    def __init__(self, hospital: Hospital, path: Path) -> None:
        """Store the configuration. `path` is its file, which a trainer that is started here reads itself."""
        self._hospital, self._path = hospital, path
        self._agent: _Child | None = None
        self._next_agent: _Child | None = None  # started, and not yet returned by `agent`
        self._trainer: _Child | None = None
        self._listener: socket.socket | None = None

    def start_agent(self) -> None:
        """Start the agent process early, so that it loads its libraries while the gate process starts.

        Do nothing if the agent runs as a service.
        """
        if self._hospital.gate_socket is None:
            words = ["site_agent.agent", "--folder", str(agent_folder(self._hospital.state_path))]
            self._next_agent = _Child(words)

    async def agent(self) -> socket.socket:
        """Return a socket that is connected to the agent process of this site.

        Raises:
            ConfigurationError: the agent that was started here has ended and must not be started again.
        """
        if self._hospital.gate_socket is not None:
            return await self._connected_agent(Path(self._hospital.gate_socket))
        if self._agent is not None:
            _refuse_ended(self._agent.end())
        if self._next_agent is None:
            self.start_agent()
        self._agent, self._next_agent = self._next_agent, None
        assert self._agent is not None
        return self._agent.ours.dup()

    async def trainer(self) -> GateEnd:
        """Return the gate process's end of a socket that is connected to the trainer."""
        if self._hospital.trainer_socket is not None:
            return await _found_trainer(self._hospital.trainer_socket)
        self._trainer = _Child(["site_agent.trainer_process", "--config", str(self._path)])
        return GateEnd(self._trainer.ours.dup())

    def end(self) -> None:
        """End the agent and trainer processes that this object started. Wait for each process for a limited time."""
        for child in (self._agent, self._next_agent, self._trainer):
            if child is not None:
                child.end()
        if self._listener is not None:
            self._listener.close()
            Path(str(self._hospital.gate_socket)).unlink(missing_ok=True)

    async def _connected_agent(self, place: Path) -> socket.socket:
        if self._listener is None:
            self._listener = _listening(place)
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        return connection


class _Child:
    """A child process of the gate process, with the gate's end of the socket pair between them.

    The gate uses a copy of this end, because `end` closes it while the event loop may still watch the copy.
    """

    def __init__(self, words: list[str]) -> None:
        self.ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", "-m", *words, "--socket", str(theirs.fileno())]
        # The child process must not write to the service manager of this process. Its messages would be mistaken for
        # the gate's.
        environment = {name: value for name, value in os.environ.items() if name != "NOTIFY_SOCKET"}
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment)
        theirs.close()

    def end(self) -> int:
        """Close the socket so that the child process ends. Wait for the process, and return its exit status."""
        with suppress(OSError):
            self.ours.shutdown(socket.SHUT_RDWR)
        self.ours.close()
        try:
            return self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


@asynccontextmanager
async def neighbours_of(hospital: Hospital, path: Path) -> AsyncIterator[Neighbours]:
    """Start the agent and the trainer for a gate process. When the block ends for any reason, both processes end."""
    neighbours = Neighbours(hospital, path)
    try:
        yield neighbours
    finally:
        neighbours.end()


def _listening(place: Path) -> socket.socket:
    """Open the gate's socket. A socket that an earlier process left is replaced. Any other file is not removed."""
    if place.is_socket():
        place.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(place))
        place.chmod(0o660)
        listener.listen(1)
    except OSError as cause:
        listener.close()
        raise ConfigurationError(
            what=f"The gate process cannot listen on its socket {place}: {cause.strerror}.",
            consequence="The gate process did not start. Nothing was sent.",
            remedy="Set gate_socket in hospital.yaml to an unused path to which the gate's user may write.",
        ) from cause
    listener.setblocking(False)
    return listener


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
                    what=f"The gate process cannot connect to the trainer's socket {place}: {cause.strerror}.",
                    consequence="Nothing was sent.",
                    remedy="Start the service site-trainer, then start the service site-gate again.",
                    code="E027",
                ) from cause
        await asyncio.sleep(_POLL_SECONDS)


def _refuse_ended(status: int) -> None:
    if status in (77, ConfigurationError.exit_status):
        error = ConfigurationError(
            what="The agent of this site (the process with network access) ended. The agent's own message in its log "
            "has the reason.",
            consequence="Nothing more is sent.",
            remedy="Do what the agent's message recommends, then start the site agent again.",
        )
        error.exit_status = status
        raise error
