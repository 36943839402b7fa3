"""A lost ledger is not an empty one: what is not known counts as spent, and a first start or an upgrade is no loss."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from audit import own_log
from audit.log_files import Placed, checked_records, set_aside
from audit.own_log import AuditLog
from audit.restarting import restart_log
from protos.errors import RefusedError
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from site_agent.approving import approve
from site_agent.gate.ledger_memory import Loss, settle_ledger
from site_agent.gate.mishaps import unfinished_run
from site_agent.gate.permission import decide_plan
from site_agent.gate.privacy_ledger import PrivacyLedger
from site_agent.gate.remedies import remedy_of_refusal
from site_agent.hospital import Hospital, PrivacyLimits
from site_agent.state_folders import audit_log_path, gate_folder
from tests.protos.privacy.private_plans import private_network_plan, private_plan
from tests.rehearsal.gates import policy_with

START = datetime(2026, 3, 1, tzinfo=UTC)
LIMITS = PrivacyLimits(largest_epsilon_per_study=2.0, largest_epsilon_per_year=3.0, delta=1e-5)
PLAN, OTHER = private_plan(), private_plan(study="other")
MARK = "privacy/ledger.mark"


@contextmanager
def log_of(state: Path, days: float = 0) -> Iterator[AuditLog]:
    """The site's log, opened on a later day."""
    log = AuditLog(audit_log_path(state), site="ahus", now=lambda: START + timedelta(days=days))
    try:
        yield log
    finally:
        log.close()


def started(state: Path, days: float = 0, *, is_member: bool = True) -> tuple[Loss, ...]:
    """The losses that a start finds. A site that is no member yet enrols."""
    with log_of(state, days) as log:
        losses = settle_ledger(state, log, is_member=is_member)
        if not is_member:
            log.write("enrolled", federation="heart")
    return losses


def used(state: Path, plan: Plan = PLAN) -> None:
    """A person approves a plan, and its sums are sent."""
    with log_of(state, 1) as log:
        log.write("plan_approved", plan=plan.digest.hex(), by="A. Jones")
        approve(state, plan, by="A. Jones", at=START)
        PrivacyLedger(state, log).pay(plan, bytes(32), [0] * 1000)


def reason(state: Path, days: float = 2, plan: Plan = OTHER) -> str | None:
    """Why the ledger leaves no budget for a plan, in one clause."""
    with log_of(state, days) as log:
        return PrivacyLedger(state, log).refuse(LIMITS, plan)


def test_a_first_start_has_its_budget_and_a_second_one_keeps_it(tmp_path: Path) -> None:
    """The mark is made before the first certificate, in a file and in the log."""
    assert started(tmp_path, is_member=False) == ()
    assert (gate_folder(tmp_path) / MARK).exists()
    assert started(tmp_path, 1) == ()

    with log_of(tmp_path) as log:
        assert len([*log.records("privacy_ledger_begun")]) == 1
    assert reason(tmp_path) is None


def test_a_start_and_an_end_read_the_audit_log_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading checks all files of the log, which takes seconds if the log is large."""
    readings = list[Path]()

    def counted(path: Path, size: int | None) -> Iterator[Placed]:
        readings.append(path)
        yield from checked_records(path, size)

    started(tmp_path)
    monkeypatch.setattr(own_log, "checked_records", counted)
    started(tmp_path, 1)
    at_the_start = len(readings)
    with log_of(tmp_path) as log:
        for event, run in (("run_joined", "heart"), ("run_finished", "heart"), ("run_joined", "lung")):
            log.write(event, run=run)
        unfinished = unfinished_run(log)

    assert (at_the_start, len(readings) - at_the_start, unfinished) == (1, 1, "lung")


@pytest.mark.parametrize("approvals", [True, False])
def test_an_empty_folder_of_a_member_is_a_spent_one(tmp_path: Path, *, approvals: bool) -> None:
    """The agent's certificate or the approvals show the earlier life. A year later only known studies are spent."""
    started(tmp_path, is_member=False)
    used(tmp_path)
    shutil.rmtree(gate_folder(tmp_path))
    if not approvals:
        shutil.rmtree(tmp_path / "approvals")

    (loss,) = started(tmp_path, 2, is_member=not approvals)

    assert loss.studies == (("prior",) if approvals else ())
    spent_until = f"is treated as spent until {START + timedelta(days=367):%F}"
    assert spent_until in str(reason(tmp_path))
    assert started(tmp_path, 3) == (loss,)
    assert spent_until in str(reason(tmp_path, 366.9))
    assert reason(tmp_path, 367.1) is None
    assert ("whole epsilon is treated as spent" in str(reason(tmp_path, 999, PLAN))) is approvals


