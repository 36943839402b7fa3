"""Tells people what they can do after this hospital's policy or budget refused a plan."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from host.audit_log import AuditLog
from protos.plan.plan import Plan
from site_agent.gate.policy import listing_refusals
from site_agent.gate.privacy_ledger import PrivacyLedger
from site_agent.hospital import Hospital


def remedy_of_refusal(hospital: Hospital, plan: Plan, *, identity: str | None, audit: AuditLog) -> str:
    """Return what a person can do after this site refused a plan: change the plan or the policy.

    Args:
        identity: the fingerprint of this site's identity key, if it has one.
        audit: this site's log, which has payments and declared restores.
    """
    ledger = PrivacyLedger(audit)
    pays = plan.privacy is not None and plan.tier_of(hospital.site) != "receiving"
    if pays and not ledger.has_paid(plan.run_name):
        until = ledger.spent_until()
        if until is not None and datetime.fromisoformat(audit.time()) < until:
            table = Path(hospital.data.table).name
            return f"No command can restore the budget of the table {table}. Wait until {until:%F}."
    if listing_refusals(plan, hospital.site, identity):
        return "Send the researcher the fingerprint that `site-agent identity` prints. The plan must list it."
    return "Agree with the researcher on another plan, or change the policy in hospital.yaml."
