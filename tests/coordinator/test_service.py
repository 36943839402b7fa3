"""The coordinator's port over real sockets and real TLS: who gets in, and what misbehaving costs."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import grpc
import numpy as np
import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from safetensors.numpy import load_file

from coordinator import service as service_module
from pki import certificates
from pki.names import SiteName
from protos.manifest import manifest_of
from protos.messages import (
    PROTOCOL_VERSION,
    Announcement,
    Bind,
    Chunk,
    CoordinatorReason,
    Farewell,
    Hello,
    Join,
    Offer,
    Ready,
)
from protos.plan import Plan
from protos.service import PARTICIPATE
from site_agent.boundary.connection import Credentials
from tests.rehearsal.federation import (
    Caller,
    Office,
    Running,
    as_channel,
    calling,
    eventually,
    serving,
    take_part,
    utc_now,
)
from tests.rehearsal.study import MEAN, THREE_CHUNKS, BehavingSite, contribution, plan_with

HELLO = Hello(PROTOCOL_VERSION, "test")


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """A federation with three enrolled sites, which no test of this file changes."""
    office = Office.found(tmp_path_factory.mktemp("heart"))
    assert len(office.identities) == 3
    return office


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """Somebody else's authority, which calls itself heart too."""
    return Office.found(tmp_path_factory.mktemp("stranger"))


@pytest.fixture
def plan(office: Office) -> Plan:
    """Two rounds with three chunks each."""
    return plan_with(office.identities, parameters=THREE_CHUNKS, rounds=2)


def assert_right_bits(state: Path, plan: Plan) -> None:
    """The one run of a state directory ended with rounds times the mean."""
    (path,) = (state / "runs").glob("*/parameters.safetensors")
    for values in load_file(path).values():
        np.testing.assert_array_equal(values, np.float32(plan.schedule.rounds * MEAN))


# Who gets in


@dataclass(frozen=True)
class Pair:
    """A private key and the chain that is shown with it."""

    key: bytes
    chain: bytes


def forged(office: Office, *uris: str, usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH) -> Pair:
    """What somebody who has stolen the issuing key could sign."""
    key = certificates.new_tls_key()
    issuing, issuing_key = office.authority._issuing()
    names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    leaf = certificates._leaf(key.public_key(), issuing, issuing_key, names, usage, utc_now())
    chain = certificates.certificate_pem(leaf) + certificates.certificate_pem(issuing)
    return Pair(certificates.key_to_pem(key), chain)


def issued(office: Office, *, days: int = 0) -> Pair:
    """A pair for site a, made so many days from now, which the register does not know."""
    key = certificates.new_tls_key()
    made = office.authority.issue_site(key.public_key(), SiteName("a"), utc_now() + timedelta(days=days))
    return Pair(certificates.key_to_pem(key), made.chain_pem)


def coordinators_own(office: Office) -> Pair:
    """The coordinator's pair."""
    authority = office.authority
    return Pair(authority.coordinator_key_path.read_bytes(), authority.coordinator_certificate_path.read_bytes())


A = "spiffe://heart/site/a"
IMPOSTORS: dict[str, Callable[[Office, Office], Pair | None]] = {
    "no certificate": lambda office, stranger: None,
    "expired": lambda office, stranger: issued(office, days=-91),
    "not yet valid": lambda office, stranger: issued(office, days=2),
    "foreign authority": lambda office, stranger: issued(stranger),
    "the coordinator's own": lambda office, stranger: coordinators_own(office),
    "two names": lambda office, stranger: forged(office, A, "spiffe://heart/site/b"),
    "no name": lambda office, stranger: forged(office),
    "the same name twice": lambda office, stranger: forged(office, A, A),
    "server usage": lambda office, stranger: forged(office, A, usage=ExtendedKeyUsageOID.SERVER_AUTH),
    "other federation": lambda office, stranger: forged(office, "spiffe://lungs/site/a"),
    "coordinator's name": lambda office, stranger: forged(office, "spiffe://heart/coordinator"),
    "not in the register": lambda office, stranger: issued(office),
    "not in the register, unknown site": lambda office, stranger: forged(office, "spiffe://heart/site/zebra"),
}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_whoever_is_not_a_site_of_this_federation_now_is_refused(
    tmp_path: Path, office: Office, stranger: Office, plan: Plan, name: str
) -> None:
    """The stream of an impostor ends before the engine hears of it, and the plan is not told."""
    pair = IMPOSTORS[name](office, stranger)
    root = office.authority.root_pem()
    shown = grpc.ssl_channel_credentials(root, *(() if pair is None else (pair.key, pair.chain)))

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running, calling(running.address, shown) as caller:
            await caller.send(HELLO)

            assert await caller.rest() == []
            assert await caller.status() in {
                grpc.StatusCode.UNAVAILABLE,  # TLS itself has refused
                grpc.StatusCode.UNAUTHENTICATED,
                grpc.StatusCode.PERMISSION_DENIED,
            }
            assert not running.engine.status()["sites"]["a"]["connected"]

    asyncio.run(scene())


