"""Approval: nothing trains unless a person has agreed to exactly this plan."""

from __future__ import annotations

import json
import os
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from protos.errors import ConfigurationError, RefusedError
from protos.plan.plan import Plan
from site_agent.approvals import Approval, approval_path, find_approval, keep_plan, require_guarded, why_not
from site_agent.approving import approve, withdraw
from tests.federation import masked_plan
from tests.rehearsal.study import made_up_identities, plan_with

PLAN = plan_with(made_up_identities())
AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
GATE, AGENT, TRAINER, APPROVER = 61001, 61002, 61003, 61004
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to others")
CHANGES: dict[str, dict[str, Any]] = {
    "version": {"version": 2},
    "seed": {"start": {"seed": 1}},
    "rounds": {"schedule": {"aggregate": "every-round", "epochs": 4, "batches_per_epoch": 1}},
    "masking": {"masking": {"required": True}},
    "clipping range": {"masking": {"clipping_range": 16.0}},
    "a site's key": {
        "sites": [
            {"name": n, "identity": i} for n, i in ({**made_up_identities(), "c": made_up_identities("d")["d"]}).items()
        ]
    },
    "deadlines": {"timing": {"grace_seconds": 1.0}},
}


@pytest.mark.parametrize(
    ("names", "wanted", "clause"),
    [
        ((), 1, "nobody here has approved exactly this plan"),
        (("A. Jones",), 2, "1 of 2 persons have approved it"),
        (("A. Jones", "a.  jones "), 2, "1 of 2 persons have approved it"),
        (("A. Jones", "B. Smith"), 2, None),
        (("A. Jones", "B. Smith"), 3, "2 of 3 persons have approved it"),
    ],
)
def test_as_many_persons_as_the_policy_wants_have_to_agree(
    tmp_path: Path, names: tuple[str, ...], wanted: int, clause: str | None
) -> None:
    """Four eyes are two names; the same name twice, however it is spelt, is one person."""
    for name in names:
        approve(tmp_path, PLAN, by=name, at=AT)

    assert why_not(find_approval(tmp_path, PLAN), approvers=wanted, now=AT) == clause


def test_an_approval_ends_when_it_was_said_to(tmp_path: Path) -> None:
    """It is valid until its end and not later, and another person's approval does not extend it."""
    end = AT + timedelta(days=30)
    approve(tmp_path, PLAN, by="A. Jones", at=AT, until=end)
    approve(tmp_path, PLAN, by="B. Smith", at=AT)
    found = find_approval(tmp_path, PLAN)

    assert why_not(found, approvers=2, now=end - timedelta(seconds=1)) is None
    assert why_not(found, approvers=2, now=end) == f"the approval by A. Jones ended at {end.isoformat()}"
    assert why_not(found, approvers=1, now=end) is None


def test_a_withdrawal_ends_every_yes_until_somebody_agrees_again(tmp_path: Path) -> None:
    """One person's withdrawal overrides any number of approvals. A later approval counts alone."""
    for name in ("A. Jones", "B. Smith"):
        approve(tmp_path, PLAN, by=name, at=AT)

    assert withdraw(tmp_path, PLAN, by="C. Brown", at=AT) is not None
    clause = f"C. Brown withdrew this site from the plan at {AT.isoformat()}"
    assert why_not(find_approval(tmp_path, PLAN), approvers=1, now=AT) == clause
    assert withdraw(tmp_path, PLAN, by="C. Brown", at=AT) is None  # there is nothing left to withdraw

    approve(tmp_path, PLAN, by="A. Jones", at=AT)
    assert why_not(find_approval(tmp_path, PLAN), approvers=1, now=AT) is None
    assert why_not(find_approval(tmp_path, PLAN), approvers=2, now=AT) == "1 of 2 persons have approved it"


def test_two_signatures_of_one_person_count_once(tmp_path: Path) -> None:
    """The gate counts persons itself, whoever wrote the file."""
    approve(tmp_path, PLAN, by="A. Jones", at=AT)
    approval = approve(tmp_path, PLAN, by="B. Smith", at=AT)
    twice = approval.model_copy(
        update={
            "signatures": tuple(
                each.model_copy(update={"by": by})
                for each, by in zip(approval.signatures, ("A. Jones", "a.  jones"), strict=True)
            )
        }
    )

    assert why_not(approval, approvers=2, now=AT) is None
    assert why_not(twice, approvers=2, now=AT) == "1 of 2 persons have approved it"


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_plan_needs_a_new_approval(tmp_path: Path, name: str) -> None:
    """After any change of a plan, the old approval does not cover it."""
    approve(tmp_path, PLAN, by="A. Jones", at=AT)
    changed: Plan = plan_with(made_up_identities(), changes=CHANGES[name])

    assert find_approval(tmp_path, changed) is None


@pytest.mark.parametrize("key", ["plan_digest", "manifest_digest"])
def test_an_approval_moved_to_another_plan_is_none(tmp_path: Path, key: str) -> None:
    """A file under the right name that speaks of another plan or manifest is no approval."""
    approve(tmp_path, PLAN, by="A. Jones", at=AT)
    (path,) = (tmp_path / "approvals").glob("*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "00" * 32}))

    assert find_approval(tmp_path, PLAN) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"by": "me"}', b"\xff", b"null"])
