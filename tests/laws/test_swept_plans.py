"""One approval covers all alternatives of a sweep, so all of them send the same numbers in the same rounds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from protos.plan.exchange import Exchange, Exchanges, pack_layers, stage_at
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from tests.laws.catalogue import NAMES, SITES, catalogue_plan

OTHERS = (0.5, 2.0, 10.0)
# local sends nothing. Each run of fedlp draws its own layers, and no alternative may change the probability.
EXCEPT = ("local", "fedlp", "ditto + fedlp")


def numbers_in(value: Any, path: str) -> Iterator[tuple[str, float]]:
    """Every number of a part of a plan, with the key that a sweep names it by."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_in(inner, f"{path}.{name}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, value


def exchanges_of(plan: Plan) -> list[Exchange]:
    """The values sent in each round, with all layers where the coordinator chooses among them."""
    manifest = manifest_of(plan)
    exchanges, found = Exchanges(plan, manifest), []
    for number in range(plan.rounds):
        stage = stage_at(plan, number)
        assert stage is not None
        for layers in (b"", pack_layers((True,) * len(manifest.layers))):
            try:
                found.append(exchanges.of(number, stage, layers))
            except ValueError:
                continue
    return found


@pytest.mark.parametrize("name", [name for name in NAMES if name not in EXCEPT])
def test_no_alternative_sends_other_numbers(name: str) -> None:
    """Every number of the method, the optimiser and the loss is swept: the plan refuses it, or nothing else leaves."""
    usual = catalogue_plan(name, checkpoint="global", quorum=len(SITES))
    accepted = 0
    for section in ("method", "optimiser", "loss"):
        for key, value in numbers_in(json.loads(usual.canonical)[section], section):
            for factor in OTHERS:
                sweep = {"keys": [key], "alternatives": [[value], [value * factor or factor]]}
                content = json.loads(usual.canonical) | {"sweep": sweep}
                try:
                    plan = Plan.model_validate_json(json.dumps(content))
                except ValidationError:
                    continue
                accepted += 1
                first, second = map(exchanges_of, plan.alternatives)
                assert first == second, key
    assert accepted
