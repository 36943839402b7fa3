"""The gate's connection to its agent: no error of the agent or of this program leaves a task of the gate waiting."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from protos.errors import DefectError, ProtocolError, UnavailableError
from protos.wire.codec import encode_coordinator_message
from protos.wire.messages import Bind, MalformedMessage
from site_agent import framed_messages
from site_agent.framed_messages import FramedSocket
from site_agent.gate import agent_link
from site_agent.gate.agent_link import MOST_UNSENT, AgentLink, Stream
from site_agent.gate_socket import FRAMING, Down, Look, Message, Opened, Requested, Shown, Up, largest_payload


class MadeUpAgents:
    """Agents in this process. Each answers every `Look`, unless it is silent, and keeps the orders that it got."""

    def __init__(self, *, silent: int = 0, slow: bool = False, reads: bool = True, most_answers: int = 99) -> None:
        """The first `silent` agents answer nothing. A slow start takes a few turns of the event loop."""
        self._reads, self._most_answers = reads, most_answers
        self.ends = list[FramedSocket[Message]]()
        self.orders = list[list[Message]]()
        self._silent, self._slow, self._tasks = silent, slow, set[asyncio.Task[None]]()

    async def start(self) -> socket.socket:
        """Start one more agent."""
        ours, theirs = socket.socketpair()
        end, orders = FramedSocket(theirs, FRAMING), list[Message]()
        answers = len(self.ends) >= self._silent
        self.ends.append(end)
        self.orders.append(orders)
        if self._reads:
            self._tasks.add(asyncio.create_task(self._serve(end, orders, answers=answers)))
        if self._slow:
            await asyncio.sleep(0.02)
        return ours

    async def _serve(self, end: FramedSocket[Message], orders: list[Message], *, answers: bool) -> None:
        with suppress(OSError):
            while True:
                order = await end.receive(largest_payload)
                orders.append(order)
                if answers and isinstance(order, Look) and orders.count(order) <= self._most_answers:
                    end.post(Shown("", "", bytes(8)))


async def nothing(_: float | None) -> None:
    """A stream is accepted."""


def played(agents: MadeUpAgents, scene: Callable[[AgentLink], Awaitable[None]]) -> None:
    """A scene with a link to these agents, within a limit of time."""

    async def whole() -> None:
        link = AgentLink(agents.start)
        async with asyncio.timeout(5):
            await scene(link)
        link.close()
        for end in agents.ends:
            end.close()

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("raised", "expected", "word"),
    [
        (KeyError("a defect"), DefectError, "KeyError"),
        (MemoryError(), UnavailableError, "too little free memory"),
        (ConnectionResetError(), UnavailableError, "has ended"),
    ],
)
def test_every_task_that_waits_gets_an_error(
    raised: Exception, expected: type[Exception], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in the function that handles reports ends the wait for an answer and the wait for a message."""
    agents = MadeUpAgents(silent=1)

    def fails(*_: object) -> None:
        raise raised

    monkeypatch.setattr(Stream, "take", fails)

    async def scene(link: AgentLink) -> None:
        async with link.stream(lambda: "", nothing) as stream:
            asked, received = asyncio.ensure_future(link.ask(Look())), asyncio.ensure_future(stream.receive())
            await asyncio.sleep(0.02)
            agents.ends[0].post(Opened(stream.number, -1))
            for waiting in (asked, received):
                with pytest.raises(expected, match=word):
                    await waiting
            with pytest.raises(expected, match=word):
                stream.require()

    played(agents, scene)


