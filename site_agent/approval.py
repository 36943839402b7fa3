"""Who at this hospital agreed to which plan: one small file per plan's digest.

Nothing trains without it. The agent asks before it joins; the trainer, in its own process, asks again
and hands out only what the approved manifest names.
"""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from protos.documents import Document
from protos.errors import RefusedError
from protos.manifest import manifest_of
from protos.plan import Plan


class Approval(Document):
    """A named person's yes to a plan and to what leaves under it."""

    plan_digest: str
    manifest_digest: str
    study: str
    by: str
    at: str


def approve(state: Path, plan: Plan, *, by: str, at: datetime) -> Approval:
    """Record that a person agrees to a plan.

    Args:
        state: the site's state directory.
        plan: what the person has read.
        by: the person's name as it shall stand in the audit log.
        at: an aware time.
    """
    approval = Approval(
        plan_digest=plan.digest.hex(),
        manifest_digest=manifest_of(plan).digest.hex(),
        study=plan.study,
        by=by,
        at=at.isoformat(timespec="seconds"),
    )
    _write(_path(state, plan), json.dumps(approval.model_dump(), indent=2).encode())
    return approval


def keep_plan(state: Path, plan: Plan) -> None:
    """Put an announced plan where `site-agent review` and `approve` find it by its digest."""
    _write(state / "plans" / f"{plan.digest.hex()}.json", plan.canonical)


def find_approval(state: Path, plan: Plan) -> Approval | None:
    """The approval of exactly this plan and manifest, or None.

    Raises:
        RefusedError: there is a file in its place that is no approval.
    """
    try:
        approval = Approval.model_validate_json(_path(state, plan).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as cause:
        raise RefusedError(
            what=f"The approval of the plan {plan.study} cannot be read.",
            consequence="Nothing left this site.",
            remedy="Look at the plan again and approve it anew with `site-agent approve`.",
        ) from cause
    wanted = (plan.digest.hex(), manifest_of(plan).digest.hex())
    return approval if (approval.plan_digest, approval.manifest_digest) == wanted else None


def _path(state: Path, plan: Plan) -> Path:
    return state / "approvals" / f"{plan.digest.hex()}.json"


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
