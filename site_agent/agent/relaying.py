"""Carries out the commands of the gate process, and passes messages between gate process and coordinator.

The agent decodes no message of a run and makes no decision about one. The rules:

* at most WINDOW messages of the coordinator wait at the gate at once, so memory stays small;
* a stream ends with the socket to the gate, or with the next order to open a stream;
* this process's own log explains errors. The gate receives only a word of a closed list.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, assert_never

from protos.errors import OperatorError, UnavailableError
from protos.wire.messages import ENROL, RENEW, MalformedMessage
from site_agent.agent.connection import CallEnded, Connection, call
from site_agent.agent.kept_certificates import KeptCertificates
from site_agent.framed_messages import FramedSocket, unpacked
from site_agent.gate_socket import (
    CREDITS_AT_ONCE,
    LOGIN_REFUSED,
    WINDOW,
    Answer,
    Call,
    Called,
    Down,
    Ended,
    Install,
    Look,
    Make,
    Message,
    Open,
    Order,
    Part,
    Requested,
    Sent,
    Shut,
    Taken,
    Through,
    Unable,
    Up,
    largest_payload,
)

_LOGIN_SECONDS: Final = 300.0  # many refused logins in a row could lock the account at the proxy
_ORDERS: Final = (Look, Make, Call, Install, Through, Open, Up, Taken, Part, Shut)


class Relay:
    """Works as the agent of one site while the socket to the gate process is open."""

    def __init__(self, gate: FramedSocket[Message], kept: KeptCertificates) -> None:
        self._gate, self._kept = gate, kept
        self._stream: _Stream | None = None
        self._proxy, self._barred_until = "", 0.0

    @property
    def line(self) -> str:
        if self._stream is None:
            return "the gate is here, no stream is wanted"
        return "connected to the coordinator" if self._stream.is_accepted else "connecting to the coordinator"

    async def run(self) -> None:
        """Carry out the gate's commands until it disconnects. Raise MalformedMessage if it is of another version."""
        try:
            while True:
                order = await self._gate.receive(largest_payload)
                if not isinstance(order, _ORDERS):
                    raise MalformedMessage("a report instead of a command")
                await self._carry_out(order)
        except OSError:
            return
        finally:
            await self._shut()

    async def _carry_out(self, order: Order) -> None:
        match order:
            case Open(stream=number, address=address):
                await self._shut()
                if self._is_barred:
                    self._gate.post(Ended(number, LOGIN_REFUSED))
                else:
                    place = address or self._kept.address("coordinator")
                    self._stream = _Stream(number, self._tell, place, self._kept, self._proxy)
            case Up() | Taken() | Part():
                if self._stream is not None and self._stream.number == order.stream:
                    self._stream.take(order)
            case Shut(stream=number):
                if self._stream is not None and self._stream.number == number:
                    await self._shut()
            case Call() if self._is_barred:
                self._gate.post(Unable(UnavailableError.exit_status, LOGIN_REFUSED))
            case Look() | Make() | Call() | Install():
                self._tell(await answer_of(self._kept, order, self._proxy))
            case Through(proxy=proxy):
                self._proxy = proxy
            case _:
                assert_never(order)

    @property
    def _is_barred(self) -> bool:
        return time.monotonic() < self._barred_until

    def _tell(self, message: Message) -> None:
        if isinstance(message, Ended | Unable) and message.status == LOGIN_REFUSED:
            self._barred_until = time.monotonic() + _LOGIN_SECONDS
        self._gate.post(message)

    async def _shut(self) -> None:
        if self._stream is not None:
            stream, self._stream = self._stream, None
            await stream.shut()


class _Stream:
    """One stream to the coordinator, with one task that reads and one task that writes."""

    def __init__(
        self, number: int, report: Callable[[Message], None], address: str, kept: KeptCertificates, proxy: str
    ) -> None:
        """Open the stream to the coordinator. `report` tells the gate process when and how this stream ends."""
        self.number, self._report, self.is_accepted = number, report, False
        self._up: asyncio.Queue[Up | Part] = asyncio.Queue()
        self._room = asyncio.Semaphore(WINDOW)
        self._task: asyncio.Task[None] | None = asyncio.create_task(self._live(address, kept, proxy))

    def take(self, order: Up | Taken | Part) -> None:
        if isinstance(order, Taken):
            for _ in range(order.count):
                self._room.release()
        elif self._up.qsize() > WINDOW:
            raise MalformedMessage("more messages than the window has")
        else:
            self._up.put_nowait(order)

    async def shut(self) -> None:
        # A cancelled task would keep references to its variables and so keep the connection open.
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})

    async def _live(self, address: str, kept: KeptCertificates, proxy: str) -> None:
        try:
            async with Connection(address, kept.credentials(), self._accepted, kept.proxy(proxy)) as connection:
                writer = asyncio.create_task(self._write(connection))
                try:
                    while True:
                        await self._room.acquire()
                        self._report(Down(self.number, await connection.receive()))
                except CallEnded as ended:
                    self.is_accepted = False
                    self._report(Ended(self.number, ended.status))
                finally:
                    writer.cancel()
        except OperatorError as error:  # an error of this site's own files
            print(error.lines("site-agent"), file=sys.stderr, flush=True)
            self._report(Ended(self.number, "unknown"))

    async def _write(self, connection: Connection) -> None:
        written = 0
        with suppress(CallEnded):  # the reading task also detects the end of the stream and reports it
            while True:
                match await self._up.get():
                    case Up(payload=payload):
                        await connection.send(bytes(payload))  # gRPC takes only bytes
                        written += 1
                        if written == CREDITS_AT_ONCE:
                            self._report(Sent(self.number, written))
                            written = 0
                    case Part():
                        await connection.part()
                    case other:
                        assert_never(other)

    def _accepted(self) -> None:
        self.is_accepted = True


async def answer_of(kept: KeptCertificates, order: Look | Make | Call | Install, proxy: str = "") -> Answer:
    """Carry out a command of the gate process about a certificate or an enrolment request, and log a failure."""
    try:
        match order:
            case Look():
                pass
            case Make(key=key):
                return Requested(kept.make(key))
            case Call():
                root, request = unpacked(order.payload, 2)
                address, trusted = order.address or kept.address("enrolment"), root or kept.root()
                name = ENROL if order.call == "enrol" else RENEW
                return Called(await call(name, address, trusted, request, kept.proxy(proxy)))
            case Install():
                kept.install(order)
            case _:
                assert_never(order)
        return kept.shown()
    except CallEnded as ended:
        return Unable(UnavailableError.exit_status, ended.status)
    except OperatorError as error:
        print(error.lines("site-agent"), file=sys.stderr, flush=True)
        return Unable(error.exit_status, "")