def test_the_office_tells_a_site_that_lost_its_whole_computer(tmp_path: Path) -> None:
    """Nothing is left here, but the office's register has an earlier certificate of this site."""
    with log_of(tmp_path) as log:
        (loss,) = settle_ledger(tmp_path, log, is_member=True)
        log.write("enrolled", federation="heart")

    assert started(tmp_path, 1) == (loss,)
    assert "is treated as spent until" in str(reason(tmp_path))


@pytest.mark.parametrize("lost", ["mark", "log", "ledger", "mark and log"])
def test_a_loss_is_remembered_by_what_is_left_and_a_second_loss_counts_too(tmp_path: Path, lost: str) -> None:
    """Either of file and log has the loss. Without both the site has lost its ledger again."""
    with log_of(tmp_path) as log:
        (loss,) = settle_ledger(tmp_path, log, is_member=True)
        log.write("enrolled", federation="heart")
    if "mark" in lost:
        (gate_folder(tmp_path) / MARK).unlink()
    if "log" in lost:
        audit_log_path(tmp_path).unlink()
    if lost == "ledger":
        shutil.rmtree(gate_folder(tmp_path) / "privacy")

    (found, *_) = started(tmp_path, 30)

    assert found == (
        Loss(at=(START + timedelta(days=30)).isoformat(timespec="milliseconds")) if "and" in lost else loss
    )
    assert "is treated as spent until" in str(reason(tmp_path, 40))
    with log_of(tmp_path) as log:
        assert [facts["at"] for facts in log.records("privacy_ledger_lost")] == [found.at]


def test_a_lost_ledger_beside_its_log_is_no_loss_because_the_log_has_all_payments(tmp_path: Path) -> None:
    """The higher spending counts."""
    started(tmp_path, is_member=False)
    used(tmp_path)
    shutil.rmtree(gate_folder(tmp_path) / "privacy")

    assert started(tmp_path, 2) == ()
    with log_of(tmp_path) as log:
        assert [payment.epsilon for payment in PrivacyLedger(tmp_path, log).payments()] == [1.0]


@pytest.mark.parametrize("because", ["state_restored", "log_refused", "disk"])
def test_a_restarted_log_gives_nothing_back(tmp_path: Path, because: str) -> None:
    """Its payments count on. After a restore the payments since the backup are missing, so everything is spent."""
    started(tmp_path, is_member=False)
    used(tmp_path)
    with log_of(tmp_path, 2) as log:
        if because != "disk":
            log.write(because, owner="coordinator", reason="older")
    shutil.rmtree(gate_folder(tmp_path) / "privacy")
    set_aside(audit_log_path(tmp_path), START)
    with log_of(tmp_path, 3) as log:
        log.write("log_began_anew", generation=2, by="A. Jones", reason="disk")
        assert [payment.epsilon for payment in PrivacyLedger(tmp_path, log).payments()] == [1.0]

    losses = started(tmp_path, 4)

    assert len(losses) == (because != "disk")
    assert started(tmp_path, 5) == losses
    assert ("is treated as spent until" in str(reason(tmp_path))) is (because != "disk")