def test_a_revoked_site_is_refused(tmp_path: Path) -> None:
    """A certificate that TLS accepts is refused once the register has revoked its site."""
    office = Office.found(tmp_path / "office")
    plan = plan_with(office.identities)
    office.revoke("a")

    async def scene() -> None:
        async with (
            serving(office, plan, tmp_path / "state") as running,
            calling(running.address, as_channel(office.credentials("a"))) as caller,
        ):
            await caller.send(HELLO)

            assert await caller.rest() == []
            assert await caller.status() is grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(scene())


def test_a_register_that_changes_ends_open_streams(tmp_path: Path) -> None:
    """An open stream of a revoked site ends with the reason when the register is asked again; others stay."""
    office = Office.found(tmp_path / "office")
    plan = plan_with(office.identities)

    async def scene() -> None:
        async with (
            serving(office, plan, tmp_path / "state") as running,
            calling(running.address, as_channel(office.credentials("a"))) as revoked,
            calling(running.address, as_channel(office.credentials("b"))) as member,
        ):
            for caller in (revoked, member):
                await caller.send(HELLO)
                assert isinstance(await caller.receive(), Announcement)
            office.revoke("a")
            running.service.recheck()

            (farewell,) = await revoked.rest()
            assert isinstance(farewell, Farewell)
            assert farewell.reason is CoordinatorReason.NOT_ACCEPTED
            sites = running.engine.status()["sites"]
            assert (sites["a"]["connected"], sites["b"]["connected"]) == (False, True)

    asyncio.run(scene())


def test_a_revocation_in_mid_run_leaves_the_others_at_work(tmp_path: Path) -> None:
    """Over TLS and with the real register: a site that holds a round up is revoked, and the others finish the run."""
    office = Office.found(tmp_path / "office")
    plan = plan_with(office.identities, rounds=2, changes={"quorum": 2, "on_lost_site": "continue"})

    async def scene() -> None:
        async with (
            serving(office, plan, tmp_path / "state") as running,
            calling(running.address, as_channel(office.credentials("c"))) as idle,
        ):
            others = [
                asyncio.create_task(take_part(running.address, office.credentials(name), BehavingSite(name)))
                for name in "ab"
            ]
            await idle.send(HELLO)
            for answer in BehavingSite("c").answer(await idle.receive()):
                await idle.send(answer)
            assert isinstance(await idle.receive(), Offer)
            office.revoke("c")
            running.service.recheck()
            await asyncio.gather(*others)

            (outcome,) = running.engine.outcomes
            assert (outcome.is_complete, outcome.missing) == (True, frozenset())

    asyncio.run(scene())

    (journal,) = (tmp_path / "state" / "runs").glob("*/journal.jsonl")
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [entry["sites"] for entry in entries if entry["kind"] == "closed"] == [["a", "b"], ["a", "b"]]


def test_three_sites_run_a_study_over_tls(tmp_path: Path, office: Office, plan: Plan) -> None:
    """Accepted sites run to the end, and the parameters are rounds times the mean, to the bit."""

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            sites = [BehavingSite(name) for name in "abc"]
            await asyncio.gather(*(take_part(running.address, office.credentials(site.name), site) for site in sites))

            assert all(site.farewell and site.farewell.reason is CoordinatorReason.ALL_RUNS_OVER for site in sites)
        assert_right_bits(tmp_path, plan)

    asyncio.run(scene())


# What misbehaving costs


Misbehaviour = Callable[[Caller, Plan], Awaitable[None]]


async def up_to(caller: Caller, kind: type[object]) -> BehavingSite:
    """Behave as site c until a message of this kind has come, and answer it no more."""
    site = BehavingSite("c")
    await caller.send(HELLO)
    while (message := await caller.receive()) is not None:
        if isinstance(message, kind):
            return site
        for answer in site.answer(message):
            await caller.send(answer)
    raise AssertionError(f"the stream ended before {kind.__name__}")


def saying(*messages: Hello | Ready | Join | bytes) -> Misbehaviour:
    """Say these things first."""

    async def misbehave(caller: Caller, _: Plan) -> None:
        for message in messages:
            await caller.send(message)

    return misbehave


def sending(*chunks: Callable[[list[bytes]], Chunk]) -> Misbehaviour:
    """Behave until bound, then send chunks made from the honest ones."""

    async def misbehave(caller: Caller, plan: Plan) -> None:
        await up_to(caller, Bind)
        honest = contribution(plan, 6.0)
        for make in chunks:
            await caller.send(make(honest))

    return misbehave


