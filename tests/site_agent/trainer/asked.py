"""The real trainer in a process of its own, asked as the agent asks."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from site_agent.hatch import AgentEnd, Message

REPOSITORY = Path(__file__).parents[3]


class Asked:
    """A trainer process and the agent's end of its hatch; every byte it sent is kept."""

    def __init__(self, process: subprocess.Popen[str], ours: socket.socket) -> None:
        self.process, self._socket = process, ours
        self.received = b""

    def ask(self, message: Message) -> Message:
        """One question, one answer."""

        async def once() -> Message:
            end = AgentEnd(self._socket.dup())
            try:
                return await end.ask(message, largest_payload=1 << 24)
            finally:
                end.close()

        answer = asyncio.run(once())
        self.received += repr(answer).encode() + bytes(answer.payload)
        return answer

    def end(self) -> tuple[int, str]:
        """Close our end; its exit status and what it printed for its operator."""
        self._socket.close()
        _, said = self.process.communicate(timeout=120)
        return self.process.returncode, said


@contextmanager
def trainer(config: Path) -> Iterator[Asked]:
    """Start the trainer as the agent does."""
    ours, theirs = socket.socketpair()
    words = [sys.executable, "-m", "site_agent.trainer", "--config", str(config), "--hatch", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(words, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True, cwd=REPOSITORY)
    asked = Asked(process, ours)
    try:
        yield asked
    finally:
        if process.poll() is None:
            process.kill()
        ours.close()
        process.communicate()
