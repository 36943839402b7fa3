"""Runs several sites in one process: `python -m benchmarks.rehearsal.light_sites --folder F --kind agents SITE...`.

Two kinds, both over mutual TLS with certificates of their own:

* `agents`: the deployed agent of each site with its gate, audit log and masks; only the trainer is replaced, by one
  in memory that returns its input plus one;
* `streams`: nothing of the agent. What comes down is counted and dropped, what goes up is made chunk by chunk from
  two chunks that all sites of the process share, so that a site needs no memory for a model. In the clear only.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import click
import numpy as np
import structlog

from benchmarks.rehearsal.enrolled import credentials_of
from benchmarks.rehearsal.plain_stream import PlainStream
from host.audit_log import AuditLog
from pki.identity_key import read_identity_key
from protos.numbers.chunk_layout import Layout
from protos.numbers.fixed_point import FixedPoint
from protos.plan.exchange import Exchange, Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_wire
from protos.wire.messages import (
    MOST_CHUNKS_AT_ONCE,
    MOST_TOGETHER_BYTES,
    PROTOCOL_VERSION,
    Announcement,
    Bind,
    Chunk,
    Done,
    Farewell,
    Finish,
    Hello,
    Join,
    MalformedMessage,
    Offer,
    Ready,
    SiteMessage,
)
from site_agent.gate.agent_link import Stream as SiteStream
from site_agent.gate.loop import SiteGate
from site_agent.hospital import Hospital, read_hospital
from site_agent.state_folders import gate_folder, gate_store_path
from site_agent.trainer_socket import Agreed, Check, Conclude, GateEnd, Message, Prepare, Prepared, Train, Trained


class LightTrainer:
    """Replies to each request of an agent at once, with every parameter increased by one."""

    def __init__(self) -> None:
        self._change = memoryview(b"")

    async def ask(self, question: Message, largest_payload: int = 0) -> Message:  # noqa: ARG002 — as GateEnd has it
        """Return the reply of a trainer whose training adds one to every parameter."""
        await asyncio.sleep(0)
        match question:
            case Check() | Conclude():
                return Agreed()
            case Prepare(payload=payload):
                return Prepared(manifest_of(plan_from_wire(bytes(payload))).digest.hex())
            case Train(round=number, payload=payload):
                if len(payload) != len(self._change):
                    self._change = memoryview(np.ones(len(payload) // 4, np.float32)).cast("B")
                return Trained(number, 0, self._change)
            case _:
                raise ValueError("an answer instead of a request")

    def require(self) -> None:
        """Do nothing, because this trainer never ends by itself."""

    def close(self) -> None:
        """Do nothing, because nothing is open."""


async def take_part_as_agent(hospital: Hospital) -> None:
    """Run the deployed agent until the coordinator closes the stream."""
    assert hospital.coordinator is not None
    address, credentials = hospital.coordinator, credentials_of(hospital)
    audit = AuditLog(gate_store_path(hospital.state_path), site=hospital.site, now=lambda: datetime.now(UTC))
    gate = SiteGate(
        hospital,
        identity_key=read_identity_key(gate_folder(hospital.state_path)),
        trainer=cast(GateEnd, LightTrainer()),
        audit=audit,
        connect=lambda: cast(SiteStream, PlainStream(address, credentials)),
        software="benchmark",
    )
    await gate.run()
    audit.close()


class Bodies:
    """The chunks of a contribution that adds one to every parameter. All chunks except the last are equal."""

    def __init__(self, plan: Plan, layout: Layout) -> None:
        self._encoding = FixedPoint(plan.masking.clipping_range, len(plan.sites))
        self.layout = layout
        self._first, self._last = (self._made(index) for index in (0, layout.chunks - 1))

    def body(self, index: int) -> memoryview:
        """Return the bytes of one chunk."""
        return self._last if index == self.layout.chunks - 1 else self._first

    def _made(self, index: int) -> memoryview:
        body = memoryview(bytearray(self.layout.chunk_bytes(index)))
        words, updates = self.layout.words(body, index), self.layout.updates(body, index)
        words[0], words[1:] = 1, 0
        self._encoding.encode(np.ones(updates.size, np.float32), 1.0, updates)
        return body


class Stream:
    """Computes the messages of a site without a model. See `streams` in the module's docstring."""

    def __init__(self) -> None:
        self._run = ""
        self._missing = 0
        self._announced: Offer | Finish | None = None
        self._bodies: Bodies | None = None
        self._exchange: Exchange | None = None
        self.is_over = False

    def answer(self, message: object) -> Iterator[SiteMessage]:
        """Yield the replies to a message. Each chunk is made when it is needed."""
        match message:
            case Announcement(run=run, plan=raw):
                self._run, self._plan = run, plan_from_wire(raw)
                self._exchanges = Exchanges(self._plan, manifest_of(self._plan))
                yield Join(run, self._plan.digest, manifest_of(self._plan).digest, key_session=0)
            case Offer(round=number, stage=stage, layers=layers):
                self._announced, self._exchange = message, self._exchanges.of(number, stage, layers)
                self._missing = 0 if message.first_chunk else self._exchange.down_numbers
                yield from self._arrived(0)
            case Finish(layers=layers):
                self._announced = message
                numbers = sum(tensor.number_count for tensor in self._exchanges.result(layers))
                self._missing = 0 if message.first_chunk else numbers
                yield from self._arrived(0)
            case Chunk(body=body):
                yield from self._arrived(len(body) // 4)
            case Bind():
                yield from self._contribution(message)
            case Farewell():
                self.is_over = True
            case _:
                raise MalformedMessage("something that a site in the clear is never told")

    def _arrived(self, numbers: int) -> Iterator[SiteMessage]:
        self._missing -= numbers
        if self._missing == 0 and isinstance(self._announced, Finish):
            yield Done(self._run)
        elif self._missing == 0 and self._announced is not None:
            yield Ready(self._announced.round, self._announced.attempt)

    def _contribution(self, bind: Bind) -> Iterator[Ready | Chunk]:
        assert self._exchange is not None
        if self._bodies is None or self._bodies.layout != self._exchange.layout:
            self._bodies = Bodies(self._plan, self._exchange.layout)
        if len(self._plan.sites) > MOST_CHUNKS_AT_ONCE and self._exchange.layout.total_bytes > MOST_TOGETHER_BYTES:
            yield Ready(bind.round, bind.attempt)
        for index in range(bind.first_chunk, self._exchange.layout.chunks):
            yield Chunk(bind.round, bind.attempt, index, self._bodies.body(index))


async def take_part_as_stream(hospital: Hospital) -> None:
    """Reply to the coordinator until it ends the stream, without storing parameters."""
    assert hospital.coordinator is not None
    stream = Stream()
    async with PlainStream(hospital.coordinator, credentials_of(hospital)) as connection:
        await connection.send(Hello(PROTOCOL_VERSION, "benchmark"))
        while not stream.is_over:
            for answer in stream.answer(await connection.receive()):
                await connection.send(answer)


@click.command()
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False, exists=True), required=True)
@click.option("--kind", type=click.Choice(["agents", "streams"]), required=True)
@click.argument("sites", nargs=-1, required=True)
def main(folder: Path, kind: str, sites: tuple[str, ...]) -> None:
    """Take part as these sites until the coordinator reports that all runs are over."""
    # Logs go to stderr, as in the agent. The caller may read no other stream.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    take_part = take_part_as_agent if kind == "agents" else take_part_as_stream

    async def all_of_them() -> None:
        hospitals = [read_hospital(folder / site / "hospital.yaml") for site in sites]
        await asyncio.gather(*(take_part(hospital) for hospital in hospitals))

    asyncio.run(all_of_them())


if __name__ == "__main__":
    main()
