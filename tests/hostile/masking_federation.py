"""Masked studies in one process: real agents with real gates and ledgers, invented hospitals and simulated lines.

An agent here is the site's own program without a network: its stream is a `Line`, its trainer a `MadeUpTrainer` whose
update follows from site, round, draw and the parameters alone. The coordinator's player sends with `Site.tell` and
reads the site's messages.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.audit_log import AuditLog
from protos.errors import UnavailableError
from protos.fingerprints import fingerprint
from protos.numbers.fixed_point import FixedPoint
from protos.plan.announced_plan import plan_from_wire
from protos.plan.exchange import Exchange, Exchanges
from protos.plan.manifest import ROWS, manifest_of, slices_of
from protos.plan.methods import METHOD_NAMES
from protos.plan.plan import Plan
from protos.wire.messages import MOST_SAVED, Chunk, CoordinatorMessage, SiteMessage, Stage
from site_agent.agent.connection import Connection
from site_agent.approving import approve
from site_agent.gate.loop import SiteGate
from site_agent.hospital import Data, Hospital, Policy, Split
from site_agent.trainer_socket import Agreed, Conclude, GateEnd, Prepare, Prepared, Train, Trained
from site_agent.trainer_socket import Message as TrainerMessage
from tests.logged import lines_of
from tests.rehearsal.study import plan_with

Vector = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]
Kind = TypeVar("Kind")
DEAD = 100.0  # parameters beyond this give an update of zero, as a layer of dead units does
SETTLED_SECONDS = 1e-3  # in made-up time: whatever can happen without a clock has then happened


@cache
def identity_key(site: str) -> Ed25519PrivateKey:
    """A site's long-term key, the same in every test."""
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(f"identity of {site}".encode()).digest())


def identity_of(site: str) -> str:
    """The fingerprint of a site's long-term key."""
    return fingerprint(identity_key(site).public_key().public_bytes_raw())


def masked_plan(sites: Iterable[str], *, rounds: int = 3, parameters: int = 10, **changes: Any) -> Plan:
    """A plan with masking; `changes` replaces whole keys."""
    names = sorted(sites)
    keys = {"secure_aggregation": "required"} | changes
    return plan_with({name: identity_of(name) for name in names}, rounds=rounds, parameters=parameters, changes=keys)


def update_of(site: str, number: int, parameters: Vector) -> Vector:
    """The result of training at an invented hospital: equal for equal steps, and zero for dead units."""
    seed = hashlib.sha256(f"{site}|{number}|0".encode()).digest()
    draw = np.random.default_rng(list(seed)).standard_normal(parameters.size).astype(np.float32)
    return np.where(np.abs(parameters) < DEAD, draw / 8, np.float32(0)).astype(np.float32)


def rows_of(site: str) -> int:
    """A made-up hospital's training rows, on the public grid."""
    return (1, 2, 3, 4, 6, 8)[hashlib.sha256(site.encode()).digest()[0] % 6] * 16


def going_up(exchange: Exchange, received: Vector) -> Vector:
    """The received values of the tensors whose updates go up."""
    names = {tensor.name for tensor in exchange.up}
    places = zip(exchange.down, slices_of(exchange.down), strict=True)
    parts = [received[place] for tensor, place in places if tensor.name in names]
    return np.concatenate([np.empty(0, np.float32), *parts])


