"""A federation in one process: the real engine, real gates with their ledgers and masks, and scripted trainers. A site
here is its own program without a network: its stream is a `Line`, its trainer a `MadeUpTrainer` whose update follows
from site, round and parameters alone. `Federation` joins sites to the engine; a seed draws the order in which messages
arrive. tests/scripted.py gives one site a coordinator that says what a test wrote, and
tests/hostile/masking_coordinator.py plays the coordinator's part by hand. The clock is simulated, so nothing waits."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.numpy import load_file

from coordinator.rounds.engine import Engine
from host.audit_log import AuditLog
from protos.errors import UnavailableError
from protos.fingerprints import fingerprint
from protos.numbers.fixed_point import FixedPoint
from protos.plan.exchange import Exchange, Exchanges
from protos.plan.manifest import ROWS, largest_weight, manifest_of, slices_of
from protos.plan.methods import METHOD_NAMES
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan, plan_from_wire
from protos.wire.codec import decode_coordinator_message
from protos.wire.messages import (
    MOST_SAVED,
    Chunk,
    CoordinatorMessage,
    CoordinatorReason,
    Hello,
    MalformedMessage,
    SiteMessage,
    Stage,
)
from site_agent.approving import approve
from site_agent.gate.agent_link import Stream
from site_agent.gate.loop import SiteGate
from site_agent.hospital import Data, Hospital, Policy, Split
from site_agent.trainer.requests import Asked
from site_agent.trainer.study import ShortUpdates
from site_agent.trainer_socket import Agreed, Check, Conclude, Failed, GateEnd, Prepare, Prepared, Train, Trained
from site_agent.trainer_socket import Message as TrainerMessage
from tests.coordinator.in_memory import coordinator_log
from tests.logged import facts_of
from tests.plan_changes import POLICY
from tests.rehearsal.made_up_time import play
from tests.rehearsal.queued import QueuedStream
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
    """A plan with masking and these changes."""
    names = sorted(sites)
    keys = {"masking": {"required": True}} | changes
    return plan_with({name: identity_of(name) for name in names}, rounds=rounds, parameters=parameters, changes=keys)


def clear_plan(sites: Iterable[str] = "abc", **changes: Any) -> Plan:
    """The same in the clear."""
    return masked_plan(sites, **({"masking": {"required": False}} | changes))


def update_of(site: str, number: int, parameters: Vector) -> Vector:
    """The result of training at an invented hospital: equal for equal steps, and zero for dead units."""
    seed = hashlib.sha256(f"{site}|{number}|0".encode()).digest()
    draw = np.random.default_rng(list(seed)).standard_normal(parameters.size).astype(np.float32)
    return np.where(np.abs(parameters) < DEAD, draw / 8, np.float32(0)).astype(np.float32)


def update_from(site: str, number: int, parameters: Vector) -> Vector:
    """The result of training that follows from the parameters alone."""
    return update_of(site, 0, parameters)


def rows_of(site: str) -> int:
    """A made-up hospital's training rows, on the public grid."""
    return (1, 2, 3, 4, 6, 8)[hashlib.sha256(site.encode()).digest()[0] % 6] * 16


def _going_up(exchange: Exchange, received: Vector) -> Vector:
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


def short(plan: Plan, site: str, update: Vector, asked: Asked, weight: float = 1.0) -> npt.NDArray[np.signedinteger]:
    """A made-up hospital's update as short integers. It has no residual, so they follow from the round alone."""
    assert isinstance(plan, NetworkPlan)
    manifest = manifest_of(plan)
    tensors = Exchanges(plan, manifest).of(asked.round, Stage.TRAINING, asked.layers).up
    return ShortUpdates(plan, manifest, tensors, site.encode()).encode(update, asked, weight)


def encoded(plan: Plan, update: Vector, weight: float = 1.0) -> Integers:
    """An update as the integers that the gate makes of it."""
    out = np.empty(update.size, np.int32)
    FixedPoint(plan.masking.clipping_range, len(plan.sites)).encode(update, weight, out)
    return out


