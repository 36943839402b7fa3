"""Records which person at this hospital approved a plan or withdrew from it. Only commands do this.

approvals.py decides which of these records permit training. The rules:

* only a person can approve. The service that runs the gate cannot write these files (approvals.py);
* if the policy requires several persons, the same name twice is one person.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from host.durable import give_to_owner, make_folder, opened_folder, replace_file
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from site_agent.approvals import Approval, Signature, Withdrawal, approval_path, find_approval, person_of
from site_agent.state_folders import approvals_folder


def approve(
    state: Path, plan: Plan, *, by: str, at: datetime, until: datetime | None = None, beside: Iterable[str] = ()
) -> Approval:
    """Record that a person approves a plan. Earlier approvals remain valid.

    After a withdrawal, earlier approvals are no longer valid.

    Args:
        by: the person's name for the audit log.
        at: an aware time.
        until: an aware time at which this approval ends; None for no end.
        beside: names of the runs whose sums the person allows beside those of this plan.
    """
    ends = None if until is None else until.isoformat(timespec="seconds")
    signature = Signature(by=by, at=at.isoformat(timespec="seconds"), until=ends, beside=tuple(beside))
    with held_approvals(state):
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
        write_decision(plans / f"{plan.digest.hex()}.json", plan.canonical)
        write_decision(approval_path(state, plan), json.dumps(approval.model_dump(), indent=2).encode())
    return approval


def withdraw(state: Path, plan: Plan, *, by: str, at: datetime) -> Approval | None:
    """Record that a person withdraws this site from a plan.

    Returns:
        the approval that is withdrawn; None if there is none.
    """
    withdrawal = Withdrawal(by=by, at=at.isoformat(timespec="seconds"))
    with held_approvals(state):
        before = find_approval(state, plan)
        if before is None or before.withdrawn:
            return None
        approval = before.model_copy(update={"withdrawn": withdrawal})
        write_decision(approval_path(state, plan), json.dumps(approval.model_dump(), indent=2).encode())
    return approval


@contextmanager
def held_approvals(state: Path) -> Iterator[None]:
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


def write_decision(path: Path, content: bytes) -> None:
    """Write a file that only persons' commands write."""
    make_folder(path.parent)
    # If the trainer runs as a service, it is another user of the folder's group and reads approvals in this folder.
    replace_file(path, content, mode=0o640)
