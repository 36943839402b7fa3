"""An attacker controls one process of a site: drivers that use a socket of the site as the attacker could. The other
processes are the site's own code. `TakenOverAgent` sits at the agent's end of a real gate socket, with the agent's
files. The gate then acts as for a hostile coordinator with the site's TLS key."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from host.audit_log import AuditLog
from protos.plan.plan import Plan
from protos.wire.codec import decode_site_message, encode_coordinator_message
from protos.wire.messages import Announcement, CoordinatorMessage, Offer, SiteMessage
from protos.wire.upkeep_messages import KeptHead, LogHeads, Upkeep
from site_agent import gate_socket
from site_agent.framed_messages import HEADER, packed
from site_agent.gate.agent_link import AgentLink
from site_agent.gate.loop import SiteGate
from site_agent.gate.site_certificates import SiteCertificates
from site_agent.gate.site_upkeep import SiteUpkeep
from site_agent.gate_socket import FRAMING, WINDOW, largest_payload
from site_agent.trainer_socket import GateEnd
from tests.federation import MadeUpTrainer, hospital, identity_key
from tests.fuzz.mutator import mutated
from tests.protos.examples import COORDINATOR_MESSAGES, UPKEEP

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass
class Gate:
    """A running gate, and its orders to the agent."""

    trainer: MadeUpTrainer
    audit: AuditLog
    link: AgentLink
    task: asyncio.Task[None]
    socket: socket.socket
    orders: list[gate_socket.Message] = field(default_factory=list)

    @property
    def said(self) -> list[SiteMessage | Upkeep]:
        """Every message that the gate wanted sent."""
        return [decode_site_message(bytes(order.payload)) for order in self.orders if isinstance(order, gate_socket.Up)]

    def read(self) -> list[gate_socket.Message]:
        """Take every whole order that lies at the agent's end."""
        raw, found = b"", list[gate_socket.Message]()
        self.socket.setblocking(False)
        with suppress(OSError):
            while part := self.socket.recv(1 << 20):
                raw += part
        while len(raw) >= HEADER.size:
            kind, facts, payload = FRAMING.sizes(raw[: HEADER.size], largest_payload)
            found.append(FRAMING.build(kind, raw[HEADER.size :][:facts], raw[HEADER.size + facts :][:payload]))
            raw = raw[HEADER.size + facts + payload :]
        self.orders += found
        return found

    def write(self, raw: bytes) -> None:
        """Write at the agent's end, as much as the kernel takes."""
        self.socket.setblocking(False)
        with suppress(OSError):
            self.socket.send(raw)

    @property
    def has_stream(self) -> bool:
        """Whether the gate has opened a stream."""
        return self.link._stream is not None

    @property
    def waiting(self) -> int:
        """How many reports of a stream lie with the gate at most."""
        stream = self.link._stream
        return 0 if stream is None else stream._came.qsize()

    def error(self) -> BaseException | None:
        """How the gate has ended, if it has."""
        return self.task.exception() if self.task.done() and not self.task.cancelled() else None


@asynccontextmanager
async def gate_at(folder: Path, plan: Plan, name: str) -> AsyncIterator[Gate]:
    """A site's gate whose agent is whoever holds the other end of its sockets; `plan` may be approved in the folder."""
    folder.mkdir(exist_ok=True)
    ours, theirs = socket.socketpair()

    key, link, trainer = identity_key(name), AgentLink(), MadeUpTrainer(name)
    link.connect(ours)
    audit = AuditLog(folder / "audit.log", site=name, now=lambda: NOW)
    certificates = SiteCertificates(link.ask, audit)
    upkeep = SiteUpkeep(site=name, identity_key=key, certificates=certificates, audit=audit, now=now)
    own = SiteGate(
        hospital(name, folder), identity_key=key, trainer=cast(GateEnd, trainer), audit=audit, software="test",
        connect=lambda: link.stream(lambda: ""), upkeep=upkeep,
    )  # fmt: skip
    gate = Gate(trainer, audit, link, asyncio.create_task(own.run()), theirs)
    try:
        yield gate
    finally:
        gate.task.cancel()
        await asyncio.wait({gate.task})
        link.close()
        theirs.close()
        audit.close()


