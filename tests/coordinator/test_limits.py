"""The cost of a hostile peer to the coordinator, over real sockets. No peer is assumed honest."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from structlog.testing import capture_logs

from coordinator.network import outgoing
from coordinator.network import service as service_module
from coordinator.network.outgoing import MOST_WAITING_BYTES, MOST_WAITING_VECTORS, Caller, StreamPeer
from coordinator.network.pace import Allowance, Pace
from protos.plan.plan import Plan
from protos.wire.codec import decode_coordinator_message, taken_apart
from protos.wire.messages import (
    MOST_TOGETHER_BYTES,
    PROTOCOL_VERSION,
    Announcement,
    Chunk,
    CoordinatorReason,
    Hello,
    KeyAdvert,
)
from protos.wire.positions import DOWN_CHUNK_BYTES
from tests.coordinator.greetings import announced_to
from tests.for_each import for_each
from tests.rehearsal.federation import Office, as_channel, calling, eventually, serving, take_part
from tests.rehearsal.study import BehavingSite, plan_with

HELLO = Hello(PROTOCOL_VERSION, "test")


@pytest.fixture
def plan(office: Office) -> Plan:
    """A small study."""
    return plan_with(office.identities)


def _with_options(monkeypatch: pytest.MonkeyPatch, **changes: int) -> None:
    names = {name.replace("__", "."): value for name, value in changes.items()}
    options = [(name, names.get(name, value)) for name, value in service_module._OPTIONS]
    assert names.keys() <= dict(options).keys()
    monkeypatch.setattr(service_module, "_OPTIONS", options)


def _is_closed(connection: socket.socket) -> bool:
    try:
        while content := connection.recv(4096):
            assert content
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def strangers(address: str, count: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """This number of connections whose callers are unknown."""
    host, _, port = address.rpartition(":")
    found = []
    for _ in range(count):
        connection = stack.enter_context(socket.create_connection((host, int(port)), timeout=20))
        connection.setblocking(False)
        found.append(connection)
    return found


def test_hundreds_of_idle_connections_are_shown_out(
    tmp_path: Path, office: Office, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most the limit of connections is kept. All lose their place if they do not shake hands, and a site then gets
    in. A connected site is not affected."""
    _with_options(monkeypatch, grpc__max_allowed_incoming_connections=20, grpc__server_handshake_timeout_ms=1500)

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            with contextlib.ExitStack() as stack:
                async with calling(running.address, as_channel(office.credentials("a"))) as member:
                    await member.send(HELLO)
                    await announced_to(member)
                    idle = await asyncio.to_thread(strangers, running.address, 300, stack)
                    await eventually(lambda: sum(not _is_closed(connection) for connection in idle) < 20)
                    await eventually(lambda: all(_is_closed(connection) for connection in idle))
                    assert running.engine.status()["sites"]["a"]["connected"]
                async with calling(running.address, as_channel(office.credentials("b"))) as late:
                    await late.send(HELLO)
                    await announced_to(late)

    asyncio.run(scene())


