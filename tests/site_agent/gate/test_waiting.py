"""A gate waits for approvals, and its work beside a stream goes on."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from protos.wire.messages import Chunk, Done, Join, Refusal, SiteReason
from site_agent.approvals import keep_plan
from site_agent.approving import approve, withdraw
from site_agent.gate import loop
from site_agent.gate.agent_link import Stream
from site_agent.gate.consent import ConsentEnded
from site_agent.gate_socket import WINDOW, Sent
from site_agent.state_folders import gate_folder
from tests.federation import Line, Site, masked_plan, of_kind, settle
from tests.scripted import announced


def test_announced_plans_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the newest plans without an approval stay. A plan that a person approved stays in any case."""
    monkeypatch.setattr("site_agent.approvals.MOST_UNAPPROVED", 3)
    plans = [masked_plan("abc", study=f"study-{number}") for number in range(8)]
    approve(tmp_path, plans[0], by="A. Jones", at=datetime.now(UTC))

    for number, plan in enumerate(plans):
        keep_plan(tmp_path, plan)
        os.utime(gate_folder(tmp_path) / "plans" / f"{plan.digest.hex()}.json", (number, number))
    keep_plan(tmp_path, plans[-1])

    left = {place.stem for place in (gate_folder(tmp_path) / "plans").iterdir()}
    assert left == {plan.digest.hex() for plan in (plans[0], *plans[-3:])}


@pytest.mark.parametrize("is_approved", [False, True])
async def test_a_withdrawal_while_the_next_plan_waits_is_of_its_own_run(tmp_path: Path, *, is_approved: bool) -> None:
    """Log and coordinator have the run from which people withdrew. They did not withdraw from the run that waits."""
    plan, later = masked_plan("abc"), masked_plan("abc", rounds=4)

    site = Site("a", plan, tmp_path)
    await settle()
    await site.tell(announced(plan), announced(later))
    withdraw(tmp_path, plan, by="A. Jones", at=datetime.now(UTC))
    if is_approved:
        approve(tmp_path, later, by="A. Jones", at=datetime.now(UTC))
    await asyncio.sleep(5)

    assert isinstance(site.error, ConsentEnded)
    ended = [(facts["run"], facts["reason"]) for facts in site.records("participation_ended")]
    assert ended == [(plan.run_name, "withdrawn")]
    assert of_kind(site.said, Refusal) == [Refusal(plan.run_name, SiteReason.WITHDRAWN)]
    await site.stop()


async def test_a_withdrawal_on_the_next_stream_is_of_its_own_run(tmp_path: Path) -> None:
    """The stream ended while a plan waited. Nothing is announced on the next one yet."""
    plan, later = masked_plan("abc"), masked_plan("abc", rounds=4)

    site = Site("a", plan, tmp_path)
    await settle()
    await site.tell(announced(plan), announced(later))
    assert site.line is not None
    site.line.cut()
    await asyncio.sleep(5)
    withdraw(tmp_path, plan, by="A. Jones", at=datetime.now(UTC))
    await asyncio.sleep(5)

    assert [facts["run"] for facts in site.records("participation_ended")] == [plan.run_name]
    await site.stop()


async def test_a_run_that_has_ended_needs_no_approval_while_the_next_plan_waits(tmp_path: Path) -> None:
    """People withdraw from a run that is over here. The site goes on waiting, and then takes part in the next run."""
    plan, later = masked_plan("abc"), masked_plan("abc", rounds=4)

    site = Site("a", plan, tmp_path)
    await settle()
    await site.tell(announced(plan))
    rounds = site.gate._rounds
    assert rounds is not None
    rounds.concluded(plan.rounds)
    await site.tell(announced(later))
    withdraw(tmp_path, plan, by="A. Jones", at=datetime.now(UTC))
    await asyncio.sleep(5)
    approve(tmp_path, later, by="A. Jones", at=datetime.now(UTC))
    await asyncio.sleep(5)

    assert site.error is None
    assert site.records("participation_ended") == []
    assert [facts["run"] for facts in site.records("run_joined")] == [plan.run_name, later.run_name]
    await site.stop()


