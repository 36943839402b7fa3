"""A listed site can make the coordinator write only a limited amount at once and in a second, whoever waits."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import grpc
import pytest

from coordinator.network import pace, service
from coordinator.network.pace import WITHOUT_LIMIT, Allowance, RateLimit
from protos.plan.manifest import manifest_of
from protos.wire.messages import PROTOCOL_VERSION, Announcement, Hello, Join, Refusal, SiteReason
from protos.wire.upkeep_messages import RenewalAsked
from tests.rehearsal.federation import Office, as_channel, calling, eventually, serving
from tests.rehearsal.study import plan_with

HELLO = Hello(PROTOCOL_VERSION, "test")


def test_a_site_that_joins_and_withdraws_without_end_is_heard_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a record that is synced; a site that alternates them as fast as it can keeps nobody else waiting."""
    monkeypatch.setattr(pace, "RECORDED_BURST", 10.0)
    monkeypatch.setattr(pace, "RECORDED_EACH_SECOND", 100.0)
    office = Office.found(tmp_path / "office")
    plan = plan_with(office.identities, changes={"quorum": 2})
    join, leave = (
        Join(plan.run_name, plan.digest, manifest_of(plan).digest, 0),
        Refusal(plan.run_name, SiteReason.WITHDRAWN),
    )
    heard: list[float] = []

    async def scene() -> None:
        async with serving(office, plan, tmp_path / "state") as running:
            received = running.engine.received
            monkeypatch.setattr(
                running.engine, "received", lambda *said: (heard.append(time.monotonic()), received(*said))[1]
            )
            async with calling(running.address, as_channel(office.credentials("a"))) as flapping:
                await flapping.send(HELLO)
                began = time.monotonic()
                for _ in range(30):
                    await flapping.send(join)
                    await flapping.send(leave)
                await eventually(lambda: len(heard) == 60)
                assert heard[-1] - began >= (60 - 10 - 1) / 100

                async with calling(running.address, as_channel(office.credentials("b"))) as other:
                    await other.send(HELLO)
                    assert isinstance(await other.receive(), Announcement)

    asyncio.run(scene())


def test_what_was_never_heard_delays_a_site_for_a_moment_only() -> None:
    """However many streams have ended while their join waited, the next join takes effect within five seconds."""
    recorded = pace.RecordedPace()
    join = Join("run", bytes(32), bytes(32), 0)

    waits = [recorded.wait_seconds(join, 0.0) for _ in range(100_000)]

    assert waits[0] == 0.0
    assert 0.0 < waits[-1] <= pace.LONGEST_WAIT_SECONDS


def test_requests_beside_the_rounds_have_a_pace_of_their_own() -> None:
    """Heads of logs and renewals wait for one another and for nothing else; what is not written down never waits."""
    of_a_site, asked, hello = pace.RecordedPace(), RenewalAsked("a", b"x", b"y" * 64), HELLO

    waits = [of_a_site.wait_seconds(asked, 0.0) for _ in range(int(pace.UPKEEP_BURST) + 50)]

    assert waits[int(pace.UPKEEP_BURST) - 1] == 0.0
    assert waits[-1] == pytest.approx(50 / pace.UPKEEP_EACH_SECOND)
    assert of_a_site.wait_seconds(Refusal("run", SiteReason.WITHDRAWN), 0.0) == 0.0
    assert all(of_a_site.wait_seconds(hello, 0.0) == 0.0 for _ in range(10_000))


def test_a_site_opens_no_more_streams_than_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another they are counted, too; another site is not held off for it."""
    office = Office.found(tmp_path / "office")
    plan = plan_with(office.identities)
    allowed = RateLimit(Allowance(burst=3.0, each_second=0.0), WITHOUT_LIMIT)
    monkeypatch.setattr(service, "RateLimit", lambda *_: allowed)

    async def is_let_in(address: str, site: str) -> bool:
        async with calling(address, as_channel(office.credentials(site))) as caller:
            await caller.send(HELLO)
            if isinstance(await caller.receive(), Announcement):
                return True
            assert await caller.status() is grpc.StatusCode.RESOURCE_EXHAUSTED
            return False

    async def scene() -> list[bool]:
        async with serving(office, plan, tmp_path / "state") as running:
            found = []
            for site in "aaaab":
                found.append(await is_let_in(running.address, site))
                await eventually(lambda: not running.service._peers)
            return found

    assert asyncio.run(scene()) == [True, True, True, False, True]