def test_an_older_ledger_beside_a_newer_log_pays_for_both(tmp_path: Path) -> None:
    """A restored folder of the ledger lacks a payment that the log has."""
    started(tmp_path, is_member=False)
    shutil.copytree(gate_folder(tmp_path) / "privacy", tmp_path / "copy")
    used(tmp_path)
    shutil.rmtree(gate_folder(tmp_path) / "privacy")
    shutil.move(tmp_path / "copy", gate_folder(tmp_path) / "privacy")

    assert started(tmp_path, 2) == ()
    with log_of(tmp_path) as log:
        assert [payment.epsilon for payment in PrivacyLedger(tmp_path, log).payments()] == [1.0]


def test_an_unreadable_mark_stops_the_site(tmp_path: Path) -> None:
    """It could have a loss."""
    started(tmp_path, is_member=False)
    (gate_folder(tmp_path) / MARK).write_text("{")

    with pytest.raises(RefusedError, match="cannot be read"):
        started(tmp_path, 1)
    with pytest.raises(RefusedError, match="cannot be read"):
        reason(tmp_path)


@pytest.mark.parametrize("was_restored", [False, True])
def test_the_error_names_the_table_and_what_to_do(tmp_path: Path, *, was_restored: bool) -> None:
    """A person who approves a plan, and the one who runs the gate, read how long the budget is spent.

    After an older backup was restored, every earlier backup lacks what the coordinator has confirmed since.
    """
    data = {"table": "/data/patients.csv", "contract": "contract.yaml", "split": {"seed": 3}}
    policy = policy_with(privacy=LIMITS.model_dump()).model_dump(mode="json")
    content = {"site": "ahus", "state": str(tmp_path), "policy": policy, "data": data}
    hospital = Hospital.model_validate(content, strict=False)
    if was_restored:
        started(tmp_path, is_member=False)
        restarted(tmp_path, 0, backup="then")
        with log_of(tmp_path) as log:
            log.write("older_state_restored", size=7)
    started(tmp_path)

    with log_of(tmp_path, 1) as log:
        decision = decide_plan(hospital, PLAN, manifest_of(PLAN), identity=None, audit=log)
        remedy = remedy_of_refusal(hospital, PLAN, identity=None, audit=log)

    assert any("until 2027-03-01" in clause for clause in decision.forbidden)
    assert remedy == (
        "Neither a command nor an earlier backup can restore the budget of the table patients.csv. "
        "Wait until 2027-03-01."
        if was_restored
        else "Restore the newest backup of this site. No command can restore the budget of the table patients.csv. "
        "If there is no backup, wait until 2027-03-01."
    )
    assert "patients.csv" not in audit_log_path(tmp_path).read_text()


@pytest.mark.parametrize("is_older", [False, True])
def test_a_restored_backup_is_a_loss_only_if_it_lacks_confirmed_records(tmp_path: Path, is_older: bool) -> None:
    """A hospital that moves to another computer keeps its budget. An older backup counts as a loss, once."""
    started(tmp_path, is_member=False)
    used(tmp_path)
    path = audit_log_path(tmp_path)
    restart_log(path, site="ahus", by="root", because="moved", now=lambda: START, backup="then")
    assert started(tmp_path, 3) == ()
    if is_older:
        with log_of(tmp_path, 4) as log:
            log.write("older_state_restored", size=7)

    losses = started(tmp_path, 5)

    assert len(losses) == is_older
    restart_log(path, site="ahus", by="root", because="moved again", now=lambda: START, backup="later")
    assert started(tmp_path, 6) == losses


def restarted(state: Path, days: float, backup: str | None = None) -> None:
    """A person restarts the log on a later day. With a backup, `restore` does it."""
    at = START + timedelta(days=days)
    restart_log(audit_log_path(state), site="ahus", by="A. Jones", because="disk", now=lambda: at, backup=backup)