def now() -> datetime:
    """The time that the gate has."""
    return NOW


class TakenOverAgent:
    """The attacker in the agent reads every order, and writes what a random draw decides."""

    def __init__(self, gate: Gate, plan: Plan, files: tuple[bytes, ...], seed: int) -> None:
        """`files` are what the agent's folder has: chain, root and a signing request."""
        self.gate, self._plan, self._files, self.luck = gate, plan, files, random.Random(seed)
        self._stream = 0
        self._polite: list[CoordinatorMessage | Upkeep] = []
        self.most_waiting = 0

    async def run(self, steps: int) -> None:
        """So many turns: read what there is, write one thing."""
        for _ in range(steps):
            await asyncio.sleep(0.002)
            if self.gate.task.done():
                return
            self._read()
            self.gate.write(self._drawn())
            self.most_waiting = max(self.most_waiting, self.gate.waiting)
        await asyncio.sleep(0.01)
        self.gate.read()

    def _read(self) -> None:
        """Each order is answered or not, as drawn."""
        for order in self.gate.read():
            if isinstance(order, gate_socket.Open):
                self._stream = order.stream
                self._polite = [
                    LogHeads(KeptHead(), KeptHead()),
                    Announcement(self._plan.run_name, self._plan.canonical),
                ]
            answer = self._answer(order)
            if answer is not None and self.luck.random() < 0.9:
                self.gate.write(whole(answer))

    def _answer(self, order: gate_socket.Message) -> gate_socket.Message | None:
        match order:
            case gate_socket.Look() | gate_socket.Install():
                return gate_socket.Shown("", "", packed(self._files[:2]))
            case gate_socket.Make():
                return gate_socket.Requested(self._files[2] or b"no request")
            case gate_socket.Up():
                return gate_socket.Sent(order.stream, 1)
            case _:
                return None

    def _drawn(self) -> bytes:
        """Mostly correct frames with messages of a hostile coordinator, with a correct beginning. Sometimes the bytes
        are no frame at all."""
        luck, draw = self.luck, self.luck.random()
        if self._polite and luck.random() < 0.8:
            return whole(gate_socket.Down(self._stream, encode_coordinator_message(self._polite.pop(0))))
        if draw < 0.8:
            return whole(gate_socket.Down(self._stream, self._message()))
        if draw < 0.95:
            ended = gate_socket.Ended(self._stream, luck.choice(gate_socket.STATUSES))
            sent = gate_socket.Sent(self._stream, luck.randrange(1, WINDOW + 1))
            unasked = luck.choice((gate_socket.Unable(1, "unavailable"), gate_socket.Called(b"")))
            return whole(luck.choice((ended, ended, ended, sent, unasked)))
        if draw < 0.99:
            return mutated(luck, [whole(gate_socket.Down(self._stream, self._message()))], is_text=False)
        header = HEADER.pack(b"GLG1", luck.randrange(256), luck.randrange(1 << 32), luck.randrange(1 << 63))
        return header + luck.randbytes(luck.randrange(64))

    def _message(self) -> bytes:
        luck, plan = self.luck, self._plan
        own: list[CoordinatorMessage | Upkeep] = [
            Announcement(plan.run_name, plan.canonical),
            Offer(luck.randrange(3), luck.randrange(3), luck.randbytes(32)),
            *UPKEEP,
        ]
        message: Any = luck.choice([*own, *own, *COORDINATOR_MESSAGES])
        raw = encode_coordinator_message(message)
        return raw if luck.random() < 0.8 else mutated(luck, [raw], is_text=False)


def whole(message: gate_socket.Message) -> bytes:
    """A message as it lies on the socket."""
    return FRAMING.frame(message) + bytes(message.payload)
