"""Reads which persons at this hospital approved a plan or withdrew from it, from one small file for each plan.

Nothing is trained without an approval. The gate checks the approval before it joins and before it sends each chunk.
The trainer checks it again in its own process. It returns only tensors and numbers of the approved manifest. The
rules:

* an approval is for exactly this plan and what follows from it;
* an approval can end at a time. A withdrawal ends all approvals of the plan at once;
* an approval names the runs beside whose sums those of the plan may be sent, although they can be subtracted.

Only a person's command writes these files (approving.py). This file stores announced plans for that command.

A service with write access to the folder could approve a plan itself. So gate and trainer check its permissions before
they act. If the programs run as services:

* the folder, its files and the state directory above belong to root, or to a user that runs none of the services;
* neither their group nor others can write them.

In a terminal one user runs everything and cannot satisfy these rules."""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from pydantic import AfterValidator, Field, ValidationError

from host.durable import make_folder, replace_file
from protos.errors import ConfigurationError, ProtocolError, RefusedError, UnavailableError
from protos.plan.documents import Document
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan, plan_from_wire
from site_agent.hospital import Hospital
from site_agent.state_folders import agent_folder, approvals_folder, gate_folder

MOST_UNAPPROVED: Final = 100  # stored plans
_UNKNOWN_USER: Final = 65534  # the user number that the kernel shows for users from outside this user namespace