async def join_with_other_digests(caller: Caller, plan: Plan) -> None:
    """Agree to a plan of which nobody has heard."""
    await caller.send(HELLO)
    announced = await caller.receive()
    assert isinstance(announced, Announcement)
    await caller.send(Join(announced.run, bytes(32), manifest_of(plan).digest, 0))


def garbage(seed: int) -> bytes:
    """A few random bytes that are no message."""
    return b"\xff" + random.Random(seed).randbytes(200)


HOSTILE: dict[str, tuple[Misbehaviour, CoordinatorReason]] = {
    "no hello": (saying(Ready(0, 0)), CoordinatorReason.PROTOCOL_VIOLATED),
    "an empty message": (saying(b""), CoordinatorReason.PROTOCOL_VIOLATED),
    "a second hello": (saying(HELLO, HELLO), CoordinatorReason.PROTOCOL_VIOLATED),
    "another protocol": (saying(Hello(PROTOCOL_VERSION + 1, "x")), CoordinatorReason.NOT_ACCEPTED),
    "garbage first": (saying(garbage(1)), CoordinatorReason.PROTOCOL_VIOLATED),
    "garbage later": (saying(HELLO, garbage(2)), CoordinatorReason.PROTOCOL_VIOLATED),
    "garbage inside a known message": (saying(HELLO, b"\x0a\x05" + garbage(3)), CoordinatorReason.PROTOCOL_VIOLATED),
    "ready before joining": (saying(HELLO, Ready(0, 0)), CoordinatorReason.PROTOCOL_VIOLATED),
    "another plan": (join_with_other_digests, CoordinatorReason.NOT_ACCEPTED),
    "a chunk that skips one": (
        sending(lambda honest: Chunk(0, 0, 1, honest[1])),
        CoordinatorReason.PROTOCOL_VIOLATED,
    ),
    "a chunk that is too short": (
        sending(lambda honest: Chunk(0, 0, 0, honest[0][:-4])),
        CoordinatorReason.PROTOCOL_VIOLATED,
    ),
    "a chunk that is too long": (
        sending(lambda honest: Chunk(0, 0, 0, honest[0] + bytes(4))),
        CoordinatorReason.PROTOCOL_VIOLATED,
    ),
    "a chunk of a later round": (
        sending(lambda honest: Chunk(1, 0, 0, honest[0])),
        CoordinatorReason.PROTOCOL_VIOLATED,
    ),
    "a chunk beyond the last": (
        sending(lambda honest: Chunk(0, 0, 3, honest[0])),
        CoordinatorReason.PROTOCOL_VIOLATED,
    ),
    "a chunk twice": (
        sending(lambda honest: Chunk(0, 0, 0, honest[0]), lambda honest: Chunk(0, 0, 0, honest[0])),
        CoordinatorReason.PROTOCOL_VIOLATED,
    ),
}


async def others_at_work(running: Running, office: Office) -> list[asyncio.Task[None]]:
    """Sites a and b take part and have joined."""
    tasks = [
        asyncio.create_task(take_part(running.address, office.credentials(name), BehavingSite(name))) for name in "ab"
    ]
    await eventually(lambda: all(running.engine.status()["sites"][name]["joined"] for name in "ab"))
    return tasks


@pytest.mark.parametrize("name", HOSTILE)
def test_a_misbehaving_site_ends_its_own_stream_only(tmp_path: Path, office: Office, plan: Plan, name: str) -> None:
    """The stream ends with its reason, the others keep theirs, and the run ends with the right bits."""
    misbehave, reason = HOSTILE[name]

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            others = await others_at_work(running, office)
            async with calling(running.address, as_channel(office.credentials("c"))) as caller:
                await misbehave(caller, plan)
                farewell = (await caller.rest())[-1]
                assert isinstance(farewell, Farewell)
                assert farewell.reason is reason
            await take_part(running.address, office.credentials("c"), BehavingSite("c"))
            await asyncio.gather(*others)

        assert_right_bits(tmp_path, plan)

    asyncio.run(scene())


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_message_above_the_limit_ends_the_stream_before_it_is_read(
    tmp_path: Path, office: Office, plan: Plan, is_joined: bool
) -> None:
    """Three mebibytes are refused by their length; the run goes on and ends with the right bits."""

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            others = await others_at_work(running, office)
            async with calling(running.address, as_channel(office.credentials("c"))) as caller:
                if is_joined:
                    await up_to(caller, Bind)
                else:
                    await caller.send(HELLO)
                await caller.send(bytes(3 << 20))
                await caller.rest()
                assert await caller.status() is grpc.StatusCode.RESOURCE_EXHAUSTED
            await take_part(running.address, office.credentials("c"), BehavingSite("c"))
            await asyncio.gather(*others)

        assert_right_bits(tmp_path, plan)

    asyncio.run(scene())


