"""A coordinator that lies, over real gRPC and TLS, and the real agent that receives the lies."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
import numpy as np

from deploy.quickstart.ports import free_port
from host.audit_log import AuditLog
from protos.errors import OperatorError
from protos.plan.announced_plan import plan_from_wire
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.codec import decode_site_message, encode_coordinator_message
from protos.wire.messages import PARTICIPATE, Announcement, Chunk, CoordinatorMessage, Join, SiteMessage, Stage
from site_agent.approving import approve
from site_agent.gate.loop import SiteGate
from site_agent.hospital import Hospital
from site_agent.state_folders import gate_store_path
from site_agent.trainer_socket import (
    Agreed,
    Check,
    Conclude,
    Failed,
    GateEnd,
    Message,
    Prepare,
    Prepared,
    Train,
    Trained,
    TrainerEnd,
)
from tests.logged import lines_of
from tests.rehearsal.federation import ENOUGH_SECONDS, Office, eventually
from tests.rehearsal.relayed_stream import Connection
from tests.rehearsal.study import offer

Kind = TypeVar("Kind")


class Stopped(Exception):  # ends a lie
    """The site has ended the stream, or the coordinator hangs up."""


class Stream:
    """The coordinator's end of one stream."""

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes], received: list[SiteMessage]) -> None:
        self._context, self._received = context, received

    async def send(self, *messages: CoordinatorMessage | bytes) -> None:
        """Send messages, or bytes that are none."""
        for message in messages:
            await self._context.write(message if isinstance(message, bytes) else encode_coordinator_message(message))

    async def expect(self, kind: type[Kind]) -> Kind:
        """Read until a message of this kind comes."""
        while True:
            raw = await self._context.read()
            if not isinstance(raw, bytes):
                raise Stopped(kind.__name__)
            message = decode_site_message(raw)
            self._received.append(message)
            if isinstance(message, kind):
                return message

    async def to_the_end(self) -> None:
        """Read whatever still comes."""
        try:
            await self.expect(type(None))
        except Stopped:
            return

    async def joined(self, plan: Plan) -> None:
        """Announce a plan and wait until the site has joined."""
        await self.send(Announcement(plan.run_name, plan.canonical))
        await self.expect(Join)

    async def offered(self, plan: Plan, number: int, attempt: int = 0, value: float | None = None) -> None:
        """Offer a round, every parameter being `value`."""
        vector = np.full(manifest_of(plan).parameters, number if value is None else value, np.float32)
        await self.send(*offer(vector, number, attempt))

    async def chunks(self, count: int) -> list[Chunk]:
        """The next chunks of an upload."""
        return [await self.expect(Chunk) for _ in range(count)]


Lie = Callable[[Stream], Awaitable[None]]


@dataclass
class Evidence:
    """The result of a lie."""

    received: list[SiteMessage] = field(default_factory=list)
    error: OperatorError | None = None
    audit: list[dict[str, Any]] = field(default_factory=list)
    questions: list[Message] = field(default_factory=list)
    connections: int = 0
    is_waiting: bool = False

    @property
    def chunks(self) -> list[Chunk]:
        """The site's sent messages."""
        return [message for message in self.received if isinstance(message, Chunk)]

    def events(self, name: str) -> list[dict[str, Any]]:
        """The audit records of one kind."""
        return [facts for facts in self.audit if facts["event"] == name]


class BehavingTrainer(threading.Thread):
    """The other process of a site: every change is the same number, and every question is kept."""

    def __init__(self, connection: socket.socket, value: float) -> None:
        super().__init__(daemon=True)
        self._trainer_socket, self._socket, self._value = TrainerEnd(connection), connection, value
        self.questions: list[Message] = []
        self.failure: Callable[[], Failed] | None = None
        self.scalar = 1  # what it measures, whatever it is asked for
        self.too_much = b""  # what it hands out behind the rest

    def run(self) -> None:
        """Answer until the agent has gone."""
        try:
            while (question := self._trainer_socket.receive()) is not None:
                self.questions.append(question)
                self._trainer_socket.send(self._answer(question))
        except OSError:
            return  # the agent has gone between two bytes
        finally:
            self._socket.close()

    def _answer(self, question: Message) -> Message:
        match question:
            case Prepare(payload=payload):
                plan = plan_from_wire(bytes(payload))
                manifest = manifest_of(plan)
                self._exchanges = Exchanges(plan, manifest)
                self._trainer_socket.largest_payload = max(
                    4 * manifest.parameters, self._trainer_socket.largest_payload
                )
                return Prepared(manifest.digest.hex())
            case Train(round=number, payload=payload):
                if self.failure is not None:
                    return self.failure()
                exchange = self._exchanges.of(number, Stage(question.stage), bytes.fromhex(question.layers))
                assert len(payload) == 4 * exchange.down_numbers
                change = np.full(exchange.layout.parameters, self._value, np.float32)
                scalars = np.full(len(exchange.scalars), self.scalar, "<i8")
                return Trained(round=number, rows=0, payload=change.tobytes() + scalars.tobytes() + self.too_much)
            case Check() | Conclude():
                return Agreed()
            case _:
                raise AssertionError(f"the agent never asks {question}")


