"""Sends the commands of the gate process to the agent, and opens at most one stream to the coordinator.

Reports of the agent are checked like messages of a hostile coordinator. If an agent sends a report that no agent of
this version sends, this site's part ends. If the agent ends or is silent, the gate ends too. Both are started again.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from protos.errors import OperatorError, explained
from protos.wire.codec import decode_coordinator_message, encode_site_message, site_chunk_header, taken_apart
from protos.wire.messages import Chunk, CoordinatorMessage, MalformedMessage, Refusal, SiteMessage
from protos.wire.upkeep_messages import Upkeep
from site_agent.framed_messages import FramedSocket
from site_agent.gate.mishaps import agent_gone, agent_misbehaved, of_certificate, reads_nothing, stream_ended
from site_agent.gate_socket import (
    CREDITS_AT_ONCE,
    FRAMING,
    WINDOW,
    Answer,
    Called,
    Down,
    Ended,
    Message,
    Open,
    Order,
    Part,
    Requested,
    Sent,
    Shown,
    Shut,
    Taken,
    Through,
    Unable,
    Up,
    largest_payload,
)

PARTING_SECONDS: Final = 4.0
ANSWER_SECONDS: Final = 300.0  # a new agent process loads its libraries first, perhaps on a busy computer
# Parts of messages. An agent that reads has far fewer, because of the windows of a stream. Each part needs memory until
# the agent reads it.
MOST_UNSENT: Final = 1000
MOST_LATER: Final = 64  # an honest coordinator sends only a few requests before it reads the answers
_ANSWERS: Final = (Shown, Requested, Called, Unable)
_OF_STREAM: Final = (Down, Sent, Ended)


class AgentLink:
    """Connects the gate process to this site's agent."""

    def __init__(self) -> None:
        """Start without an agent. `connect` comes before all other methods."""
        self._socket: FramedSocket[Message] | None = None
        self._failure: OperatorError | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._asking = asyncio.Lock()
        self._stream: Stream | None = None
        self._number = 0

    def connect(self, agent: socket.socket, proxy: str | None = None) -> None:
        """Take over the socket that is connected to the agent. `proxy` is HOST:PORT or None."""
        self._socket = FramedSocket(agent, FRAMING)
        if proxy:
            self._socket.post(Through(proxy))
        self._socket.listen(largest_payload, self._took, self._broke)

    async def ask(self, order: Order) -> Answer:
        """Send a command to the agent and return its reply. Only one command is sent at a time.

        Raises:
            AgentGone: the agent has ended, or does not answer in time.
            ProtocolError: the agent sends bytes that no agent sends.
        """
        # The order is finished even if the caller is cancelled. A late answer would be read as the answer to the next
        # order.
        return await asyncio.shield(asyncio.ensure_future(self._ask(order)))

    def stream(self, address: Callable[[], str]) -> Stream:
        """Return a new stream to the coordinator. Use it as an asynchronous context (`async with`).

        `address` returns HOST:PORT, or an empty text for the address that came with enrolment.
        """
        return Stream(self, address)

    def begin(self, stream: Stream) -> int:
        """Make this stream the current stream to the coordinator, and return its number. Only Stream calls this."""
        self._require()
        self._number, self._stream = self._number + 1, stream
        return self._number

    def end(self, stream: Stream) -> None:
        """Stop accepting messages for this stream, because it has ended. Only Stream calls this."""
        if self._stream is stream:
            self._stream = None

    def post(self, order: Order, body: bytes | memoryview = b"") -> None:
        """Send the agent a command that has no reply. The bytes `body` end its payload. Only Stream calls this."""
        if self._socket is not None and self._failure is None:
            self._socket.post(order, body)
            if self._socket.unsent > MOST_UNSENT:
                self._broke(TimeoutError())

    def close(self) -> None:
        """Close the connection to the agent. The agent then ends its stream to the coordinator."""
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    async def _ask(self, order: Order) -> Answer:
        async with self._asking:
            self._require()
            self._answer = asyncio.get_running_loop().create_future()
            self.post(order)
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    return await self._answer
            except TimeoutError as late:
                self._broke(late)
                raise agent_gone() from late
            finally:
                self._answer = None

    def _require(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _broke(self, error: Exception) -> None:
        """End the connection after an error. Each task that waits for the agent receives the reason."""
        if self._socket is not None:
            self._socket.close()
        match error:
            case MalformedMessage():
                self._fail(agent_misbehaved(error))
            case OSError() | MemoryError():  # includes no answer in time
                self._fail(agent_gone())
            case _:
                self._fail(explained(error))

    def _took(self, report: Message) -> None:
        if isinstance(report, _OF_STREAM):
            if self._stream is not None and report.stream == self._stream.number:
                self._stream.take(report)
        elif isinstance(report, _ANSWERS) and self._answer is not None and not self._answer.done():
            self._answer.set_result(report)
        else:
            raise MalformedMessage("an answer without a request")

    def _fail(self, failure: OperatorError) -> None:
        self._failure = failure
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(failure)
        if self._stream is not None:
            self._stream.fail(failure)


class Stream:
    """Sends and receives messages on one stream to the coordinator. The agent relays them as bytes."""

    def __init__(self, link: AgentLink, address: Callable[[], str]) -> None:
        self._link, self._address = link, address
        self.number = 0
        self._came: asyncio.Queue[Down | OperatorError] = asyncio.Queue()
        self._parts = deque[bytes | memoryview]()  # messages that came as one, and were not read yet
        self._waiting, self._taken, self._under_way = 0, 0, 0
        self._room = asyncio.Semaphore(WINDOW)
        self._later = deque[bytes]()  # short messages that are sent as soon as the coordinator reads
        self._end: OperatorError | None = None
        self._is_over = asyncio.Event()

    async def __aenter__(self) -> Stream:
        self.number = self._link.begin(self)
        self._link.post(Open(self.number, self._address()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._link.end(self)
        self._link.post(Shut(self.number))

    async def send(self, message: SiteMessage | Upkeep, check: Callable[[], None] | None = None) -> None:
        """Send one message to the coordinator. A chunk or a refusal waits if the coordinator reads too slowly.

        After such a wait `check` is called. It raises an error if the message may no longer be sent. Any other message
        is stored and sent later, because the gate's main loop must never wait for the coordinator.

        Raises:
            OperatorError: an error of `check`. The message is not sent.
            UnavailableError: the stream has ended, or too many messages wait to be sent.
            RefusedError: the coordinator does not accept this site's certificate.
        """
        waits = self._room.locked()
        if waits and self._end is None and not isinstance(message, Chunk | Refusal):
            if len(self._later) == MOST_LATER:
                raise reads_nothing()
            self._later.append(encode_site_message(message))
            return
        await self._room.acquire()
        if self._end is not None:
            self._room.release()
            raise self._end
        if check is not None and waits:
            try:
                check()
            except BaseException:
                self._use_room()
                raise
        if isinstance(message, Chunk):
            self._post(site_chunk_header(message), message.body)
        else:
            self._post(encode_site_message(message))

    def _post(self, message: bytes, body: bytes | memoryview = b"") -> None:
        self._under_way += 1
        self._link.post(Up(self.number, message), body)

    def _use_room(self) -> None:
        if self._later:
            self._post(self._later.popleft())
        else:
            self._room.release()

    def require(self) -> None:
        """Check that the stream is open. Raises the error with which it ended."""
        if self._end is not None:
            raise self._end

    async def receive(self) -> CoordinatorMessage | Upkeep:
        """Return the next message of the coordinator.

        Raises:
            UnavailableError: the stream has ended.
            RefusedError: the coordinator does not accept this site's certificate.
            MalformedMessage: the coordinator sent bytes that no coordinator of this version sends.
        """
        while not self._parts:
            match await self._came.get():
                case Down(payload=payload):
                    self._waiting -= 1
                    self._taken += 1
                    if self._taken == CREDITS_AT_ONCE:
                        self._link.post(Taken(self.number, self._taken))
                        self._taken = 0
                    self._parts.extend(taken_apart(payload))
                case failure:
                    self._came.put_nowait(failure)  # for the next reader
                    raise failure
        return decode_coordinator_message(self._parts.popleft())

    async def part(self) -> None:
        """Send no more messages, and wait a short time until the coordinator ends the stream.

        gRPC cancels a stream that is closed at once. It then drops data that the other side has not read, also the
        reason for leaving.
        """
        self._link.post(Part(self.number))
        await asyncio.wait({asyncio.ensure_future(self._is_over.wait())}, timeout=PARTING_SECONDS)

    def take(self, report: Down | Sent | Ended) -> None:
        """Handle the agent's report about this stream. Raises MalformedMessage: the report is unexpected.

        Only AgentLink calls this.
        """
        match report:
            case Sent(count=count) if count <= self._under_way:
                self._under_way -= count
                for _ in range(count):
                    self._use_room()
            case Ended(status=status):
                address = self._address()
                self.fail(of_certificate(address, status, datetime.now(UTC), "E020") or stream_ended(address, status))
            case Down() if self._waiting < WINDOW:
                self._waiting += 1
                self._came.put_nowait(report)
            case _:
                raise MalformedMessage("a report that the stream has no place for")

    def fail(self, failure: OperatorError) -> None:
        """Mark this stream as ended, for any reason. Only AgentLink calls this."""
        if self._end is None:
            self._end = failure
            self._came.put_nowait(failure)
            self._is_over.set()
            self._room.release()  # a task that waits for space continues, and raises