def test_a_slow_handshake_is_cut(tmp_path: Path, office: Office, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handshake that arrives byte by byte ends at its deadline."""
    _with_options(monkeypatch, grpc__server_handshake_timeout_ms=700)
    outgoing_bytes, incoming = ssl.MemoryBIO(), ssl.MemoryBIO()
    hello = ssl.create_default_context().wrap_bio(incoming, outgoing_bytes, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        hello.do_handshake()
    greeting = outgoing_bytes.read()

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            with contextlib.ExitStack() as stack:
                (slow,) = strangers(running.address, 1, stack)
                began, sent = time.monotonic(), 0
                while not _is_closed(slow):
                    assert time.monotonic() - began < 30
                    with contextlib.suppress(OSError):
                        sent += slow.send(greeting[sent : sent + 1])
                    await asyncio.sleep(0.05)
                assert sent < len(greeting)

    asyncio.run(scene())


def test_a_site_has_few_streams_at_once(tmp_path: Path, office: Office, plan: Plan) -> None:
    """Streams that a site opens and leaves unused are refused beyond a handful."""

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running, contextlib.AsyncExitStack() as stack:
            credentials = as_channel(office.credentials("a"))
            for number in range(4):
                await stack.enter_async_context(calling(running.address, credentials))
                await eventually(lambda number=number: len(running.service._peers) == number + 1)
            one_more = await stack.enter_async_context(calling(running.address, credentials))

            assert await one_more.status() is grpc.StatusCode.RESOURCE_EXHAUSTED

    asyncio.run(scene())


def test_a_reader_that_stops_reading_is_cut(tmp_path: Path, office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that no longer reads loses its stream after a while. The others never wait for it."""
    monkeypatch.setattr(outgoing, "STALLED_SECONDS", 0.5)
    plan = plan_with(office.identities, parameters=4_000_000)

    async def scene() -> None:
        async with (
            serving(office, plan, tmp_path) as running,
            calling(running.address, as_channel(office.credentials("c"))) as caller,
        ):
            await caller.send(HELLO)
            await announced_to(caller)
            (peer,) = running.service._peers
            for attempt in range(outgoing.MOST_WAITING_VECTORS):  # 128 MB: more than a connection's buffers grow to
                peer.send_parameters(np.zeros(4_000_000, np.float32), 0, attempt)

            await eventually(lambda: not running.service._peers)
            assert peer.does_not_read
            assert not running.engine.status()["sites"]["c"]["connected"]

    asyncio.run(scene())


class NeverRead:
    """A peer that takes nothing."""

    async def write(self, message: bytes) -> None:
        """Wait for ever."""
        await asyncio.Event().wait()


def test_a_line_that_breaks_in_mid_write_is_no_error(tmp_path: Path, office: Office) -> None:
    """A site that goes while parameters are sent to it leaves; nothing is logged above that."""
    plan = plan_with(office.identities, parameters=4_000_000)

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            async with calling(running.address, as_channel(office.credentials("c"))) as caller:
                await caller.send(HELLO)
                await announced_to(caller)
                (peer,) = running.service._peers
                for attempt in range(outgoing.MOST_WAITING_VECTORS):
                    peer.send_parameters(np.zeros(4_000_000, np.float32), 0, attempt)
            await eventually(lambda: not running.service._peers)

    with capture_logs() as entries:
        asyncio.run(scene())

    assert "site_disconnected" in {entry["event"] for entry in entries}
    assert not [entry for entry in entries if entry["log_level"] not in ("debug", "info")]


@pytest.mark.parametrize("size", [1, 1 << 10, 1 << 20])
def test_what_waits_for_a_site_is_bounded(size: int) -> None:
    """However much is queued for a site that does not read, a few megabytes are kept; then the stream is to end."""

    async def scene() -> None:
        peer = StreamPeer(NeverRead(), Caller("a", ""))
        count = 0
        while not peer.ending.is_set():
            peer.send(Announcement("run", b"x" * size))
            count += 1
        for _ in range(1000):
            peer.send(Announcement("run", b"x" * size))

        assert count * (size + 10) <= MOST_WAITING_BYTES + (1 << 21)
        assert count <= 5000
        assert peer._queue.qsize() < count
        assert peer.does_not_read

    asyncio.run(scene())


def test_vectors_that_wait_for_a_site_are_bounded() -> None:
    """Each is a view, and may be the last that holds a model's memory: no more than a few wait."""

    async def scene() -> None:
        peer = StreamPeer(NeverRead(), Caller("a", ""))
        for number in range(100):
            peer.send_parameters(np.zeros(10, np.float32), number, 0)

        assert peer._queue.qsize() == MOST_WAITING_VECTORS
        assert peer.ending.is_set()

    asyncio.run(scene())


class Listening:
    """A peer that takes what it can get."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def write(self, message: bytes) -> None:
        """Take it at once."""
        self.heard.append(message)


def test_a_chunk_is_encoded_once_for_all_sites() -> None:
    """The same bytes go to each site, and none of them are an earlier round's, attempt's or vector's."""
    size = 3 * DOWN_CHUNK_BYTES // 4

    class Reading(Listening):
        async def write(self, message: bytes) -> None:
            await super().write(message)
            await asyncio.sleep(0)  # as on a network, all sites get their first chunk before any gets its second

    async def scene() -> list[list[bytes]]:
        vectors, sites = outgoing.Vectors(), [Reading() for _ in range(3)]
        peers = [StreamPeer(site, Caller("a", ""), vectors=vectors) for site in sites]
        writing = [asyncio.create_task(peer.write()) for peer in peers]
        values = np.zeros(size, np.float32)
        for number, attempt in ((0, 0), (0, 1), (1, 1)):
            values += 1
            for peer in peers:
                peer.send_parameters(values, number, attempt)
            await eventually(lambda: all(peer._queue.empty() for peer in peers) and len(sites[-1].heard) % 3 == 0)
            await asyncio.sleep(0.01)
        for peer in peers:
            peer.send_parameters(np.full(size, 9, np.float32), 1, 1)
            peer.end(CoordinatorReason.SHUTTING_DOWN, "")
        await asyncio.gather(*writing)
        return [site.heard[:12] for site in sites]

    first, *others = asyncio.run(scene())

    chunks = [decode_coordinator_message(raw) for raw in first]
    found = [(c.round, c.attempt, c.index, set(np.frombuffer(c.body, "<f4"))) for c in chunks if isinstance(c, Chunk)]
    expected = [(0, 0, {1.0}), (0, 1, {2.0}), (1, 1, {3.0}), (1, 1, {9.0})]
    assert found == [(*of[:2], index, of[2]) for of in expected for index in range(3)]
    assert others == [first, first]
    assert all(a is b for other in others for a, b in zip(first[:9], other[:9], strict=True))


@for_each("seed", range(20))
def test_what_travels_together_comes_in_order(seed: int) -> None:
    """Whatever waits, small or large, a site that reads several messages in one gets the same ones as any other."""

    async def heard(*, reads_together: bool) -> list[bytes]:
        luck, listening = np.random.default_rng(seed), Listening()
        peer = StreamPeer(listening, Caller("a", ""))
        peer.reads_together = reads_together
        writing = asyncio.create_task(peer.write())
        for number in range(60):
            while peer._vectors == MOST_WAITING_VECTORS:
                await asyncio.sleep(0)
            if luck.integers(4):
                size = int(luck.choice([1, 1000, 8192, 9000, 300_000]))
                peer.send_parameters(np.full(size, number, np.float32), number, 0)
            else:
                peer.send(Announcement("run", b"x" * int(luck.choice([1, 60_000, 70_000]))))
            if not luck.integers(5):
                await asyncio.sleep(0)
        peer.end(CoordinatorReason.SHUTTING_DOWN, "")
        await writing
        return listening.heard

    async def scene() -> None:
        alone, together = await heard(reads_together=False), await heard(reads_together=True)
        assert all(len(taken_apart(raw)) == 1 for raw in alone)
        assert all(len(raw) <= MOST_TOGETHER_BYTES + 1024 for raw in together if len(taken_apart(raw)) > 1)
        assert len(together) < len(alone)
        assert [bytes(part) for raw in together for part in taken_apart(raw)] == alone

    asyncio.run(scene())


@for_each("seed", range(20))
def test_a_stream_brings_no_more_than_its_pace(seed: int) -> None:
    """However messages arrive, in any interval no more are read than burst and rate allow. Slow peers do not wait."""
    luck, pace, now, read = np.random.default_rng(seed), Pace(Allowance(burst=10.0, each_second=5.0)), 100.0, 0
    for _ in range(500):
        now += float(luck.choice([0.0, 0.01, 0.5, 3.0], p=[0.7, 0.2, 0.08, 0.02]))
        wait = pace.wait_seconds(now)
        assert wait >= 0.0
        now, read = now + wait, read + 1
        assert read <= 10.0 + 5.0 * (now - 100.0) + 1e-6

    assert Pace().wait_seconds(0.0) == 0.0
    slow = Pace(Allowance(burst=10.0, each_second=5.0))
    assert all(slow.wait_seconds(float(second)) == 0.0 for second in range(100))


def test_a_flood_of_messages_is_read_no_faster_than_its_pace(
    tmp_path: Path, office: Office, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that sends too much is read at its limit, and the study of the three still ends correctly."""
    monkeypatch.setattr(service_module, "Pace", lambda: Pace(Allowance(burst=50.0, each_second=200.0)))
    heard: list[Any] = []

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            received = running.engine.received
            monkeypatch.setattr(running.engine, "received", lambda *said: (heard.append(said), received(*said))[1])
            async with calling(running.address, as_channel(office.credentials("a"))) as loud:
                await loud.send(HELLO)
                await announced_to(loud)
                began = time.monotonic()
                for answer in BehavingSite("a").answer(Announcement(plan.run_name, plan.canonical)):
                    await loud.send(answer)
                late = KeyAdvert("a", 1, bytes(32), bytes(32), bytes(32), bytes(64))  # of no agreement
                for _ in range(400):
                    await loud.send(late)
                await eventually(lambda: len(heard) >= 400)
                assert time.monotonic() - began >= 350 / 200
            others = [BehavingSite(name) for name in "abc"]
            await asyncio.gather(*(take_part(running.address, office.credentials(site.name), site) for site in others))

    asyncio.run(scene())
