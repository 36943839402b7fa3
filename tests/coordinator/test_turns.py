"""A round has only a few chunks in memory at one moment, however many sites send and read at once."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator.network.outgoing import Caller
from coordinator.network.service import FederationService, unread_bytes
from coordinator.network.turns import Turns
from coordinator.rounds.engine import Engine
from protos.wire.codec import decode_coordinator_message, decode_site_message, encode_site_message
from protos.wire.messages import MOST_CHUNKS_AT_ONCE, PROTOCOL_VERSION, Bind, Chunk, Farewell, Hello, Ready
from tests.coordinator.greetings import WITHOUT_UPKEEP
from tests.coordinator.in_memory import coordinator_log
from tests.federation import clear_plan
from tests.for_each import for_each
from tests.rehearsal import study
from tests.rehearsal.study import BehavingSite, made_up_identities, plan_with
from tests.scripted import begun, offered, scripted

FOR_EVER, AT_ONCE = 1e9, 0.001


@for_each("seed", range(10))
def test_no_more_than_so_many_have_a_turn(seed: int) -> None:
    """Streams that come in any order have their turns in it, and never more at once than there are turns."""
    luck = np.random.default_rng(seed)
    count, streams = int(luck.integers(1, 5)), int(luck.integers(5, 30))
    lengths = luck.integers(1, 9, size=streams)
    began: list[int] = []

    async def scene() -> None:
        turns, held = Turns(count, FOR_EVER), 0

        async def chunk(number: int) -> None:
            nonlocal held
            async with turns.of_one_stream():
                held += 1
                began.append(number)
                assert held <= count
                for _ in range(lengths[number]):
                    await asyncio.sleep(0)
                held -= 1

        await asyncio.gather(*map(chunk, range(streams)))

    asyncio.run(scene())

    assert began == sorted(began)
    assert len(began) == streams


def test_whoever_keeps_a_turn_loses_it() -> None:
    """A stream that never finishes its chunk delays the next one for its patience, and not once more."""

    async def scene() -> None:
        turns = Turns(1, AT_ONCE)
        silent, other = turns.of_one_stream(), turns.of_one_stream()
        async with asyncio.timeout(5), silent:
            for _ in range(3):
                async with other:
                    pass
        taker = Turns(1, FOR_EVER)
        taken = taker.of_one_stream()
        await taken.__aenter__()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), taker.of_one_stream():
                raise AssertionError("two turns of one")

    asyncio.run(scene())


def test_a_slow_stream_waits_for_nobody_until_it_is_in_time() -> None:
    """After a chunk that took too long the next does not wait; after one in time it takes its turn again."""

    async def scene() -> None:
        turns = Turns(1, AT_ONCE)
        slow, holder = turns.of_one_stream(), turns.of_one_stream()
        async with slow:
            began = time.monotonic()
            while time.monotonic() - began < 2 * AT_ONCE:
                await asyncio.sleep(AT_ONCE)
        turns.patience_seconds = FOR_EVER
        async with asyncio.timeout(5), holder, slow:  # the only turn is taken
            pass
        async with holder:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02), slow:
                    raise AssertionError("two turns of one")
        async with asyncio.timeout(5), slow:  # whoever is cancelled while it waits takes no turn with it
            pass

    asyncio.run(scene())


class Line:
    """A site's stream without a network. As in gRPC a message comes in only while somebody reads."""

    def __init__(self, site: BehavingSite, held: dict[str, int], largest: dict[str, int], *, says_ready: bool) -> None:
        self._site, self._held, self._largest, self._says_ready = site, held, largest, says_ready
        self._said: asyncio.Queue[bytes] = asyncio.Queue()
        self._said.put_nowait(encode_site_message(Hello(PROTOCOL_VERSION, "test")))

    def auth_context(self) -> dict[str, list[bytes]]:
        """One certificate, over TLS 1.3; it is the site's name."""
        return {"x509_pem_cert": [self._site.name.encode()], "ssl_tls_version": [b"TLSv1.3"]}

    async def send_initial_metadata(self, _: object) -> None:
        """Nobody listens."""

    async def read(self) -> bytes:
        """The next message; a chunk takes a while."""
        message = await self._said.get()
        return await self._carried("up", message, isinstance(decode_site_message(message), Chunk))

    async def write(self, message: bytes) -> None:
        """Answer as the site does."""
        heard = decode_coordinator_message(message)
        await self._carried("down", message, isinstance(heard, Chunk))
        if isinstance(heard, Bind) and self._says_ready:
            self._said.put_nowait(encode_site_message(Ready(heard.round, heard.attempt)))
        for answer in self._site.answer(heard):
            self._said.put_nowait(encode_site_message(answer))
        if isinstance(heard, Farewell):
            self._said.put_nowait(b"")

    async def _carried(self, way: str, message: bytes, is_chunk: bool) -> bytes:
        self._held[way] += is_chunk
        self._largest[way] = max(self._largest[way], self._held[way])
        for _ in range(5 * is_chunk):
            await asyncio.sleep(0)
        self._held[way] -= is_chunk
        return message