def test_a_chunk_after_the_last_one_ends_the_stream_and_counts_for_nothing(
    tmp_path: Path, office: Office, plan: Plan
) -> None:
    """Whoever goes on after the last chunk is cut off; what was complete stays counted, once."""

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            slow = BehavingSite("a", stops_after=1)
            waiting = asyncio.create_task(take_part(running.address, office.credentials("a"), slow))
            others = [asyncio.create_task(take_part(running.address, office.credentials("b"), BehavingSite("b")))]
            async with calling(running.address, as_channel(office.credentials("c"))) as caller:
                await up_to(caller, Bind)
                for index, body in enumerate([*contribution(plan, 6.0), bytes(8)]):
                    await caller.send(Chunk(0, 0, index, body))
                farewell = (await caller.rest())[-1]
                assert isinstance(farewell, Farewell)
                assert farewell.reason is CoordinatorReason.PROTOCOL_VIOLATED
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await eventually(lambda: not running.engine.status()["sites"]["a"]["connected"])
            again = [take_part(running.address, office.credentials(name), BehavingSite(name)) for name in "ac"]
            await asyncio.gather(*again, *others)

        assert_right_bits(tmp_path, plan)

    asyncio.run(scene())


def test_a_thousand_messages_without_reading_hold_nobody_up(tmp_path: Path, office: Office, plan: Plan) -> None:
    """A site that talks and never listens costs the others nothing; it may come back and behave."""

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            others = await others_at_work(running, office)
            async with calling(running.address, as_channel(office.credentials("c"))) as caller:
                await caller.send(HELLO)
                announced = await caller.receive()
                assert isinstance(announced, Announcement)
                await caller.send(Join(announced.run, plan.digest, manifest_of(plan).digest, 0))
                for _ in range(1000):
                    await caller.send(Ready(0, 1))
                await take_part(running.address, office.credentials("c"), BehavingSite("c"))
            await asyncio.gather(*others)

        assert_right_bits(tmp_path, plan)

    asyncio.run(scene())


def test_a_silent_caller_is_shown_out(
    tmp_path: Path, office: Office, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that opens a stream and says nothing loses it after the time for a greeting, with a reason."""
    usual_seconds = service_module.GREETING_SECONDS
    monkeypatch.setattr(service_module, "GREETING_SECONDS", 0.2)

    async def scene() -> None:
        async with (
            serving(office, plan, tmp_path) as running,
            calling(running.address, as_channel(office.credentials("c"))) as caller,
        ):
            began = time.monotonic()
            (farewell,) = await caller.rest()

            assert time.monotonic() - began < usual_seconds
            assert isinstance(farewell, Farewell)
            assert not farewell.reason.is_final  # a slow network is no misbehaviour

    asyncio.run(scene())


def test_a_caller_that_does_not_read_its_farewell_is_cut_off(
    tmp_path: Path, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that the peer neither reads nor closes ends all the same, and its place is free."""
    monkeypatch.setattr(service_module, "FAREWELL_SECONDS", 0.2)
    plan = plan_with(office.identities, parameters=4_000_000)  # more than the buffers of a connection hold

    async def scene() -> None:
        async with serving(office, plan, tmp_path) as running:
            others = await others_at_work(running, office)
            credentials = as_channel(office.credentials("c"))
            async with calling(running.address, credentials) as caller:
                await caller.send(HELLO)
                announced = await caller.receive()
                assert isinstance(announced, Announcement)
                await caller.send(Join(announced.run, plan.digest, manifest_of(plan).digest, 0))
                await eventually(lambda: running.engine.status()["run"]["phase"] == "training")
                await caller.send(HELLO)  # a violation, whose answer is never read

                await eventually(lambda: len(running.service._peers) == 2)
                assert not running.engine.status()["sites"]["c"]["connected"]
            for task in others:
                task.cancel()

    asyncio.run(scene())


def test_another_call_than_the_one_there_is_does_not_exist(tmp_path: Path, office: Office, plan: Plan) -> None:
    """The port knows one call; any other name is unimplemented."""
    credentials = office.credentials("a")

    async def scene() -> None:
        async with (
            serving(office, plan, tmp_path) as running,
            grpc.aio.secure_channel(running.address, as_channel(credentials)) as channel,
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary(PARTICIPATE + "2")(b"", timeout=5)

            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    asyncio.run(scene())


def test_credentials_do_not_show_their_key() -> None:
    """A key never appears in what is printed of the credentials."""
    assert "secret" not in repr(Credentials(key=b"secret", chain=b"", root=b""))
    assert "secret" not in repr(service_module.Credentials(key=b"secret", chain=b"", root=b""))
