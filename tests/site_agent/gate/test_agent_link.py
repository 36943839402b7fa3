"""The gate's connection to its agent: no error of the agent or of this program leaves a task of the gate waiting."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from protos.errors import DefectError, ProtocolError
from protos.wire.codec import encode_coordinator_message
from protos.wire.messages import Bind
from site_agent import framed_messages
from site_agent.framed_messages import FramedSocket
from site_agent.gate import agent_link
from site_agent.gate.agent_link import MOST_UNSENT, AgentLink, Stream
from site_agent.gate.mishaps import AgentGone
from site_agent.gate_socket import FRAMING, Down, Look, Message, Requested, Shown, largest_payload


class MadeUpAgent:
    """An agent in this process. It answers `Look` so often, and keeps the orders that it got."""

    def __init__(self, *, answers: int = 99, reads: bool = True) -> None:
        """`reads` is False for an agent that never reads an order."""
        self._ours, theirs = socket.socketpair()
        self.end, self.orders = FramedSocket(theirs, FRAMING), list[Message]()
        self._answers, self._reads = answers, reads
        self._task: asyncio.Task[None] | None = None

    def start(self) -> socket.socket:
        """Begin to read; the gate's socket."""
        if self._reads:
            self._task = asyncio.create_task(self._serve())
        return self._ours

    async def _serve(self) -> None:
        with suppress(OSError):
            while True:
                order = await self.end.receive(largest_payload)
                self.orders.append(order)
                if isinstance(order, Look) and self.orders.count(order) <= self._answers:
                    self.end.post(Shown("", "", bytes(8)))


def played(agent: MadeUpAgent, scene: Callable[[AgentLink], Awaitable[None]]) -> None:
    """A scene with a link to this agent, within a limit of time."""

    async def whole() -> None:
        link = AgentLink()
        link.connect(agent.start())
        async with asyncio.timeout(5):
            await scene(link)
        link.close()
        agent.end.close()

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(KeyError("a defect"), DefectError), (MemoryError(), AgentGone), (ConnectionResetError(), AgentGone)],
)
def test_every_task_that_waits_gets_an_error(
    raised: Exception, expected: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the function that handles reports ends the wait for an answer and the wait for a message."""
    agent = MadeUpAgent(answers=0)

    def fails(*_: object) -> None:
        raise raised

    monkeypatch.setattr(Stream, "take", fails)

    async def scene(link: AgentLink) -> None:
        async with link.stream(lambda: "") as stream:
            asked, received = asyncio.ensure_future(link.ask(Look())), asyncio.ensure_future(stream.receive())
            await asyncio.sleep(0.02)
            agent.end.post(Down(stream.number, b""))
            for waiting in (asked, received):
                with pytest.raises(expected):
                    await waiting
            with pytest.raises(expected):
                stream.require()
            with pytest.raises(expected):  # and every later order
                await link.ask(Look())

    played(agent, scene)


def test_an_answer_without_a_request_ends_the_work() -> None:
    """No agent of this version sends it."""
    agent = MadeUpAgent()

    async def scene(link: AgentLink) -> None:
        await link.ask(Look())
        agent.end.post(Requested(b"without an order"))
        await asyncio.sleep(0.02)
        with pytest.raises(ProtocolError):
            await link.ask(Look())

    played(agent, scene)


@pytest.mark.parametrize("answers", [0, 1])
def test_an_agent_that_answers_nothing_ends_the_work(monkeypatch: pytest.MonkeyPatch, answers: int) -> None:
    """The gate's main loop can wait for an answer. So a hostile agent must not be able to stop it for ever."""
    monkeypatch.setattr(agent_link, "ANSWER_SECONDS", 0.05)
    agent = MadeUpAgent(answers=answers)

    async def scene(link: AgentLink) -> None:
        async with link.stream(lambda: "") as stream:
            received = asyncio.ensure_future(stream.receive())
            for _ in range(answers):
                assert isinstance(await link.ask(Look()), Shown)
            for waiting in (link.ask(Look()), received):
                with pytest.raises(AgentGone):
                    await waiting

    played(agent, scene)


def test_an_agent_that_reads_nothing_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It forwards messages without an end and never reads a confirmation. The gate then ends the connection."""
    # Confirmations first fill the buffers of the socket. Every system grants this size, but not every larger one.
    monkeypatch.setattr(framed_messages, "_SOCKET_BYTES", 4096)
    agent = MadeUpAgent(reads=False)
    message = encode_coordinator_message(Bind(0, 0, ("a", "b", "c"), 0))

    async def scene(link: AgentLink) -> None:
        async with link.stream(lambda: "") as stream:
            received = list[object]()

            async def endless() -> None:
                while True:
                    agent.end.post(Down(stream.number, message))
                    received.append(await stream.receive())

            with pytest.raises(AgentGone):
                await endless()
            assert len(received) > MOST_UNSENT  # an honest agent that is only slow has a small part of that

    played(agent, scene)
