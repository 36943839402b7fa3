"""The sent data of a run and its end stay valid, even if the audit log no longer has them."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from host.audit_log import AuditLog
from host.record_store import StoreError
from protos.errors import RefusedError
from protos.masking.masking_refusals import MaskingRefused, Reason
from protos.plan.exchange import Exchanges
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Bind, MalformedMessage, Offer, Stage
from site_agent.approving import approve
from site_agent.gate.consent import Consent, refuse_replay
from site_agent.gate.permission import Allowance
from site_agent.gate.site_masking import SiteMasking
from site_agent.gate.site_rounds import Rounds, Surroundings
from site_agent.gate.spent import Release, Spent
from tests.rehearsal.gates import NOON, gate_for, policy_with
from tests.rehearsal.study import SITES, made_up_identities, plan_with

PLAN = plan_with(made_up_identities())
MASKED = plan_with(made_up_identities(), changes={"secure_aggregation": "required"})
LAST = Release(round=5, attempt=1, position="ab" * 32, stage="training", offered_layers="")


def allowance_of(state: Path, plan: Plan, **rules: Any) -> Allowance:
    """What is still allowed to site a when its log is restarted."""
    spent = Spent(state, plan.run_name)
    return Allowance(policy_with(**rules), plan, site="a", released=(), spent=spent)


async def nothing(*_: object, **__: object) -> Any:
    """Send, ask or deliver to nobody."""


def spawned(work: Coroutine[Any, Any, None], _: str) -> asyncio.Task[None]:
    """Begin beside the test."""
    return asyncio.create_task(work)


def test_a_run_that_was_finished_stays_finished_without_its_log(tmp_path: Path) -> None:
    """A plan that is still approved is not followed again after the log was restarted or its files deleted."""
    approve(tmp_path, PLAN, by="A. Jones", at=NOON)
    audit = AuditLog(tmp_path / "audit.log", site="a", now=lambda: NOON)
    rounds = Rounds(
        run=PLAN.run_name,
        plan=PLAN,
        manifest=manifest_of(PLAN),
        site="a",
        policy=policy_with(),
        consent=Consent(tmp_path, PLAN, approvers=1, now=lambda: NOON),
        audit=audit,
        masking=None,
        around=Surroundings(send=nothing, ask=nothing, spawn=spawned, deliver=nothing),
        saved=(),
        released=(),
    )

    rounds.concluded(3)

    audit.close()
    (tmp_path / "audit.log").unlink()
    patience = timedelta(days=2)
    assert refuse_replay(tmp_path, PLAN, [], NOON + patience) is None
    late = refuse_replay(tmp_path, PLAN, [], NOON + patience + timedelta(seconds=1))
    assert late == "its run already finished here on 2026-03-01"


def test_limits_count_what_left_before_the_log_restarted(tmp_path: Path) -> None:
    """Rounds and bytes that have left count in the next process too, whatever its log still knows."""
    exchange = Exchanges(PLAN, manifest_of(PLAN)).of(0, Stage.TRAINING, b"")
    size = exchange.layout.total_bytes
    first, second = Bind(0, 0, tuple(SITES), 0), Bind(1, 0, tuple(SITES), 0)
    allowance_of(tmp_path, PLAN).take(exchange, first, bytes(32))

    few_rounds = allowance_of(tmp_path, PLAN, largest_rounds=1)
    few_bytes = allowance_of(tmp_path, PLAN, largest_megabytes=1.5e-6 * size)

    assert list(few_rounds.reasons(exchange, first, masked=False)) == []
    assert list(few_rounds.reasons(exchange, second, masked=False)) == ["more rounds than the policy allows"]
    assert "MB would have been sent" in "".join(few_bytes.reasons(exchange, second, masked=False))


def test_what_cannot_be_recorded_does_not_leave_and_a_damaged_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk ends a release before its first byte. A file that is no record does not count as an unused run."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    spent = Spent(tmp_path, "run")
    spent.finish(datetime.now(UTC))
    monkeypatch.setattr("host.durable.require_room", full)
    with pytest.raises(StoreError, match=r"will send cannot be recorded: No space.*Nothing was sent after this"):
        spent.take(48, LAST)
    with pytest.raises(StoreError, match=r"end of this run cannot be recorded: No space left.*already sent stay valid"):
        spent.finish(datetime.now(UTC))
    (tmp_path / "gate" / "spent" / "run.json").write_text("{")
    with pytest.raises(RefusedError, match="cannot be read"):
        Spent(tmp_path, "run")


def rounds_of(state: Path, audit: AuditLog, masking: SiteMasking | None) -> Rounds:
    """The rounds of a process that starts again."""
    plan = MASKED if masking else PLAN
    return Rounds(
        run=plan.run_name,
        plan=plan,
        manifest=manifest_of(plan),
        site="a",
        policy=policy_with(),
        consent=Consent(state, plan, approvers=1, now=lambda: NOON),
        audit=audit,
        masking=masking,
        around=Surroundings(send=nothing, ask=nothing, spawn=spawned, deliver=nothing),
        saved=(),
        released=(),
    )


def test_a_log_that_was_restarted_lets_no_step_come_again_with_other_parameters(tmp_path: Path) -> None:
    """The last sent data are recorded beside the log: earlier rounds are over.

    The same round keeps its parameters.
    """
    Spent(tmp_path, PLAN.run_name).take(48, LAST)
    audit = AuditLog(tmp_path / "audit.log", site="a", now=lambda: NOON)

    def offered(number: int, attempt: int) -> Offer:
        return Offer(number, attempt, bytes(32), Stage.TRAINING, b"", None)

    for offer, why in ((offered(1, 0), "a round that is over"), (offered(5, 2), "other parameters for the same step")):
        with pytest.raises(MalformedMessage, match=why):
            rounds_of(tmp_path, audit, None)._itinerary.accept(offer)
    with pytest.raises(MalformedMessage, match="a round that is over"):
        rounds_of(tmp_path, audit, None)._itinerary.accept(offered(5, 0))
    audit.close()


def test_a_masking_ledger_that_was_rolled_back_shows_also_without_the_log(tmp_path: Path) -> None:
    """Deleted or older than what left last, it masks nothing, although the log was restarted in between."""
    audit = AuditLog(tmp_path / "audit.log", site="a", now=lambda: NOON)

    def masking() -> SiteMasking:
        return SiteMasking(
            run=MASKED.run_name,
            plan=MASKED,
            manifest=manifest_of(MASKED),
            site="a",
            identity_key=Ed25519PrivateKey.generate(),
            quorum=3,
            smallest=3,
            state=tmp_path,
            audit=audit,
            released=(),
        )

    rounds_of(tmp_path, audit, masking())
    Spent(tmp_path, MASKED.run_name).take(48, LAST)

    with pytest.raises(MaskingRefused) as refused:
        rounds_of(tmp_path, audit, masking())

    assert refused.value.reason is Reason.RECORD_OLDER
    audit.close()


def test_only_contributions_that_the_log_lacks_are_added_to_it(tmp_path: Path) -> None:
    """A record is written before this file is. So a record that the log lacks was lost or damaged later."""
    spent = Spent(tmp_path, "run")
    spent.take(48, LAST)

    assert Spent(tmp_path, "run").newest == LAST
    assert spent.beyond([]) == [LAST.model_dump()]
    assert spent.beyond([{"round": 5, "attempt": 1}]) == []
    assert spent.beyond([{"round": 6, "attempt": 0}]) == [LAST.model_dump()]
    assert spent.beyond([{"round": 5, "attempt": 0}]) == [LAST.model_dump()]
    earlier = LAST.model_copy(update={"round": 4})
    spent.take(48, earlier)
    spent.take(48, LAST)
    assert Spent(tmp_path, "run").beyond([{"round": 5, "attempt": 1}]) == [earlier.model_dump()]


def test_each_contribution_adds_a_line_and_a_line_that_a_crash_cut_off_announced_nothing(tmp_path: Path) -> None:
    """The next process counts every whole line, drops the rest of a cut one, and refuses a damaged whole line."""
    spent, path = Spent(tmp_path, "run"), tmp_path / "gate" / "spent" / "run.json"
    releases = [LAST.model_copy(update={"round": number}) for number in range(6)]
    for release in releases:
        spent.take(48 + release.round, release)
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    assert len(lines) == len(releases)

    for cut in range(len(lines[0]), len(content) + 1):
        path.write_bytes(content[:cut])
        whole = content[:cut].count(b"\n")
        found = Spent(tmp_path, "run")
        assert found.newest == releases[whole - 1]
        assert found.bytes_by_round == {number: 48 + number for number in range(whole)}

    path.write_bytes(content[: len(lines[0]) + 5])
    Spent(tmp_path, "run").take(99, LAST)  # after a cut line
    assert Spent(tmp_path, "run").bytes_by_round == {0: 48, 5: 99}
    path.write_bytes(content.replace(b'"bytes":51', b'"bytes":5l'))
    with pytest.raises(RefusedError, match="cannot be read"):
        Spent(tmp_path, "run")


def test_a_line_that_the_disk_took_in_part_is_replaced_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a full disk the file is written whole, so that no line follows on half of one."""
    spent, path = Spent(tmp_path, "run"), tmp_path / "gate" / "spent" / "run.json"
    spent.take(48, LAST)

    def half(file: Path, content: bytes, *, syncs: bool) -> None:
        file.write_bytes(file.read_bytes() + content[:9])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("site_agent.gate.spent.append_record", half)
    with pytest.raises(StoreError):
        spent.take(48, LAST.model_copy(update={"round": 6}))
    monkeypatch.undo()
    spent.take(48, LAST.model_copy(update={"round": 7}))

    assert path.read_bytes().count(b"\n") == 1
    assert Spent(tmp_path, "run").bytes_by_round == {5: 48, 6: 48, 7: 48}