async def test_a_site_that_waits_for_an_approval_follows_the_newest_announcement(tmp_path: Path) -> None:
    """The office ends a run that nobody approved, and announces the next one on the same streams."""
    first, wrong, other, right = (masked_plan("abc", rounds=rounds) for rounds in (3, 4, 5, 6))

    site = Site("a", first, tmp_path)
    approve(tmp_path, right, by="A. Jones", at=datetime.now(UTC))
    await settle()
    await site.tell(announced(first), announced(wrong))
    await asyncio.sleep(5)
    await site.tell(announced(other))
    await asyncio.sleep(5)
    await site.tell(announced(right))
    await asyncio.sleep(5)

    assert site.error is None
    assert [message.run for message in of_kind(site.said, Join)] == [first.run_name, right.run_name]
    waited = [facts["plan"] for facts in site.records("approval_awaited")]
    assert waited == [wrong.digest.hex(), other.digest.hex()]
    await site.tell(announced(wrong))
    await asyncio.sleep(5)
    await site.tell(announced(right))
    await asyncio.sleep(5)
    assert [message.run for message in of_kind(site.said, Join)][2:] == [right.run_name]
    assert site.gate._standing.phase == "connected"
    await site.stop()


async def test_plans_that_replace_each_other_leave_few_records(tmp_path: Path) -> None:
    """A hostile coordinator announces unapproved plans by turns. The log has at most one more record each second."""
    plan, *others = (masked_plan("abc", rounds=rounds) for rounds in (3, 4, 5, 6))

    site = Site("a", plan, tmp_path)
    await settle()
    for seconds in (20, 40):
        await site.tell(*(announced(others[number % 3]) for number in range(500)))
        await asyncio.sleep(20)
        assert site.error is None
        assert len(site.records("approval_awaited")) <= seconds + 2
    await site.stop()


async def test_the_wait_before_the_next_connection_has_an_end(tmp_path: Path) -> None:
    """For six hours the coordinator ends each stream before the site joins. The site waits 30 seconds at most."""
    plan, opened = masked_plan("abc"), 0

    def hang_up(_: str, line: Line) -> None:
        nonlocal opened
        opened += 1
        line.cut()

    site = Site("a", plan, tmp_path, opened=hang_up)
    await asyncio.sleep(21_600)
    assert site.error is None
    await site.stop()

    assert 21_600 / 30 <= opened <= 21_600 / 15 + 10


def test_a_chunk_that_waited_is_checked_again_before_it_is_sent() -> None:
    """The coordinator does not read, a person withdraws, and then the coordinator reads: the chunk does not leave."""
    posted: list[object] = []
    link = SimpleNamespace(post=lambda *message: posted.append(message), begin=None, end=None)
    stream = Stream(link, lambda: "")  # type: ignore[arg-type]
    withdrawn: list[str] = []

    def check() -> None:
        if withdrawn:
            raise ConsentEnded("heart", withdrawn[0], "run")

    async def scene() -> None:
        for _ in range(WINDOW):
            await stream.send(Done("run"))
        waiting = asyncio.create_task(stream.send(Chunk(0, 0, 0, b"x" * 8), check=check))
        await asyncio.sleep(0)
        withdrawn.append("A. Jones withdrew")
        stream.take(Sent(stream.number, 1))
        with pytest.raises(ConsentEnded):
            await waiting
        assert len(posted) == WINDOW
        await asyncio.wait_for(stream.send(Done("run")), 5)  # its place is free again

    asyncio.run(scene())

    assert len(posted) == WINDOW + 1


def test_a_refusal_that_nobody_reads_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator that does not read cannot prevent that the site ends the stream."""
    monkeypatch.setattr(loop, "PARTING_SECONDS", 0.01)

    async def never(_: object) -> None:
        await asyncio.Event().wait()

    gate = SimpleNamespace(_send=never, _connection=None)
    refusal = Refusal("heart-1", SiteReason.WITHDRAWN)

    asyncio.run(asyncio.wait_for(loop.SiteGate._tell(gate, refusal), 30))  # type: ignore[arg-type]
