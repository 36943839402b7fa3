"""Stores who at this hospital approved or refused a plan, or withdrew from it: one small file for each plan.

Nothing is trained without an approval. The gate checks the approval before it joins and before it sends each chunk.
The trainer checks it again in its own process. It returns only tensors and numbers of the approved manifest. The
rules:

* only a person can approve. An approval is for exactly this plan and what follows from it;
* an approval can end at a time. A withdrawal ends all approvals of the plan at once;
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
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, Field, ValidationError

from host.durable import give_to_owner, make_folder, opened_folder, replace_file
from protos.errors import ProtocolError, RefusedError
from protos.plan.announced_plan import plan_from_wire
from protos.plan.documents import Document
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from site_agent.state_folders import approvals_folder, gate_folder


def _aware(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time without a time zone")
    return text


Moment: TypeAlias = Annotated[str, AfterValidator(_aware)]


class Signature(Document):
    """A named person's approval of a plan, with times in ISO 8601. If `until` is None, the approval has no end."""

    by: str
    at: Moment
    until: Moment | None = None


class Withdrawal(Document):
    """A named person's withdrawal of this site from a plan that any person here had approved."""

    by: str
    at: Moment


class Refusal(Document):
    """A named person's refusal of a plan that nobody here has approved, with the reason."""

    plan_digest: str
    by: str
    at: Moment
    because: str


class Approval(Document):
    """The decisions of this hospital's people about one plan and the data that it sends."""

    plan_digest: str
    manifest_digest: str
    study: str
    version: int
    signatures: tuple[Signature, ...] = Field(min_length=1)
    withdrawn: Withdrawal | None = None

    @property
    def names(self) -> str:
        """Return the names of all persons who approved, joined as in a sentence."""
        return " and ".join(signature.by for signature in self.signatures)


def approve(state: Path, plan: Plan, *, by: str, at: datetime, until: datetime | None = None) -> Approval:
    """Record that a person approves a plan and its sweep's alternatives. Earlier approvals stay valid until withdrawn.

    `at` and `until` are aware times. Without `until` the approval has no end.
    """
    ends = None if until is None else until.isoformat(timespec="seconds")
    signature = Signature(by=by, at=at.isoformat(timespec="seconds"), until=ends)
    with _held(state):
        approvals = {each.digest: _approve(state, each, signature) for each in plan.alternatives}
    return approvals[plan.digest]


def _approve(state: Path, plan: Plan, signature: Signature) -> Approval:
    before = find_approval(state, plan)
    kept = () if before is None or before.withdrawn else before.signatures
    others = tuple(each for each in kept if not _is_same_person(each.by, signature.by))
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
    """Record that a person withdraws this site from a plan, with all alternatives of its sweep.

    Returns:
        the approval that is withdrawn; None if there is none.
    """
    withdrawal = Withdrawal(by=by, at=at.isoformat(timespec="seconds"))
    with _held(state):
        withdrawn = {each.digest: _withdraw(state, each, withdrawal) for each in plan.alternatives}
    return withdrawn[plan.digest]


def _withdraw(state: Path, plan: Plan, withdrawal: Withdrawal) -> Approval | None:
    before = find_approval(state, plan)
    if before is None or before.withdrawn:
        return None
    approval = before.model_copy(update={"withdrawn": withdrawal})
    _write(approval_path(state, plan), json.dumps(approval.model_dump(), indent=2).encode())
    return approval


def refuse(state: Path, plan: Plan, *, by: str, at: datetime, because: str) -> None:
    """Record that a person refuses a plan. Nothing else changes, because only an approval permits training."""
    when = at.isoformat(timespec="seconds")
    refusal = Refusal(plan_digest=plan.digest.hex(), by=by, at=when, because=because)
    place = _refusal_path(state, plan)
    make_folder(place.parent, mode=0o750)
    _write(place, json.dumps(refusal.model_dump(), indent=2).encode())


def keep_plan(state: Path, plan: Plan) -> None:
    """Store an announced plan so that `site-agent review` and `approve` find it by its digest."""
    _write(gate_folder(state) / "plans" / f"{plan.digest.hex()}.json", plan.canonical)


def announced_plans(state: Path) -> list[Path]:
    """Return the files of all plans that were announced or approved at this site, the latest last."""
    folders = (gate_folder(state) / "plans", approvals_folder(state) / "plans")
    found = (place for folder in folders for place in folder.glob("*.json") if place.is_file())
    return sorted(found, key=lambda place: place.stat().st_mtime)


