"""Records which person at this hospital approved or refused a plan, or withdrew from it. Only commands do this.

approvals.py decides which of these records permit training. The rules:

* only a person can approve. The service that runs the gate cannot write these files (approvals_guard.py);
* if the policy requires several persons, the same name twice is one person.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from host.durable import give_to_owner, make_folder, opened_folder, replace_file
from protos.plan.documents import Document
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from site_agent.approvals import Approval, Moment, Signature, Withdrawal, approval_path, find_approval, person_of
from site_agent.state_folders import approvals_folder, gate_folder


class Refusal(Document):
    """A named person's refusal of a plan that nobody here has approved, with the reason."""

    plan_digest: str
    by: str
    at: Moment
    because: str


def approve(state: Path, plan: Plan, *, by: str, at: datetime, until: datetime | None = None) -> Approval:
    """Record that a person approves a plan. Earlier approvals remain valid.

    After a withdrawal, earlier approvals are no longer valid.

    Args:
        by: the person's name for the audit log.
        at: an aware time.
        until: an aware time at which this approval ends; None for no end.
    """
    ends = None if until is None else until.isoformat(timespec="seconds")
    signature = Signature(by=by, at=at.isoformat(timespec="seconds"), until=ends)
    with _held(state):
        before = find_approval(state, plan)
        kept = () if before is None or before.withdrawn else before.signatures
        others = tuple(each for each in kept if person_of(each.by) != person_of(signature.by))
        approval = Approval(
            plan_digest=plan.digest.hex(),
            manifest_digest=manifest_of(plan).digest.hex(),
            study=plan.study,
            version=plan.version,
            signatures=(*others, signature),
        )
        plans = approvals_folder(state) / "plans"
        # If the gate runs as a service, it is another user of the same group and reads plans in this folder.
        make_folder(plans, mode=0o750)
        _write(plans / f"{plan.digest.hex()}.json", plan.canonical)
        _write(approval_path(state, plan), json.dumps(approval.model_dump(), indent=2).encode())
    return approval


def withdraw(state: Path, plan: Plan, *, by: str, at: datetime) -> Approval | None:
    """Record that a person withdraws this site from a plan.

    Returns:
        the approval that is withdrawn; None if there is none.
    """
    withdrawal = Withdrawal(by=by, at=at.isoformat(timespec="seconds"))
    with _held(state):
        before = find_approval(state, plan)
        if before is None or before.withdrawn:
            return None
        approval = before.model_copy(update={"withdrawn": withdrawal})
        _write(approval_path(state, plan), json.dumps(approval.model_dump(), indent=2).encode())
    return approval


def refuse(state: Path, plan: Plan, *, by: str, at: datetime, because: str) -> None:
    """Record that a person refuses a plan. Nothing else changes, because training needs an approval anyway."""
    when = at.isoformat(timespec="seconds")
    refusal = Refusal(plan_digest=plan.digest.hex(), by=by, at=when, because=because)
    place = _refusal_path(state, plan)
    make_folder(place.parent, mode=0o750)
    _write(place, json.dumps(refusal.model_dump(), indent=2).encode())


def announced_plans(state: Path) -> list[Path]:
    """Return the paths of all plans that were announced or approved at this site, the latest last."""
    folders = (gate_folder(state) / "plans", approvals_folder(state) / "plans")
    found = (place for folder in folders for place in folder.glob("*.json") if place.is_file())
    return sorted(found, key=lambda place: place.stat().st_mtime)


def find_refusal(state: Path, plan: Plan) -> Refusal | None:
    """Return the last refusal of this plan, or None.

    A damaged file counts as no refusal, because a refusal changes nothing.
    """
    try:
        refusal = Refusal.model_validate_json(_refusal_path(state, plan).read_bytes())
    except (OSError, ValidationError):
        return None
    return refusal if refusal.plan_digest == plan.digest.hex() else None


def _refusal_path(state: Path, plan: Plan) -> Path:
    return approvals_folder(state) / "refused" / f"{plan.digest.hex()}.json"


@contextmanager
def _held(state: Path) -> Iterator[None]:
    """Lock this site's approvals, so that two processes cannot change them at the same time."""
    folder = approvals_folder(state)
    make_folder(folder)
    with opened_folder(folder) as opened:
        # O_NONBLOCK, because the service's user could have put a pipe at this path. To open a pipe could wait forever.
        flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(".lock", flags, 0o644, dir_fd=opened)
        give_to_owner(descriptor, opened)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes) -> None:
    make_folder(path.parent)
    # If the trainer runs as a service, it is another user of the folder's group and reads approvals in this folder.
    replace_file(path, content, mode=0o640)