def measured_by(site: str, number: int, exchange: Exchange) -> dict[str, int]:
    """What a made-up hospital counts and measures in a round: all within bounds, and possible."""
    found = {}
    for scalar in exchange.scalars:
        drawn = hashlib.sha256(f"{site}|{number}|{scalar.name}".encode()).digest()[0]
        value = rows_of(site) if scalar.name == ROWS else (1 + drawn) * max(1, scalar.scale // 16)
        found[scalar.name] = min(value, scalar.bound)
    return found


def encoded(plan: Plan, update: Vector, weight: float = 1.0) -> Integers:
    """An update as the integers that the gate makes of it."""
    out = np.empty(update.size, np.int32)
    FixedPoint(plan.encoding.clipping_range, len(plan.sites)).encode(update, weight, out)
    return out


class MadeUpTrainer:
    """The process with the patients, without patients.

    `updates` makes the update of a site, round and parameters; `seconds` how long the next training takes. Its
    measurements follow from site, round and name alone.
    """

    def __init__(
        self,
        site: str,
        updates: Callable[[str, int, Vector], Vector] = update_of,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.trained: list[int] = []
        self.concluded: Vector | None = None
        self._site, self._updates, self._seconds = site, updates, seconds

    async def ask(self, message: TrainerMessage, largest_payload: int = 0) -> TrainerMessage:
        """Answer a request as a trainer does."""
        match message:
            case Prepare(payload=payload):
                self._plan = plan_from_wire(bytes(payload))
                self._exchanges = Exchanges(self._plan, manifest_of(self._plan))
                # Its result follows from the round alone, so it can go on with any of its rounds.
                held = sorted(set(self.trained))[-MOST_SAVED:]
                return Prepared(manifest_of(self._plan).digest.hex(), np.array(held, "<i8").tobytes())
            case Train(round=number, payload=payload):
                self.trained.append(number)
                exchange = self._exchanges.of(number, Stage(message.stage), bytes.fromhex(message.layers))
                parameters = np.frombuffer(payload, "<f4").copy()
                assert parameters.size == exchange.down_numbers
                await asyncio.sleep(self._seconds())
                update = self._updates(self._site, number, going_up(exchange, parameters))
                measured = measured_by(self._site, number, exchange)
                scalars = [value for name, value in measured.items() if name != ROWS]
                answer = update.tobytes() + np.array(scalars, "<i8").tobytes()
                assert len(answer) <= largest_payload
                return Trained(number, measured.get(ROWS, 0), answer)
            case Conclude(payload=payload):
                self.concluded = np.frombuffer(payload, "<f4").copy()
                return Agreed()
            case _:
                raise AssertionError(f"an agent never asks {message}")

    def require(self) -> None:
        """It never ends by itself."""

    def close(self) -> None:
        """The agent is gone."""


class Line:
    """A stream in memory. As at the real gate, a message whose wait is cancelled is not sent."""

    def __init__(self, heard: Callable[[SiteMessage], None], opened: Callable[[Line], None]) -> None:
        self._heard, self._opened = heard, opened
        self._down: asyncio.Queue[CoordinatorMessage | UnavailableError] = asyncio.Queue()
        self.is_cut = False

    async def __aenter__(self) -> Line:
        self._opened(self)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()

    async def send(self, message: SiteMessage, check: Callable[[], None] | None = None) -> None:
        """To the coordinator."""
        if self.is_cut:
            raise _gone()
        await asyncio.sleep(0)
        if check is not None:
            check()
        self._heard(message)

    def require(self) -> None:
        """The line is not cut."""
        if self.is_cut:
            raise _gone()

    async def part(self) -> None:
        """No more is sent, and earlier messages have been received."""

    async def receive(self) -> CoordinatorMessage:
        """From the coordinator."""
        item = await self._down.get()
        if isinstance(item, UnavailableError):
            raise item
        return item

    def push(self, *messages: CoordinatorMessage) -> None:
        """Deliver messages of the coordinator."""
        for message in messages:
            if not self.is_cut:
                self._down.put_nowait(message)

    def cut(self) -> None:
        """The network breaks; both ends notice."""
        if not self.is_cut:
            self.is_cut = True
            self._down.put_nowait(_gone())


def _gone() -> UnavailableError:
    return UnavailableError(what="The line is cut.", consequence="Nothing is lost.", remedy="You need not do anything.")


def hospital(site: str, state: Path, **policy: Any) -> Hospital:
    """A hospital that requires masking and allows what our plans say; `policy` replaces keys."""
    allowed: dict[str, Any] = {
        "methods": METHOD_NAMES,
        "secure_aggregation": "required",
        "smallest_sites": 3,
        "largest_rounds": 10_000,
        "largest_megabytes": 10_000.0,
        "largest_clipping_range": 8.0,
    }
    data = Data(table="table.csv", contract="contract.yaml", split=Split(seed=0))
    return Hospital(site=site, state=str(state), policy=Policy(**(allowed | policy)), data=data)


class Site:
    """One hospital: its directory, its agent and the stream that is open."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        directory: Path,
        *,
        trainer: MadeUpTrainer | None = None,
        heard: Callable[[str, SiteMessage], None] | None = None,
        opened: Callable[[str, Line], None] | None = None,
        **policy: Any,
    ) -> None:
        self.name, self.plan, self.directory = name, plan, directory
        self.trainer = trainer or MadeUpTrainer(name)
        self.said: list[SiteMessage] = []
        self.error: BaseException | None = None
        self.line: Line | None = None
        self._heard, self._opened = heard, opened
        self._hospital = hospital(name, directory, **policy)
        self._task: asyncio.Task[None] | None = None
        approve(directory, plan, by="a test", at=datetime(2026, 1, 1, tzinfo=UTC))
        self.start()

    def start(self) -> None:
        """The operator starts the agent."""
        self.error = None
        self.audit = AuditLog(self.directory / "audit.jsonl", site=self.name, now=lambda: datetime.now(UTC))
        self.gate = SiteGate(
            self._hospital,
            identity_key=identity_key(self.name),
            trainer=cast(GateEnd, self.trainer),
            audit=self.audit,
            connect=lambda: cast(Connection, Line(self._hear, self._open)),
            software="test",
        )
        self._task = asyncio.create_task(self._live(self.gate))

    async def stop(self) -> None:
        """The machine loses its power: the process is gone, with all keys; the disk stays."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        self._task = None
        self.audit.close()
        if self.line is not None:
            self.line.cut()

    async def tell(self, *messages: CoordinatorMessage) -> list[SiteMessage]:
        """Send a message and wait until the site has finished. Return its answers."""
        before = len(self.said)
        assert self.line is not None
        self.line.push(*messages)
        await settle()
        return self.said[before:]

    def records(self, event: str) -> list[dict[str, Any]]:
        """The facts of all records of this kind in the site's audit log."""
        lines = lines_of(self.directory / "audit.jsonl")
        facts = [json.loads(line)["facts"] for line in lines]
        return [entry for entry in facts if entry["event"] == event]

    @property
    def chunks(self) -> list[Chunk]:
        """Every chunk that this site has sent."""
        return of_kind(self.said, Chunk)

    def update(self, number: int = 0) -> Integers:
        """The secret: the encoded update of a round from ordinary parameters."""
        parameters = np.zeros(manifest_of(self.plan).parameters, np.float32)
        return encoded(self.plan, update_of(self.name, number, parameters))

    async def _live(self, gate: SiteGate) -> None:
        try:
            await gate.run()
        except Exception as error:
            self.error = error

    def _hear(self, message: SiteMessage) -> None:
        self.said.append(message)
        if self._heard is not None:
            self._heard(self.name, message)

    def _open(self, line: Line) -> None:
        self.line = line
        if self._opened is not None:
            self._opened(self.name, line)


async def settle() -> None:
    """Wait until nothing more happens without a clock."""
    await asyncio.sleep(SETTLED_SECONDS)


def of_kind(messages: Iterable[SiteMessage], kind: type[Kind]) -> list[Kind]:
    """The messages of one kind, in order."""
    return [message for message in messages if isinstance(message, kind)]


def sites_of(plan: Plan, directory: Path, policies: Mapping[str, Any] | None = None) -> list[Site]:
    """A running agent for every site of the plan."""
    return [Site(name, plan, directory / name, **dict(policies or {})) for name in plan.site_names]
