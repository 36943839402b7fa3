"""Decides whether a site may answer the sums of a plan, after the sums of other plans that it has answered.

A sum of one plan can be subtracted from a sum of another, and the difference shows the sites in which they differ. All
sums of one plan have the same contributors, so plans are compared once, whatever their rounds. docs/privacy.md has
the model. The rules, for each kind of number by itself (updates, figures, each column that only some sites record):

* a sum has at least the smallest set of sites;
* two plans have the same contributors, or no contributor in common. Then no combination of their sums has fewer sites
  than each sum itself;
* sites are compared by their identity keys. Their names may differ between plans;
* a hospital can exclude an earlier run by its name (`uncounted_runs`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from protos.masking.masking_refusals import Reason
from protos.plan.contributors import kinds_of
from protos.plan.plan import Plan

Kinds: TypeAlias = frozenset[tuple[str, frozenset[str]]]


@dataclass(frozen=True)
class Answer:
    """The sums of one run that this site answered.

    Attributes:
        run: a run has one plan.
        kinds: for each kind of number its contributors, as fingerprints of their identity keys.
    """

    run: str
    kinds: Kinds


def answer_of(plan: Plan) -> Answer:
    """Return the record of a plan's sums. A kind of number to which nobody contributes is left out."""
    identities = {site.name: site.identity for site in plan.sites}
    kinds = ((kind, frozenset(identities[name] for name in names)) for kind, names in kinds_of(plan).items() if names)
    return Answer(plan.run_name, frozenset(kinds))


def why_not_answered(answer: Answer, others: Iterable[Answer], smallest: int) -> Reason | None:
    """Return why a site must not answer these sums after those of other runs. Return None if it may.

    Args:
        smallest: the fewest sites that any combination of sums may have.
    """
    if any(len(sites) < smallest for _, sites in answer.kinds):
        return Reason.TOO_FEW_FOR_A_NUMBER
    mine, theirs = dict(answer.kinds), (entry for other in others for entry in other.kinds)
    if any(mine.get(kind, sites) != sites and mine[kind] & sites for kind, sites in theirs):
        return Reason.OTHER_SETS
    return None