def hospital_for(folder: Path, site: str = "a", policy: Mapping[str, object] | None = None) -> Hospital:
    """A hospital whose policy allows the studies of these tests, but for the keys in `policy`."""
    allowed = {
        "methods": ["fedavg"],
        "secure_aggregation": "not-required",
        "smallest_sites": 3,
        "largest_rounds": 10,
        "largest_megabytes": 100.0,
        "largest_clipping_range": 8.0,
    }
    return Hospital.model_validate_json(
        json.dumps(
            {
                "site": site,
                "state": str(folder / "state"),
                "policy": allowed | dict(policy or {}),
                "data": {"table": "none.csv", "contract": "none.yaml", "split": {"seed": 0}},
            }
        )
    )


@asynccontextmanager
async def lying(office: Office, lies: list[Lie], evidence: Evidence) -> AsyncIterator[str]:
    """A coordinator with genuine certificates that tells each new stream the next lie; its address."""

    async def participate(_: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        lie = lies[min(evidence.connections, len(lies) - 1)]
        evidence.connections += 1
        stream = Stream(context, evidence.received)
        await stream.expect(object)  # the greeting
        try:
            await lie(stream)
            await stream.to_the_end()
        except Stopped:
            return

    handler: Any = grpc.stream_stream_rpc_method_handler(participate)
    service, method = PARTICIPATE.strip("/").split("/")
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    authority = office.authority
    pair = (authority.coordinator_key_path.read_bytes(), authority.coordinator_certificate_path.read_bytes())
    address = f"localhost:{free_port()}"
    server.add_secure_port(address, grpc.ssl_server_credentials([pair], authority.root_pem(), True))
    await server.start()
    try:
        yield address
    finally:
        await server.stop(None)


def evidence_of(
    office: Office,
    folder: Path,
    *lies: Lie,
    approved: tuple[Plan, ...] = (),
    hospital: Hospital | None = None,
    change: float = 1.0,
    failure: Callable[[], Failed] | None = None,
    scalar: int = 1,
    too_much: bytes = b"",
    seconds: float = ENOUGH_SECONDS,
    counted_from: Callable[[], bool] = lambda: True,
) -> Evidence:
    """Run the agent of site a against a lying coordinator until it stops, and collect the evidence.

    An agent that goes on for `seconds` after `counted_from` has come true is stopped, and `is_waiting`
    reports it.
    """
    hospital = hospital or hospital_for(folder)
    for plan in approved:
        approve(hospital.state_path, plan, by="a test", at=datetime.now(UTC))
    ours, theirs = socket.socketpair()
    trainer = BehavingTrainer(theirs, change)
    trainer.failure, trainer.scalar, trainer.too_much = failure, scalar, too_much
    trainer.start()
    audit = AuditLog(gate_store_path(hospital.state_path), site=hospital.site, now=lambda: datetime.now(UTC))
    evidence = Evidence()

    async def scene() -> None:
        async with lying(office, list(lies), evidence) as address:
            gate = SiteGate(
                hospital,
                identity_key=office.keys("a").identity_key(),
                trainer=GateEnd(ours),
                audit=audit,
                connect=lambda: Connection(address, office.credentials("a")),
                software="test",
            )
            running = asyncio.create_task(gate.run())
            try:
                await eventually(lambda: running.done() or counted_from())
                await asyncio.wait_for(running, seconds)
            except OperatorError as error:
                evidence.error = error
            except TimeoutError:
                evidence.is_waiting = True

    try:
        asyncio.run(scene())
    finally:
        ours.close()
        trainer.join(ENOUGH_SECONDS)
        audit.close()
        log = lines_of(gate_store_path(hospital.state_path))
        evidence.audit = [json.loads(line)["facts"] for line in log]
        evidence.questions = trainer.questions
    return evidence