@pytest.mark.parametrize("is_cosigned", [False, True])
@pytest.mark.parametrize("moves", [1, 2])
def test_a_disk_that_fails_after_a_complete_restore_loses_no_budget(
    tmp_path: Path, moves: int, *, is_cosigned: bool
) -> None:
    """The coordinator cosigns a restored log only after the comparison. Without that, payments may be missing."""
    started(tmp_path, is_member=False)
    used(tmp_path)
    for number in range(moves):
        restarted(tmp_path, 2 + number, backup="then")
    assert started(tmp_path, 4) == ()
    if is_cosigned:
        with log_of(tmp_path, 5) as log:
            log.write("checkpoint_cosigned")
    restarted(tmp_path, 6)

    losses = started(tmp_path, 7)

    assert len(losses) == (not is_cosigned)
    assert (reason(tmp_path, 8) is None) is is_cosigned


def test_the_cosigned_log_after_a_second_restart_does_not_excuse_an_older_state(tmp_path: Path) -> None:
    """A log that a person restarted is not compared, so its cosignatures say nothing about the restored log."""
    started(tmp_path, is_member=False)
    restarted(tmp_path, 2, backup="then")
    restarted(tmp_path, 3)
    with log_of(tmp_path, 4) as log:
        log.write("checkpoint_cosigned")
    restarted(tmp_path, 5)

    assert len(started(tmp_path, 6)) == 1


@pytest.mark.parametrize("sign", ["state_restored", "log_refused"])
def test_an_older_state_counts_as_one_loss_however_often_the_log_is_restarted(tmp_path: Path, sign: str) -> None:
    """Two years later a disk fails, and nothing more is lost. Another older state is another loss."""
    started(tmp_path, is_member=False)
    with log_of(tmp_path, 1) as log:
        log.write(sign, owner="coordinator", reason="older")
    restarted(tmp_path, 2)
    (loss,) = started(tmp_path, 3)
    restarted(tmp_path, 800)
    assert started(tmp_path, 801) == (loss,)
    with log_of(tmp_path, 802) as log:
        log.write(sign, owner="coordinator", reason="older")
    restarted(tmp_path, 803)

    assert len(started(tmp_path, 804)) == 2


def test_a_slow_clock_on_the_new_computer_pays_for_no_noise(tmp_path: Path) -> None:
    """An older state was restored, and the loss seems older than the payment. The payment still covers no new noise."""
    plan = private_network_plan(rounds=4)
    numbers = [0] * len(plan.private_training.names) if plan.private_training else []
    started(tmp_path, is_member=False)
    with log_of(tmp_path, 2) as log:
        PrivacyLedger(tmp_path, log).pay(plan, bytes([1]) * 32, numbers)
        assert PrivacyLedger(tmp_path, log).is_paid(plan, bytes([2]) * 32)
    restarted(tmp_path, 1, backup="then")
    with log_of(tmp_path, 1) as log:
        log.write("older_state_restored", size=7)

    (loss,) = started(tmp_path, 1.5)

    with log_of(tmp_path, 1.5) as log:
        ledger = PrivacyLedger(tmp_path, log)
        (payment,) = ledger.payments()
        assert loss.at < payment.at
        assert not ledger.is_paid(plan, bytes([2]) * 32)
        assert "is treated as spent until" in str(ledger.refuse(LIMITS, plan))
    restarted(tmp_path, 1.6)
    with log_of(tmp_path, 400) as log:  # a year later there is budget again, and a new payment covers its steps
        settle_ledger(tmp_path, log, is_member=True)
        ledger = PrivacyLedger(tmp_path, log)
        ledger.pay(plan, bytes([2]) * 32, numbers)
        assert len(ledger.payments()) == 2
        assert ledger.is_paid(plan, bytes([3]) * 32)
    restarted(tmp_path, 401)
    with log_of(tmp_path, 402) as log:
        settle_ledger(tmp_path, log, is_member=True)
        assert PrivacyLedger(tmp_path, log).is_paid(plan, bytes([3]) * 32)
