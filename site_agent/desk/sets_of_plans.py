"""Compares a plan with earlier plans: lists all differences, and the sites whose contributions both sums would reveal.

Sums of two plans can be subtracted if their sites are not the same (docs/privacy.md). The gate refuses such sums
unless the policy excludes the earlier run. With this page a person learns it before the run, with the sites' names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from site_agent.desk.plan_review import Section, largest

_HEADING = "Sums of this plan and of others"


def compared_with_others(plan: Plan, others: Iterable[Plan], uncounted: Iterable[str]) -> Section | None:
    """Return a section that compares a plan's sites with those of plans approved before. None if they are equal.

    Args:
        others: every other plan that was ever approved here, of any study.
        uncounted: the runs that the policy excludes.
    """
    counted = (other for other in others if other.run_name not in set(uncounted))
    sentences = tuple(line for other in counted for line in _difference(plan, other))
    return Section(_HEADING, sentences) if sentences else None


def _difference(plan: Plan, other: Plan) -> Iterator[str]:
    if not (plan.masking.required and other.masking.required):
        return
    mine, theirs = _contributors(plan), _contributors(other)
    apart = sorted({(mine | theirs)[key] for key in mine.keys() ^ theirs.keys()})
    if apart:
        yield (
            f"The plan {other.run_name} was approved here before, and it has other sites. Only one of the two plans "
            f"has these sites: {', '.join(apart)}. A person who has the sums of both plans can subtract the sums, and "
            "so compute what these sites contributed. This site takes part in both plans only if "
            f"uncounted_runs in hospital.yaml lists {other.run_name}."
        )


def _contributors(plan: Plan) -> dict[str, str]:
    """Return the names of the sites that train in a plan, by the fingerprints of their identity keys."""
    return {site.identity: site.name for site in plan.sites if site.tier == "training"}


Json: TypeAlias = str | int | float | bool | list["Json"] | dict[str, "Json"] | None
Difference: TypeAlias = tuple[str, str, str]


def plan_differences(before: Plan, after: Plan) -> tuple[Difference, ...]:
    """Return the differences between two plans: changed settings, and tensors and numbers that only one of them sends.

    Returns:
        triples of the subject, the earlier value and the present value; "absent" means that there is none.
    """
    old, new = dict(_flat(before)), dict(_flat(after))
    keys = dict.fromkeys((*old, *new))
    found = [(key, old.get(key, "absent"), new.get(key, "absent")) for key in keys if old.get(key) != new.get(key)]
    was, now = dict(_leaving(before)), dict(_leaving(after))
    names = dict.fromkeys((*was, *now))
    found += [(n, was.get(n, "absent"), now.get(n, "absent")) for n in names if was.get(n) != now.get(n)]
    return tuple(found)


def _leaving(plan: Plan) -> Iterator[tuple[str, str]]:
    manifest = manifest_of(plan)
    for tensor in manifest.tensors:
        yield f"what is sent: update of {tensor.name}", "x".join(map(str, tensor.shape))
    for scalar in manifest.scalars:
        yield f"what is sent: number {scalar.name}", f"{scalar.occasion}, at most {largest(scalar)}"


def _flat(plan: Plan) -> Iterator[tuple[str, str]]:
    content: dict[str, Json] = plan.model_dump(mode="json")
    # Sites are compared by name, because an added site would shift their positions.
    content["sites"] = {site.name: f"{site.identity} ({site.tier})" for site in plan.sites}
    for key, value in content.items():
        yield from _leaves(key, value)


def _leaves(key: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for inner, content in value.items():
            yield from _leaves(f"{key}.{inner}", content)
    else:
        yield key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
