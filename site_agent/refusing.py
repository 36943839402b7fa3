"""Records that a person refused a plan, and lists the plans that persons can decide about.

A refusal changes nothing, because training needs an approval anyway.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from host.durable import make_folder
from protos.plan.documents import Document
from protos.plan.plan import Plan
from site_agent.approvals import Moment
from site_agent.approving import write_decision
from site_agent.state_folders import approvals_folder, gate_folder


class Refusal(Document):
    """A named person's refusal of a plan that nobody here has approved, with the reason."""

    plan_digest: str
    by: str
    at: Moment
    because: str


def refuse(state: Path, plan: Plan, *, by: str, at: datetime, because: str) -> None:
    """Record that a person refuses a plan. Nothing else changes, because training needs an approval anyway."""
    when = at.isoformat(timespec="seconds")
    refusal = Refusal(plan_digest=plan.digest.hex(), by=by, at=when, because=because)
    place = _refusal_path(state, plan)
    make_folder(place.parent, mode=0o750)
    write_decision(place, json.dumps(refusal.model_dump(), indent=2).encode())


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