def _aware(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError("a time without a time zone")
    return text


Moment: TypeAlias = Annotated[str, AfterValidator(_aware)]


class Signature(Document):
    """A named person's approval of a plan, with times in ISO 8601. If `until` is None, the approval has no end.

    `beside` are names of other runs. The person read what the sums of both show together, and allows it.
    """

    by: str
    at: Moment
    until: Moment | None = None
    beside: tuple[str, ...] = ()


class Withdrawal(Document):
    """A named person's withdrawal of this site from a plan that any person here had approved."""

    by: str
    at: Moment


class Approval(Document):
    """The decisions of this hospital's people about one plan and the data that it sends."""

    plan_digest: str
    manifest_digest: str
    study: str
    version: int
    signatures: tuple[Signature, ...] = Field(min_length=1)
    withdrawn: Withdrawal | None = None

    @property
    def run_name(self) -> str:
        return f"{self.study}-v{self.version}-{self.plan_digest[:12]}"


def keep_plan(state: Path, plan: Plan) -> None:
    """Store a plan that the coordinator announced, so that `site-agent review` and `approve` can read the plan.

    Of the plans that no person has approved, only the newest are kept. So announced plans do not fill the disk.
    """
    path = gate_folder(state) / "plans" / f"{plan.digest.hex()}.json"
    make_folder(path.parent)
    replace_file(path, plan.canonical, mode=0o640)
    approved = {place.name for place in approvals_folder(state).glob("*.json")}
    others = [place for place in path.parent.glob("*.json") if place.name not in approved]
    for place in sorted(others, key=lambda place: place.stat().st_mtime)[:-MOST_UNAPPROVED]:
        place.unlink()


def announced_plans(state: Path) -> list[Path]:
    """Return the paths of all plans that were announced or approved at this site, the latest last."""
    folders = (gate_folder(state) / "plans", approvals_folder(state) / "plans")
    found = (place for folder in folders for place in folder.glob("*.json") if place.is_file())
    return sorted(found, key=lambda place: place.stat().st_mtime)


def find_approval(state: Path, plan: Plan) -> Approval | None:
    """Return the approval of exactly this plan and manifest, or None. `why_not` checks if it is still valid.

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
            consequence="This site does not train under this plan, and sends nothing for this plan.",
            remedy="Remove the damaged file as root. Then review the plan, and approve the plan again with "
            "`site-agent approve`.",
        ) from cause
    wanted = (plan.digest.hex(), manifest_of(plan).digest.hex())
    return approval if (approval.plan_digest, approval.manifest_digest) == wanted else None


def why_not(approval: Approval | None, *, approvers: int, now: datetime) -> str | None:
    """Return why an approval does not permit training at an aware time. Return None if it permits training."""
    if approval is None:
        return "nobody here has approved exactly this plan"
    if approval.withdrawn is not None:
        return f"{approval.withdrawn.by} withdrew this site from the plan at {approval.withdrawn.at}"
    standing = {person_of(signature.by) for signature in approval.signatures if not _has_ended(signature, now)}
    if len(standing) >= approvers:
        return None
    if ended := [signature for signature in approval.signatures if _has_ended(signature, now)]:
        return f"the approval by {ended[-1].by} ended at {ended[-1].until}"
    return f"{len(standing)} of {approvers} persons have approved it"


def last_approved(state: Path, plan: Plan) -> tuple[Plan, Approval] | None:
    """Return the other plan of this study that was approved last at this site, or None."""
    found = [entry for entry in others_approved(state, plan) if entry[0].study == plan.study]
    return max(found, key=lambda entry: entry[1].signatures[-1].at, default=None)


def others_approved(state: Path, plan: Plan) -> list[tuple[Plan, Approval]]:
    """Return all other plans, of any study, that were approved at this site. Unreadable files are skipped."""
    digest = plan.digest.hex()
    return [(each, one) for each, one in all_approvals(state) if each is not None and one.plan_digest != digest]


def allowed_beside(state: Path, plan: Plan, approvers: int) -> frozenset[str]:
    """Return the runs that enough persons allowed beside a plan's run, in the approval of either of the two plans."""
    found = [(one.run_name, run) for _, one in _readable(state) if not one.withdrawn for run in _beside(one, approvers)]
    return frozenset(run for pair in found if plan.run_name in pair for run in pair)


def _beside(approval: Approval, approvers: int) -> list[str]:
    persons = {(person_of(signature.by), run) for signature in approval.signatures for run in signature.beside}
    return [run for run, number in Counter(run for _, run in persons).items() if number >= approvers]


def all_approvals(state: Path) -> list[tuple[Plan | None, Approval]]:
    """Return every approval with its plan, or with None if the plan is unreadable. A damaged approval is skipped."""
    found: list[tuple[Plan | None, Approval]] = []
    for path, approval in _readable(state):
        plan = None
        with suppress(OSError, ProtocolError):
            plan = plan_from_wire((path.parent / "plans" / path.name).read_bytes())
        found.append((plan, approval))
    return found


def _readable(state: Path) -> Iterator[tuple[Path, Approval]]:
    for path in sorted(approvals_folder(state).glob("*.json")):
        with suppress(OSError, ValidationError):
            yield path, Approval.model_validate_json(path.read_bytes())


def newest_version(state: Path, study: str) -> int:
    """Return the highest version of a study that was approved at this site, or 0 if no version was approved."""
    return max((one.version for _, one in _readable(state) if one.study == study), default=0)


def approval_path(state: Path, plan: Plan) -> Path:
    """Return the path of the file with the persons' decisions about a plan."""
    return approvals_folder(state) / f"{plan.digest.hex()}.json"


def person_of(name: str) -> str:
    """Return a person's name in a standard spelling, so that other capitals or blanks do not make another person."""
    return " ".join(name.split()).casefold()


def _has_ended(signature: Signature, now: datetime) -> bool:
    return signature.until is not None and now >= datetime.fromisoformat(signature.until)


def require_guarded(state: Path) -> None:
    """Check by file permissions that only a person, and no service of this site, could have written an approval.

    Raises:
        ConfigurationError: a service could have; the message has the command that corrects this.
    """
    folder = approvals_folder(state)
    if not folder.exists():
        return
    own = (agent_folder(state), gate_folder(state), state / "models")
    services = {os.geteuid(), _UNKNOWN_USER, *(one.stat().st_uid for one in own if one.exists())} - {0}
    _check(state, services, f"chown root:root {state} && chmod 0755 {state}")
    remedy = f"chown -R root:global-layers {folder} && chmod -R u=rwX,g=rX,o= {folder}"
    for place in (folder, *folder.rglob("*")):
        _check(place, services, remedy)


def guard_of(hospital: Hospital) -> Callable[[Path], None]:
    """Return the check of approvals. In a terminal it checks nothing, because one user account runs all programs."""
    return (lambda _: None) if hospital.gate_socket is None else require_guarded


def _check(place: Path, services: set[int], remedy: str) -> None:
    found = place.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise _refused(place, "is a symbolic link", f"remove {place}, approve again")
    if found.st_uid in services or found.st_mode & 0o022:
        by_others = f"can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
        raise _refused(place, "belongs to a service" if found.st_uid in services else by_others, f"run `{remedy}`")


def _refused(place: Path, reason: str, remedy: str) -> ConfigurationError:
    error = ConfigurationError(
        what=f"{place} {reason}, so the approvals in it cannot be trusted.",
        consequence="Nothing is trained and nothing is sent. The run waits for this site.",
        remedy=f"As root, {remedy}, then `systemctl start site-trainer site-gate site-agent`.",
        code="E032",
    )
    error.exit_status = UnavailableError.exit_status  # so the services try again
    return error
