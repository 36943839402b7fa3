"""Compares this site's outcome with the plan's question and with the plan's entry for this site.

A plan with a question lists for each site whether its outcome is the same, a related or another one, so that every
hospital that reviews the plan sees who predicts something else. A contract says it of its own target. The two agree
before round 0, or the site takes no part.
"""

from __future__ import annotations

from protos.errors import ConfigurationError
from protos.plan.plan import Plan
from site_agent.trainer.data.contract import Contract


def other_answer(plan: Plan, contract: Contract, site: str) -> str | None:
    """Return how contract and plan differ about this site's outcome, in one clause; None if they agree."""
    said = {one.name: one.answers for one in plan.sites}.get(site)
    own = contract.target.answers
    if plan.question is None or said is None or said == own:
        return None
    return f"the plan says that this site predicts the {said} outcome, and the contract says: {own}"


def require_answer(plan: Plan, contract: Contract, site: str) -> None:
    """Refuse a plan that describes this site's outcome differently from its contract.

    Raises:
        ConfigurationError: they differ.
    """
    reason = other_answer(plan, contract, site)
    if reason is not None:
        raise ConfigurationError(
            what=f"This site's outcome does not match the plan's question: {reason}.",
            consequence="Nothing was trained and nothing left this site.",
            remedy="Correct `answers` of the target in the contract, or ask for a new version of the plan.",
        )
