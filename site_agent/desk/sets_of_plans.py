"""What a person who approves reads about plans that were approved here before: whose contribution could be computed.

Sums of two plans can be subtracted if their sites are not the same (docs/design/sets.md). The gate refuses such sums
unless a budget allows them. Here a person reads it before the run, with the sites' names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from protos.plan.plan import Plan
from site_agent.desk.plan_review import Section

_HEADING = "Sums of this plan and of others"


def compared_with_others(plan: Plan, others: Iterable[Plan], uncounted: Iterable[str]) -> Section | None:
    """How the sites of a plan differ from those of plans that were approved here before; None if nowhere.

    Args:
        plan: to be approved.
        others: every other plan that was ever approved here, whatever its study.
        uncounted: the runs that the policy leaves out.
    """
    counted = (other for other in others if other.run_name not in set(uncounted))
    sentences = tuple(line for other in counted for line in _difference(plan, other))
    return Section(_HEADING, sentences) if sentences else None


def _difference(plan: Plan, other: Plan) -> Iterator[str]:
    if {plan.secure_aggregation, other.secure_aggregation} != {"required"}:
        return
    mine, theirs = _contributors(plan), _contributors(other)
    apart = sorted({(mine | theirs)[key] for key in mine.keys() ^ theirs.keys()})
    if apart:
        yield (
            f"The plan {other.run_name} has other sites; the difference is {', '.join(apart)}. Whoever has sums of "
            "both can subtract them and compute what these sites contributed. This site refuses to mask for both, "
            "unless lost_site_budget or uncounted_runs in hospital.yaml allow it."
        )


def _contributors(plan: Plan) -> dict[str, str]:
    """The names of the sites that train, by their identity keys' fingerprints."""
    return {site.identity: site.name for site in plan.sites if site.name not in plan.evaluating_sites}
