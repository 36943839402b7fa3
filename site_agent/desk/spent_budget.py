"""Describes each payment from the patients' privacy budget: how much, for which run, when, and who approved it.

The names come from the plan that this site stores and from persons' approvals, in their files and in the audit log. The
ledger itself has no names.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from host.audit_log import AuditLog
from protos.errors import ProtocolError
from protos.plan.announced_plan import plan_from_wire
from protos.plan.methods import method_names
from protos.plan.plan import Plan
from site_agent.approvals import all_approvals
from site_agent.approving import announced_plans

_DIGITS: Final = 12  # number of characters of the plan's digest at the end of a run's name
_UNKNOWN: Final = "not known, because the plan is not stored here"
_NOBODY: Final = "not known, because no approval is stored here"


def described(payments: Sequence[dict[str, Any]], state: Path, audit: AuditLog) -> list[dict[str, Any]]:
    """Return each payment from the privacy budget as JSON: its run, who requested the plan, and who approved the plan.

    Args:
        audit: this site's log; it also has approvals whose files were replaced or lost.

    Raises:
        StoreError: the log was changed.
    """
    plans = _plans(state)
    logged = [(facts["plan"], facts["by"]) for facts in audit.records("plan_approved")]
    signed = [(one.plan_digest, each.by) for _, one in all_approvals(state) for each in one.signatures]
    approvals = [*logged, *signed]
    found = []
    for payment in payments:
        end = payment["run"][-_DIGITS:]
        names = list(dict.fromkeys(by for digest, by in approvals if digest.startswith(end)))
        plan = plans.get(end)
        found.append(
            payment
            | {
                "spent_on": _UNKNOWN if plan is None else _purpose(plan),
                "asked_by": _UNKNOWN if plan is None else _responsible(plan),
                "approved_by": names,
            }
        )
    return found


def approvers(payment: dict[str, Any]) -> str:
    """Return the names of the persons who approved the plan of a payment from the privacy budget, as text."""
    return " and ".join(payment["approved_by"]) or _NOBODY


def _plans(state: Path) -> dict[str, Plan]:
    """Return all readable plans that were announced or approved at this site, by the first digits of their digests."""
    found = {}
    for path in announced_plans(state):
        try:
            plan = plan_from_wire(path.read_bytes())
        except (OSError, ProtocolError):  # damaged or of another version; the payment is shown without its plan
            continue
        found[plan.digest.hex()[:_DIGITS]] = plan
    return found


def _purpose(plan: Plan) -> str:
    if plan.statistics is not None:
        return f"counts of {len(plan.statistics.columns)} columns"
    outcome = "" if plan.question is None else f" to predict: {plan.question.outcome}"
    return f"{' + '.join(method_names(plan.method))} on {len(plan.shared_columns)} columns{outcome}"


def _responsible(plan: Plan) -> str:
    if plan.question is None:
        return "the plan has no question"
    return f"{plan.question.responsible}, approval {plan.question.approval_number}"
