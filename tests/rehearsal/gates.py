"""A gate in the clear for a plan that a person has approved, under a policy that allows everything."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from host.audit_log import AuditLog
from protos.plan.manifest import manifest_of
from protos.plan.methods import METHOD_NAMES
from protos.plan.plan import Plan
from site_agent.approving import approve
from site_agent.gate.consent import Consent
from site_agent.gate.door import Gate
from site_agent.gate.permission import Allowance
from site_agent.gate.site_masking import SiteMasking
from site_agent.gate.spent import Spent
from site_agent.hospital import Policy

NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def policy_with(**rules: Any) -> Policy:
    """A policy that allows what is not named here."""
    anything: dict[str, Any] = {
        "methods": METHOD_NAMES,
        "secure_aggregation": "not-required",
        "smallest_sites": 1,
        "largest_rounds": 1000,
        "largest_megabytes": 1000.0,
        "largest_clipping_range": 1024.0,
        "smallest_cell": 1,
    }
    return Policy.model_validate_json(json.dumps(anything | rules))


def gate_for(
    plan: Plan,
    audit: AuditLog,
    state: Path,
    *,
    policy: Policy | None = None,
    masking: SiteMasking | None = None,
    now: Callable[[], datetime] = lambda: NOON,
    released: Iterable[Mapping[str, Any]] = (),
    site: str = "a",
    spent: Spent | None = None,
) -> Gate:
    """The gate of site a; `state` holds the approval."""
    approve(state, plan, by="A. Jones", at=NOON)
    rules = policy or policy_with()
    allowance = Allowance(rules, plan, site=site, released=released, spent=spent)
    consent = Consent(state, plan, approvers=rules.approvers, now=now)
    return Gate("run", plan, manifest_of(plan), audit=audit, masking=masking, allowance=allowance, consent=consent)