class MadeUpTrainer:
    """The process with the patients, without patients. `updates` makes the update of a site, round and parameters;
    `seconds` how long the next training takes. Its measurements follow from site, round and name alone, unless `scalar`
    is what it measures, whatever is measured. It hands out `too_much` behind its answer, and instead of training it
    `fails`."""

    def __init__(
        self,
        site: str,
        updates: Callable[[str, int, Vector], Vector] = update_of,
        seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.trained: list[int] = []
        self.received: list[Vector] = []
        self.concluded: Vector | None = None
        self.questions: list[TrainerMessage] = []
        self.scalar: int | None = None
        self.too_much = b""
        self.fails: Callable[[], Failed] | None = None
        self._site, self._updates, self._seconds = site, updates, seconds

    async def ask(self, message: TrainerMessage, largest_payload: int = 0) -> TrainerMessage:
        """Answer a request as a trainer does."""
        self.questions.append(message)
        match message:
            case Prepare(payload=payload):
                self._plan = plan_from_wire(bytes(payload))
                self._exchanges = Exchanges(self._plan, manifest_of(self._plan))
                # Its result follows from the round alone, so it can go on with any of its rounds.
                held = sorted(set(self.trained))[-MOST_SAVED:]
                return Prepared(manifest_of(self._plan).digest.hex(), np.array(held, "<i8").tobytes())
            case Train() if self.fails is not None:
                return self.fails()
            case Train(round=number, payload=payload):
                self.trained.append(number)
                exchange = self._exchanges.of(number, Stage(message.stage), bytes.fromhex(message.layers))
                parameters = np.frombuffer(payload, "<f4").copy()
                assert parameters.size == exchange.down_numbers
                self.received.append(parameters)
                await asyncio.sleep(self._seconds())
                update = self._updates(self._site, number, _going_up(exchange, parameters))
                measured = measured_by(self._site, number, exchange)
                scalars = [value for name, value in measured.items() if name != ROWS]
                if self.scalar is not None:
                    scalars = [self.scalar] * len(scalars)
                answer = (
                    self._sent(message, exchange, update).tobytes() + np.array(scalars, "<i8").tobytes() + self.too_much
                )
                if len(answer) > largest_payload:  # as the gate's end of the socket does
                    raise MalformedMessage("a payload that is too long")
                return Trained(number, measured.get(ROWS, 0), answer)
            case Check():
                return Agreed()
            case Conclude(payload=payload):
                self.concluded = np.frombuffer(payload, "<f4").copy()
                return Agreed()
            case _:
                raise AssertionError(f"an agent never asks {message}")

    def _sent(self, question: Train, exchange: Exchange, update: Vector) -> npt.NDArray[np.generic]:
        if exchange.bits == 32 or not exchange.up:
            return update
        layers, scales = bytes.fromhex(question.layers), bytes.fromhex(question.scales)
        asked = Asked(round=question.round, layers=layers, scales=scales)
        weight = rows_of(self._site) / largest_weight(self._plan) if ROWS in exchange.scalar_names else 1.0
        return short(self._plan, self._site, update, asked, weight)

    def require(self) -> None:
        """It never ends by itself."""

    def close(self) -> None:
        """The agent is gone."""


class Line:
    """A stream in memory. As at the real gate, a message whose wait is cancelled is not sent."""

    def __init__(self, heard: Callable[[SiteMessage], None], opened: Callable[[Line], None]) -> None:
        self._heard, self._opened = heard, opened
        self._down: asyncio.Queue[CoordinatorMessage | bytes | UnavailableError] = asyncio.Queue()
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
        return decode_coordinator_message(item) if isinstance(item, bytes) else item

    def push(self, *messages: CoordinatorMessage | bytes) -> None:
        """Deliver messages of the coordinator, or bytes that the gate decodes."""
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
    """A hospital that requires masking and allows what our plans say; `policy` replaces keys, also some beside it."""
    allowed = POLICY | {"methods": METHOD_NAMES, "largest_rounds": 10_000, "largest_megabytes": 10_000.0}
    beside = {key: policy.pop(key) for key in [*policy] if key not in Policy.model_fields}
    rules = Policy.model_validate_json(json.dumps(allowed | policy))
    data = Data(table="table.csv", contract="contract.yaml", split=Split(seed=0))
    return Hospital(site=site, state=str(state), policy=rules, data=data, **beside)


class Site:
    """One hospital: its directory, its gate and the stream that is open. A person approved the plan, or those named."""

    def __init__(
        self,
        name: str,
        plan: Plan,
        directory: Path,
        *,
        trainer: MadeUpTrainer | None = None,
        heard: Callable[[str, SiteMessage], None] | None = None,
        opened: Callable[[str, Line], None] | None = None,
        approved: Iterable[Plan] | None = None,
        connect: Callable[[], Stream] | None = None,
        **policy: Any,
    ) -> None:
        self.name, self.plan, self.directory = name, plan, directory
        self.trainer = trainer or MadeUpTrainer(name)
        self.said: list[SiteMessage] = []
        self.error: BaseException | None = None
        self.line: Line | None = None
        self._heard, self._opened, self._connect = heard, opened, connect
        self._hospital = hospital(name, directory, **policy)
        self._task: asyncio.Task[None] | None = None
        plans = [plan] if approved is None else [*approved]
        for each in plans:  # together, as persons may after they have read what the sums of all show
            others = [other.run_name for other in plans]
            approve(directory, each, by="a test", at=datetime(2026, 1, 1, tzinfo=UTC), beside=others)
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
            connect=self._connect or (lambda: cast(Stream, Line(self._hear, self._open))),
            software="test",
        )
        self._task = asyncio.create_task(self._live(self.gate))

    @property
    def is_running(self) -> bool:
        """Whether its gate has not ended."""
        return self._task is not None and not self._task.done()

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

    def records(self, *events: str) -> list[dict[str, Any]]:
        """The facts of all records of these kinds, or of every kind, in the site's audit log."""
        return facts_of(self.directory / "audit.jsonl", *events)

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