def test_an_approval_that_cannot_be_read_is_refused_aloud(tmp_path: Path, content: bytes) -> None:
    """An incomplete or forged file stops the site with a reason, and is no approval."""
    approve(tmp_path, PLAN, by="A. Jones", at=AT)
    (path,) = (tmp_path / "approvals").glob("*.json")
    path.write_bytes(content)

    with pytest.raises(RefusedError, match="cannot be read"):
        find_approval(tmp_path, PLAN)


def test_a_trainer_of_the_same_group_can_read_what_was_said(tmp_path: Path) -> None:
    """As services gate and trainer are other users: whatever the command's mask, their group may read and no other."""
    before = os.umask(0o077)
    try:
        approve(tmp_path, PLAN, by="A. Jones", at=AT)
        withdraw(tmp_path, PLAN, by="A. Jones", at=AT)
    finally:
        os.umask(before)

    approval = approval_path(tmp_path, PLAN)
    assert stat.S_IMODE(approval.stat().st_mode) == 0o640
    assert stat.S_IMODE((approval.parent / "plans" / approval.name).stat().st_mode) == 0o640
    assert stat.S_IMODE((approval.parent / "plans").stat().st_mode) == 0o750


def test_a_no_that_comes_while_a_yes_is_written_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A withdrawal during another person's approval comes after it, so the approval does not stand."""
    approve(tmp_path, PLAN, by="A. Jones", at=AT)
    withdrawing = threading.Thread(target=lambda: withdraw(tmp_path, PLAN, by="B. Smith", at=AT))
    waited: list[bool] = []

    def find_slowly(state: Path, plan: Plan) -> Approval | None:
        found = find_approval(state, plan)
        if threading.current_thread() is threading.main_thread():
            withdrawing.start()
            withdrawing.join(0.2)
            waited.append(withdrawing.is_alive())
        return found

    monkeypatch.setattr("site_agent.approving.find_approval", find_slowly)
    approve(tmp_path, PLAN, by="C. Doe", at=AT)
    withdrawing.join()
    monkeypatch.undo()

    found = find_approval(tmp_path, PLAN)
    assert waited == [True]
    assert found is not None
    assert found.withdrawn is not None
    assert not list(tmp_path.rglob("*.partial"))


def test_two_processes_keep_a_plan_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each writes a file of its own before it replaces the plan's, so none takes away what the other is writing."""
    replaced: list[str] = []
    replace = os.replace

    def replace_late(partial: str, target: str, **folders: int) -> None:
        replaced.append(partial)
        if len(replaced) == 1:
            keep_plan(tmp_path, PLAN)
        replace(partial, target, **folders)

    monkeypatch.setattr(os, "replace", replace_late)
    keep_plan(tmp_path, PLAN)

    assert len(set(replaced)) == 2
    assert (tmp_path / "gate" / "plans" / f"{PLAN.digest.hex()}.json").read_bytes() == PLAN.canonical


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folders as the packages make them, with an approval by root; this process is the gate's."""
    place = tmp_path / "state"
    place.mkdir(mode=0o755)
    for name, owner in (("agent", AGENT), ("gate", GATE), ("models", TRAINER)):
        (place / name).mkdir(mode=0o700)
        os.chown(place / name, owner, owner)
    approve(place, masked_plan("abc"), by="A. Jones", at=AT)
    monkeypatch.setattr(os, "geteuid", lambda: GATE)
    return place


@needs_root
def test_what_root_or_an_approvers_user_has_written_counts(state: Path) -> None:
    """Neither owner is a service, and nobody else may write."""
    require_guarded(state)
    for place in (state / "approvals", *(state / "approvals").rglob("*")):
        os.chown(place, APPROVER, APPROVER)

    require_guarded(state)


@needs_root
@pytest.mark.parametrize("owner", [GATE, AGENT, TRAINER, 65534])
@pytest.mark.parametrize("name", ["", "approvals", "approvals/plans", "approvals/*.json"])
def test_what_belongs_to_a_service_does_not_count(state: Path, owner: int, name: str) -> None:
    """Folder, file, and the folder above: the owner of any of them could have written the approval."""
    (place,) = state.glob(name) if name else [state]
    os.chown(place, owner, owner)

    with pytest.raises(ConfigurationError, match="cannot be trusted") as told:
        require_guarded(state)

    assert ("chown" in told.value.remedy, told.value.exit_status) == (True, 1)  # so the run waits
    assert "chmod" in told.value.remedy


@needs_root
@pytest.mark.parametrize("bits", [0o020, 0o002])
@pytest.mark.parametrize("name", ["", "approvals", "approvals/plans", "approvals/*.json"])
def test_what_a_group_or_others_may_write_does_not_count(state: Path, bits: int, name: str) -> None:
    """Group and others are refused alike."""
    (place,) = state.glob(name) if name else [state]
    place.chmod(place.stat().st_mode | bits)

    with pytest.raises(ConfigurationError, match="can be written by others"):
        require_guarded(state)


@needs_root
def test_a_link_in_an_approvals_place_does_not_count(state: Path, tmp_path: Path) -> None:
    """Its target may belong to anybody."""
    (tmp_path / "own.json").write_text("{}")
    (state / "approvals" / "more.json").symlink_to(tmp_path / "own.json")

    with pytest.raises(ConfigurationError, match="symbolic link"):
        require_guarded(state)
