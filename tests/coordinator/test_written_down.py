"""A listed site can make the coordinator write only a limited amount at once and in a second, whoever waits."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from coordinator.commands.status_lines import status_lines
from coordinator.network import pace, service
from coordinator.network.enrolment_calls import Membership
from coordinator.network.pace import WITHOUT_LIMIT, Allowance, RateLimit
from host.record_store import StoreError
from pki.register import MOST_EACH_DAY, Register
from protos.errors import UnavailableError
from protos.plan.manifest import manifest_of
from protos.wire.messages import PROTOCOL_VERSION, Hello, Join, Refusal, SiteReason
from protos.wire.upkeep_messages import LogHeads, RenewalAsked
from site_agent.gate.mishaps import stream_ended
from site_agent.gate.site_certificates import renewal_of
from site_agent.gate_socket import COORDINATOR_UNABLE
from tests.coordinator.greetings import announced_to
from tests.rehearsal.federation import Office, as_channel, calling, eventually, serving, utc_now
from tests.rehearsal.relayed_stream import certificates_in_process
from tests.rehearsal.study import plan_with

HELLO = Hello(PROTOCOL_VERSION, "test")


def test_a_site_that_joins_and_withdraws_without_end_is_heard_slowly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a record that is synced; a site that alternates them as fast as it can keeps nobody else waiting."""
    monkeypatch.setattr(pace, "RECORDED", Allowance(burst=10.0, each_second=100.0))
    office = Office.found(tmp_path / "office")
    plan = plan_with(office.identities, changes={})
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
                    await announced_to(other)

    asyncio.run(scene())


def test_requests_beside_the_rounds_have_a_pace_of_their_own() -> None:
    """Heads of logs and renewals wait for one another and for nothing else; what is not written down never waits."""
    of_a_site, asked, hello = pace.RecordedPace(), RenewalAsked("a", b"x", b"y" * 64), HELLO

    waits = [of_a_site.wait_seconds(asked, 0.0) for _ in range(int(pace.UPKEEP.burst) + 50)]

    assert waits[int(pace.UPKEEP.burst) - 1] == 0.0
    assert waits[-1] == pytest.approx(50 / pace.UPKEEP.each_second)
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
            if isinstance(await caller.receive(), LogHeads):
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


def test_a_renewal_is_recorded_once_and_a_site_receives_so_many_in_a_day(tmp_path: Path) -> None:
    """A repeated request has the same answer and no second record. The limit is over a day later."""
    office = Office.found(tmp_path / "office")
    keys = office.enrol("a")
    events: list[str] = []
    day = [utc_now()]
    certificates = certificates_in_process(keys)
    asyncio.run(certificates.look())
    with Register(office.authority.register_path) as register:
        desk = Membership(office.authority, register, lambda: day[0], lambda event, **_: events.append(event))
        for _ in range(MOST_EACH_DAY - 1):  # the first one came with the enrolment
            asked = asyncio.run(renewal_of(certificates, "a", keys.identity_key()))
            first, second = desk.renew(asked), desk.renew(asked)
            assert first == second
            assert first.refusal == ""
        over = asyncio.run(renewal_of(certificates, "a", keys.identity_key()))

        assert "20 certificates within a day; the limit is 20" in desk.renew(over).refusal
        assert events.count("certificate_issued") == MOST_EACH_DAY - 1
        assert desk.renew(asked) == first  # what was issued before is still answered
        day[0] += timedelta(days=1, seconds=1)
        assert desk.renew(over).refusal == ""


def test_a_coordinator_that_cannot_write_says_so_and_sites_blame_nobody(tmp_path: Path) -> None:
    """On a full disk no site is accepted. Status and the site's error name the disk; then everything goes on."""
    office = Office.found(tmp_path / "office")
    plan = plan_with(office.identities)

    async def status_of_a_call(address: str) -> grpc.StatusCode:
        async with calling(address, as_channel(office.credentials("a"))) as caller:
            await caller.send(Hello(PROTOCOL_VERSION, "test"))
            return grpc.StatusCode.OK if await caller.receive() else await caller.status()

    async def scene() -> tuple[grpc.StatusCode, dict[str, Any], grpc.StatusCode, dict[str, Any]]:
        async with serving(office, plan, tmp_path / "state") as running:
            running.log.store._connection.execute("PRAGMA max_page_count=1")  # SQLite takes it for a full disk
            while not running.log.failure:
                with suppress(StoreError):
                    running.log.write("x")
            full, told = await status_of_a_call(running.address), running.engine.status()
            running.log.store._connection.execute("PRAGMA max_page_count=100000")
            return full, told, await status_of_a_call(running.address), running.engine.status()

    full, told, freed, then = asyncio.run(scene())

    assert (full.name.lower(), freed) == (COORDINATOR_UNABLE, grpc.StatusCode.OK)
    assert isinstance(stream_ended("office:8443", COORDINATOR_UNABLE), UnavailableError)
    assert "disk is full" in told["trouble"]
    assert "disk is full" in next(status_lines(told))
    assert then["trouble"] is None
