"""Tells people what they can do after this hospital's policy or budget refused a plan."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from audit.log_files import FIRST_GENERATION
from audit.own_log import AuditLog
from protos.plan.plan import Plan
from site_agent.gate.ledger_memory import Loss, why_spent
from site_agent.gate.policy import listing_refusals
from site_agent.gate.privacy_ledger import PrivacyLedger
from site_agent.hospital import Hospital


def remedy_of_refusal(hospital: Hospital, plan: Plan, *, identity: str | None, audit: AuditLog) -> str:
    """Return what a person can do after this site refused a plan: restore a backup, change the plan or the policy.

    Args:
        identity: the fingerprint of this site's identity key, if it has one.
        audit: this site's log, which has losses of the privacy ledger.
    """
    ledger = PrivacyLedger(hospital.state_path, audit)
    pays = plan.privacy is not None and plan.tier_of(hospital.site) != "receiving"
    if pays and not ledger.has_paid(plan.run_name):
        losses, now = ledger.losses, datetime.fromisoformat(audit.time())
        if why_spent(losses, plan.study, now):
            is_first = audit.generation == FIRST_GENERATION
            return _after_a_loss(losses, plan.study, Path(hospital.data.table).name, is_first_log=is_first)
    if listing_refusals(plan, hospital.site, identity):
        return "Send the researcher the fingerprint that `site-agent identity` prints. The plan must list it."
    return "Agree with the researcher on another plan, or change the policy in hospital.yaml."


def _after_a_loss(losses: tuple[Loss, ...], study: str, table: str, *, is_first_log: bool) -> str:
    """Return the remedy. If the log was restarted, the coordinator has a checkpoint that is in no earlier backup."""
    is_spent = any(study in loss.studies for loss in losses)
    day = f"{max(loss.until for loss in losses):%F}"
    ends = "inform the researcher that this study gets no more budget here" if is_spent else f"wait until {day}"
    if not is_first_log:
        lost = f"Neither a command nor an earlier backup can restore the budget of the table {table}."
        return f"{lost} {ends.capitalize()}."
    restored = f"Restore the newest backup of this site. No command can restore the budget of the table {table}."
    return f"{restored} If there is no backup, {ends}."