def test_an_error_after_a_contribution_admits_that_the_contribution_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is synced only after its contribution. If the disk fails then, the line is synced at the next try."""

    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    spent = Spent(tmp_path, "run")
    for number in (4, 5):  # the second one is a line of its own
        spent.take(48, LAST.model_copy(update={"round": number}))
    synced = list[int]()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", broken)
        with pytest.raises(StoreError, match=r"of this round was already sent.* sends nothing more"):
            spent.sync()
    monkeypatch.setattr(os, "fdatasync", synced.append)
    spent.sync()

    assert len(synced) == 1


def test_the_line_of_a_contribution_is_synced_as_soon_as_it_has_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the file before the first chunk, and safe from a power cut after the last one."""
    audit = AuditLog(tmp_path / "audit.log", site="a", now=lambda: NOON)
    path = tmp_path / "gate" / "spent" / f"{PLAN.run_name}.json"
    gate = gate_for(PLAN, audit, tmp_path, spent=Spent(tmp_path, PLAN.run_name))
    exchange = Exchanges(PLAN, manifest_of(PLAN)).of(0, Stage.TRAINING, b"")
    contribution = gate.build(bytes(32), exchange, memoryview(bytes(4 * exchange.updates)), rows=0)
    list(gate.release(contribution, Bind(0, 0, tuple(SITES), 0)))  # this process has written the whole file
    kept, sync = dict[int, bytes](), os.fdatasync

    def synced(descriptor: int) -> None:
        sync(descriptor)
        kept[os.fstat(descriptor).st_ino] = Path(f"/proc/self/fd/{descriptor}").read_bytes()

    monkeypatch.setattr(os, "fdatasync", synced)
    chunks = gate.release(contribution, Bind(1, 0, tuple(SITES), 0))

    assert b'"round":1' in path.read_bytes()
    assert path.stat().st_ino not in kept
    list(chunks)
    assert kept[path.stat().st_ino] == path.read_bytes()
    audit.close()
