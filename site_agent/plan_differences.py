"""Where one plan differs from another, key by key, in the order of the file; pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TypeAlias

from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan

Json: TypeAlias = str | int | float | bool | list["Json"] | dict[str, "Json"] | None
Difference: TypeAlias = tuple[str, str, str]


def plan_differences(before: Plan, after: Plan) -> tuple[Difference, ...]:
    """Each key whose value is another one, then each tensor and number that leaves under one of them only.

    Returns:
        triples of what it is, what it was and what it is now; "absent" stands for what there is not.
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
        yield f"what leaves: change of {tensor.name}", "x".join(map(str, tensor.shape))
    for scalar in manifest.scalars:
        yield f"what leaves: number {scalar.name}", f"{scalar.occasion}, at most {scalar.bound / scalar.scale:g}"


def _flat(plan: Plan) -> Iterator[tuple[str, str]]:
    content: dict[str, Json] = plan.model_dump(mode="json")
    # By name, so that a site that was added does not shift all others.
    content["sites"] = {site.name: f"{site.identity} ({site.tier})" for site in plan.sites}
    for key, value in content.items():
        yield from _leaves(key, value)


def _leaves(key: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for inner, content in value.items():
            yield from _leaves(f"{key}.{inner}", content)
    else:
        yield key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