class StreamEnd(QueuedStream):
    """The engine's end of one line. `queued` is called with each message, so that nobody has to look for it."""

    reads_sums = True

    def __init__(self, line: Line, queued: Callable[[], None]) -> None:
        super().__init__()
        self.line, self._queued = line, queued

    def send(self, message: CoordinatorMessage) -> None:
        """Queue a message."""
        super().send(message)
        self._queued()

    def send_parameters(
        self, parameters: npt.NDArray[np.generic], round_number: int, attempt: int, first_chunk: int = 0
    ) -> None:
        """Queue the vector."""
        super().send_parameters(parameters, round_number, attempt, first_chunk)
        self._queued()

    def carry_one(self) -> None:
        """Take the next message to the site."""
        if (message := self.pop()) is not None:
            self.line.push(message)


class Federation:
    """A coordinator, its sites, and the order in which messages arrive. `meddle` sees every message that arrives from a
    site and may replace it, repeat it or do something else first; what it returns is delivered. `before` is called with
    the number of each message that is about to be carried, in either direction."""

    def __init__(self, directory: Path, plan: Plan, seed: int = 0) -> None:
        self.directory, self.plan = directory, plan
        self.order = random.Random(seed)
        self.engine = Engine(
            plans=[plan],
            log=coordinator_log(directory / "coordinator"),
            identity_of=identity_of,
            clock=asyncio.get_running_loop().time,
        )
        self.meddle: Callable[[str, SiteMessage], list[SiteMessage]] = lambda site, message: [message]
        self.before: Callable[[int], Coroutine[Any, Any, None]] | None = None
        self.sites: dict[str, Site] = {}
        self.ended: list[tuple[str, str]] = []
        self._ends: dict[str, StreamEnd] = {}
        self._heard: dict[str, deque[SiteMessage]] = {}
        self._something = asyncio.Event()
        self._pump = asyncio.create_task(self._carry())
        self.engine.start()

    def add(
        self,
        name: str,
        changes: Callable[[str, int, int, Vector], Vector] | None = None,
        trainer: MadeUpTrainer | None = None,
        **policy: Any,
    ) -> Site:
        """Start a hospital's agent; it connects by itself. Behind it is `trainer`, or a made-up one."""
        seconds = lambda: self.order.uniform(0.0, 1.0)  # noqa: E731
        if trainer is None:
            trainer = MadeUpTrainer(name, changes, seconds) if changes else MadeUpTrainer(name, seconds=seconds)
        site = Site(
            name, self.plan, self.directory / name, trainer=trainer, heard=self._hear, opened=self._open, **policy
        )
        self.sites[name] = site
        return site

    @classmethod
    def of_all(cls, directory: Path, plan: Plan) -> Federation:
        """A federation with a made-up hospital for each site of the plan."""
        federation = cls(directory, plan)
        for name in plan.site_names:
            federation.add(name)
        return federation

    def cut(self, name: str) -> None:
        """A site's line breaks; what was under way on it is lost."""
        end = self._ends.pop(name, None)
        if end is not None:
            self._heard[name].clear()
            end.line.cut()
            self.engine.disconnected(name, end)

    async def restart(self, name: str) -> None:
        """A site's machine loses power and restarts: its keys are gone, its disk is not."""
        await self.sites[name].stop()
        self.cut(name)
        self.sites[name].start()

    async def pass_time(self, seconds: float) -> None:
        """Let made-up time go by."""
        await asyncio.sleep(seconds)

    async def finish(self, seconds: float = 1e7) -> None:
        """Wait for the end of the run in made-up time."""
        await asyncio.wait_for(self.engine.finished.wait(), seconds)
        await asyncio.sleep(1.0)

    async def close(self) -> None:
        """Stop everything."""
        self._pump.cancel()
        for site in self.sites.values():
            await site.stop()
        await asyncio.wait([self._pump])
        if self._pump.done() and not self._pump.cancelled():
            self._pump.result()

    def vector(self) -> Vector:
        """The final parameters as they lie on the coordinator's disk, those that were federated to the end."""
        (path,) = (self.directory / "coordinator" / "runs").glob("*/parameters.safetensors")
        tensors = load_file(path)
        names = [tensor.name for tensor in manifest_of(self.plan).tensors if tensor.name in tensors]
        return np.concatenate([np.empty(0, np.float32)] + [tensors[name].ravel() for name in names])

    def _open(self, name: str, line: Line) -> None:
        self.cut(name)
        self._heard[name] = deque()
        self._ends[name] = StreamEnd(line, self._something.set)

    def _hear(self, name: str, message: SiteMessage) -> None:
        if name in self._ends:
            self._heard[name].append(message)
            self._something.set()

    async def _carry(self) -> None:
        """One message at a time, from or to anyone who has one, in a drawn order."""
        carried = 0
        while True:
            if self._ready():
                carried += 1
                if self.before is not None:
                    await self.before(carried)
            ready = self._ready()
            if not ready:
                self._something.clear()
                await self._something.wait()
                continue
            name, is_up = self.order.choice(ready)
            if is_up:
                self._deliver(name, self._ends[name], self._heard[name].popleft())
            else:
                self._ends[name].carry_one()
            for _ in range(self.order.randrange(3)):
                await asyncio.sleep(0)

    def _ready(self) -> list[tuple[str, bool]]:
        up = [(name, True) for name in self._ends if self._heard[name]]
        return up + [(name, False) for name, end in self._ends.items() if end.has_something]

    def _deliver(self, name: str, end: StreamEnd, message: SiteMessage) -> None:
        for arriving in self.meddle(name, message):
            if end.is_ending or self._ends.get(name) is not end:
                return
            if isinstance(arriving, Hello):
                self.engine.connected(name, end)
                continue
            try:
                self.engine.received(name, arriving)
            except MalformedMessage as malformed:  # as the service does
                self.ended.append((name, str(malformed)))
                end.end(CoordinatorReason.PROTOCOL_VIOLATED, str(malformed))


def played(folder: Path, plan: Plan, scene: Callable[[Federation], Coroutine[Any, Any, None]]) -> None:
    """Run a federation of a plan's sites in made-up time."""

    async def whole() -> None:
        network = Federation(folder, plan)
        try:
            await scene(network)
        finally:
            await network.close()

    play(whole())


def recorded(folder: Path) -> dict[str, Any]:
    """The coordinator's record of the one run."""
    (path,) = (folder / "coordinator" / "runs").glob("*/record.json")
    return dict(json.loads(path.read_text()))
