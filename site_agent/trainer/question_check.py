"""Whether this site's outcome answers the plan's question as the plan says of this site.

A plan with a question lists for each site whether its outcome is the same, a related or another one, so that every
hospital that reviews the plan sees who predicts something else. A contract says it of its own target. The two agree
before round 0, or the site takes no part.
"""

from __future__ import annotations

from protos.errors import ConfigurationError
from protos.plan.plan import Plan
from site_agent.trainer.data.contract import Contract


def other_answer(plan: Plan, contract: Contract, site: str) -> str | None:
    """How contract and plan differ about this site's outcome, in one clause; None where they agree."""
    said = {one.name: one.answers for one in plan.sites}.get(site)
    own = contract.target.answers
    if plan.question is None or said is None or said == own:
        return None
    return f"the plan says that this site predicts the {said} outcome, and the contract says: {own}"


def require_answer(plan: Plan, contract: Contract, site: str) -> None:
    """Refuse a plan that says something else of this site's outcome than its contract.

    Raises:
        ConfigurationError: they differ.
    """
    reason = other_answer(plan, contract, site)
    if reason is not None:
        raise ConfigurationError(
            what=f"This site's outcome and the plan's question differ: {reason}.",
            consequence="Nothing was trained and nothing left this site.",
            remedy="Correct `answers` of the target in the contract, or ask for a new version of the plan.",
        )