def find_approval(state: Path, plan: Plan) -> Approval | None:
    """Return the approval of exactly this plan and manifest, or None. `why_not` checks whether it is still valid.

    Raises:
        RefusedError: the file exists but is not an approval.
    """
    place = approval_path(state, plan)
    try:
        approval = Approval.model_validate_json(place.read_bytes())
    except FileNotFoundError:
        return None
    except (IsADirectoryError, ValidationError) as cause:
        raise RefusedError(
            what=f"The approval of the plan {plan.study} cannot be read: the file {place} is damaged.",
            consequence="No training uses this plan, and nothing is sent for this plan.",
            remedy="Remove this file as root. Then review the plan, and approve the plan again with `site-agent "
            "approve`.",
        ) from cause
    wanted = (plan.digest.hex(), manifest_of(plan).digest.hex())
    return approval if (approval.plan_digest, approval.manifest_digest) == wanted else None


def find_refusal(state: Path, plan: Plan) -> Refusal | None:
    """Return the last refusal of this plan, or None, also if it is damaged: a refusal changes nothing."""
    try:
        refusal = Refusal.model_validate_json(_refusal_path(state, plan).read_bytes())
    except (OSError, ValidationError):
        return None
    return refusal if refusal.plan_digest == plan.digest.hex() else None


def why_not(approval: Approval | None, *, approvers: int, now: datetime) -> str | None:
    """Return why an approval does not permit training at an aware time, as part of a sentence; None if it does."""
    if approval is None:
        return "nobody here has approved exactly this plan"
    if approval.withdrawn is not None:
        return f"{approval.withdrawn.by} withdrew this site from the plan at {approval.withdrawn.at}"
    standing = [signature for signature in approval.signatures if not _has_ended(signature, now)]
    if len(standing) >= approvers:
        return None
    ended = [signature for signature in approval.signatures if _has_ended(signature, now)]
    if ended:
        return f"the approval by {ended[-1].by} ended at {ended[-1].until}"
    return f"{len(standing)} of {approvers} persons have approved it"


def last_approved(state: Path, plan: Plan) -> tuple[Plan, Approval] | None:
    """Return the plan of the same study that was approved last, except for this plan, or None.

    An unreadable file is skipped, because it cannot be compared. Alternatives of one sweep are one plan.
    """
    alike = {each.digest for each in plan.alternatives}
    others = (entry for entry in others_approved(state, plan) if entry[0].digest not in alike)
    found = [entry for entry in others if entry[0].study == plan.study]
    return max(found, key=lambda entry: entry[1].signatures[-1].at) if found else None


def others_approved(state: Path, plan: Plan) -> list[tuple[Plan, Approval]]:
    """Return every other plan of any study that was approved at this site. Unreadable files are skipped."""
    digest = plan.digest.hex()
    return [(each, one) for each, one in all_approvals(state) if each is not None and one.plan_digest != digest]


def all_approvals(state: Path) -> list[tuple[Plan | None, Approval]]:
    """Return every approval with its plan. If the plan is unreadable, it is None. A damaged approval is skipped."""
    found: list[tuple[Plan | None, Approval]] = []
    for path in sorted(approvals_folder(state).glob("*.json")):
        try:
            approval = Approval.model_validate_json(path.read_bytes())
        except (OSError, ValidationError):
            continue
        try:
            plan = plan_from_wire((approvals_folder(state) / "plans" / path.name).read_bytes())
        except (OSError, ProtocolError):
            plan = None
        found.append((plan, approval))
    return found


def newest_version(state: Path, study: str) -> int:
    """Return the highest version of a study that was approved at this site, or 0 if no version was approved."""
    return max((one.version for _, one in all_approvals(state) if one.study == study), default=0)


def approval_path(state: Path, plan: Plan) -> Path:
    """Return the file with the decisions about a plan."""
    return approvals_folder(state) / f"{plan.digest.hex()}.json"


def _refusal_path(state: Path, plan: Plan) -> Path:
    return approvals_folder(state) / "refused" / f"{plan.digest.hex()}.json"


def _is_same_person(one: str, other: str) -> bool:
    return " ".join(one.split()).casefold() == " ".join(other.split()).casefold()


def _has_ended(signature: Signature, now: datetime) -> bool:
    return signature.until is not None and now >= datetime.fromisoformat(signature.until)


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