def chunks_held(
    folder: Path, sites: int, monkeypatch: pytest.MonkeyPatch, *, says_ready: bool = True
) -> dict[str, int]:
    """The most chunks under way at one moment, in each direction, of two rounds with this number of sites at once."""
    monkeypatch.setattr("coordinator.network.service.Turns", lambda: Turns(MOST_CHUNKS_AT_ONCE, FOR_EVER))
    names = [f"site-{number:02d}" for number in range(sites)]
    for name in names:
        monkeypatch.setitem(study.NUMBERS, name, 3.0)
    plan = plan_with(made_up_identities(names), parameters=study.THREE_CHUNKS, rounds=2)
    engine = Engine(plans=[plan], log=coordinator_log(folder), identity_of=study.made_up_identity, clock=time.monotonic)
    service = FederationService(engine, identify=named, is_accepted=lambda _: True, upkeep=WITHOUT_UPKEEP)
    behaving = [BehavingSite(name) for name in names]
    held, largest = {"up": 0, "down": 0}, {"up": 0, "down": 0}

    async def scene() -> None:
        engine.start()
        lines: list[Any] = [Line(site, held, largest, says_ready=says_ready) for site in behaving]
        async with asyncio.timeout(60):
            await asyncio.gather(*(service.participate(None, line) for line in lines))

    asyncio.run(scene())
    for site in behaving:
        np.testing.assert_array_equal(site.vectors[-1], np.full(study.THREE_CHUNKS, 6.0, np.float32))
    return largest


def named(certificate: bytes) -> Caller:
    """A caller whose certificate is nothing but a name."""
    return Caller(certificate.decode(), "0" * 64)


def test_chunks_under_way_do_not_grow_with_the_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When 27 sites send and read at one moment, no more chunks are under way than there are turns."""
    assert chunks_held(tmp_path, 27, monkeypatch) == {"up": MOST_CHUNKS_AT_ONCE, "down": MOST_CHUNKS_AT_ONCE}


@pytest.mark.parametrize(
    ("sites", "parameters", "says"),
    [
        (MOST_CHUNKS_AT_ONCE, study.THREE_CHUNKS, False),
        (MOST_CHUNKS_AT_ONCE + 1, study.THREE_CHUNKS, True),
        (MOST_CHUNKS_AT_ONCE + 1, 10_000, False),
    ],
)
def test_an_agent_says_when_it_sends_where_sites_are_many(
    tmp_path: Path, sites: int, parameters: int, *, says: bool
) -> None:
    """With more sites than turns and large chunks, and only then, the agent says that it is ready before its chunks."""
    others = (f"other-{number:02d}" for number in range(sites - 1))
    plan = clear_plan(["a", *others], parameters=parameters)
    chunks = 3 if parameters == study.THREE_CHUNKS else 1
    bind = Bind(0, 0, tuple(sorted(plan.site_names)), 0)

    site = scripted(tmp_path, [*begun(plan), *offered(plan), bind, *[Chunk] * chunks], approved=(plan,))

    said = [type(message) for message in site.said if isinstance(message, Ready | Chunk)]
    assert said == [Ready] * says + [Chunk] * chunks


def test_what_comes_in_unread_is_bounded_for_all_sites_together() -> None:
    """All sites together may send eight megabytes unread, and none has less than HTTP/2's own window."""
    for sites in range(1, 101):
        assert sites * unread_bytes(sites) <= 8 << 20
        assert 65_535 <= unread_bytes(sites) <= 1 << 20