def test_after_a_lack_of_memory_there_is_a_new_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lack of memory passes. The gate does not need a person for it."""
    agents = MadeUpAgents()

    def fails(_: object, error: Exception) -> None:
        raise error

    async def scene(link: AgentLink) -> None:
        stream = link.stream(lambda: "", nothing)
        async with stream:
            with monkeypatch.context() as patch:
                patch.setattr(Stream, "take", lambda *_: fails(_, MemoryError()))
                agents.ends[0].post(Opened(stream.number, -1))
                with pytest.raises(UnavailableError):
                    await stream.receive()
        assert isinstance(await link.ask(Look()), Shown)
        assert len(agents.ends) == 2

    played(agents, scene)


def test_a_defect_is_not_repeated_with_new_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report that this program cannot handle, or that no agent sends, ends the work until a person acts."""
    agents = MadeUpAgents()

    async def scene(link: AgentLink) -> None:
        await link.ask(Look())
        agents.ends[0].post(Requested(b"without an order"))
        await asyncio.sleep(0.02)
        with pytest.raises(ProtocolError):
            await link.ask(Look())
        assert len(agents.ends) == 1

    played(agents, scene)


def test_an_order_and_a_stream_at_the_same_time_share_one_agent() -> None:
    """Two agents would each get a part of the messages, and both parts would wait for ever."""
    agents = MadeUpAgents(slow=True)

    async def scene(link: AgentLink) -> None:
        asked = asyncio.ensure_future(link.ask(Look()))
        await asyncio.sleep(0)
        async with link.stream(lambda: "", nothing) as stream:
            assert isinstance(await asked, Shown)
            agents.ends[0].post(Opened(stream.number, -1))
            agents.ends[0].post(Down(stream.number, b"x"))
            with pytest.raises(MalformedMessage):  # the bytes came through, and are no message
                await stream.receive()
        assert len(agents.ends) == 1

    played(agents, scene)


def test_an_agent_that_answers_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate's main loop can wait for an answer. So a hostile agent must not be able to stop it for ever."""
    monkeypatch.setattr(agent_link, "FIRST_ANSWER_SECONDS", 0.05)
    agents = MadeUpAgents(silent=1)

    async def scene(link: AgentLink) -> None:
        async with link.stream(lambda: "", nothing) as stream:
            received = asyncio.ensure_future(stream.receive())
            for waiting in (link.ask(Look()), received):
                with pytest.raises(UnavailableError, match="did not read or answer"):
                    await waiting
        assert isinstance(await link.ask(Look()), Shown)
        assert [len([order for order in orders if isinstance(order, Look)]) for orders in agents.orders] == [1, 1]
        assert not any(isinstance(order, Up) for orders in agents.orders for order in orders)

    played(agents, scene)


def test_an_agent_that_reads_nothing_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """It forwards messages without an end and never reads a confirmation. The gate then ends the connection."""
    # Confirmations first fill the buffers of the socket. Every system grants this size, but not every larger one.
    monkeypatch.setattr(framed_messages, "_SOCKET_BYTES", 4096)
    agents = MadeUpAgents(reads=False)
    message = encode_coordinator_message(Bind(0, 0, ("a", "b", "c"), 0))

    async def scene(link: AgentLink) -> None:
        async with link.stream(lambda: "", nothing) as stream:
            received = list[object]()

            async def endless() -> None:
                while True:
                    agents.ends[0].post(Down(stream.number, message))
                    received.append(await stream.receive())

            with pytest.raises(UnavailableError, match="did not read or answer"):
                await endless()
            assert len(received) > MOST_UNSENT  # an honest agent that is only slow has a small part of that

    played(agents, scene)


def test_an_agent_that_has_answered_before_has_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first answer waits for the start of a process. While the gate waits, its main loop can do nothing."""
    monkeypatch.setattr(agent_link, "ANSWER_SECONDS", 0.05)
    agents = MadeUpAgents(most_answers=1)

    async def scene(link: AgentLink) -> None:
        assert isinstance(await link.ask(Look()), Shown)
        with pytest.raises(UnavailableError, match="did not read or answer"):
            await link.ask(Look())
        assert isinstance(await link.ask(Look()), Shown)  # of the next agent
        assert len(agents.ends) == 2

    played(agents, scene)
