"""Decides whether a site may answer the sums of a plan, after the sums of other plans that it has answered.

A sum of one plan can be subtracted from a sum of another. The difference shows the sites that only one of them has, or
the sites whose numbers only one setting changes. All sums of one plan have the same contributors, so plans are compared
once, whatever their rounds. docs/privacy.md has the model. The rules:

* two plans have no contributor in common, or the same contributors and the same rule. A rule is everything that decides
  what a named site contributes besides its rows (protos/plan/contributors.py);
* sites are compared by their identity keys;
* persons at a hospital can allow one plan beside another, after they have read the difference (approvals.py).

The values behind equal rules are compared by the trainer (answered_values.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protos.masking.masking_refusals import Reason
from protos.plan.contributors import rule_of
from protos.plan.plan import Plan


@dataclass(frozen=True)
class Answer:
    """The sums of one run that this site answered.

    Attributes:
        run: a run has one plan.
        sites: its contributors, as fingerprints of their identity keys.
        rule: the digest of its rule.
    """

    run: str
    sites: frozenset[str]
    rule: str


def answer_of(plan: Plan) -> Answer:
    """Return the record of a plan's sums."""
    identities = {site.name: site.identity for site in plan.sites}
    return Answer(plan.run_name, frozenset(identities[name] for name in plan.site_names), rule_of(plan))


def why_unlike(one: Answer, other: Answer) -> Reason | None:
    """Return why the difference of two plans' sums could show few sites. Return None if it shows none."""
    if one.run == other.run or not one.sites & other.sites:
        return None
    if one.sites != other.sites:
        return Reason.OTHER_SETS
    return None if one.rule == other.rule else Reason.OTHER_RULES


def why_not_answered(answer: Answer, others: Iterable[Answer]) -> Reason | None:
    """Return why a site must not answer these sums after those of other runs. Return None if it may."""
    return next((found for other in others if (found := why_unlike(answer, other)) is not None), None)
