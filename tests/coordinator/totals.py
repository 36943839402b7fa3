"""Sums of made-up rounds, from real numbers: what a coordinator holds when a round closes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from protos.numbers.fixed_point import FixedPoint
from protos.numbers.round_sums import Sums
from protos.plan.exchange import Exchanges, pack_layers, stage_at
from protos.plan.manifest import manifest_of
from protos.plan.plan import Plan
from protos.wire.messages import Stage
from tests.plan_changes import few_sites_are_enough
from tests.rehearsal.study import made_up_identities, plan_with


def plan_of(method: Mapping[str, Any], *, parameters: int = 4, sites: str = "ab", **changes: Any) -> Plan:
    """A plan with layers "first" (3 numbers) and "second" (the rest), for this number of sites, in the clear."""
    keys = {"method": dict(method)} | changes
    with few_sites_are_enough():
        return plan_with(made_up_identities(sites), parameters=parameters, changes=keys)


def sums_of(
    plan: Plan,
    totals: npt.ArrayLike = (),
    scalars: Mapping[str, int] | None = None,
    *,
    number: int = 0,
    stage: Stage | None = None,
    layers: tuple[bool, ...] = (),
    contributors: int | None = None,
) -> Sums:
    """The sums of a round in which the weighted updates of all sites add up to `totals`, exactly."""
    due = stage_at(plan, number) if stage is None else stage
    assert due is not None
    exchange = Exchanges(plan, manifest_of(plan)).of(number, due, pack_layers(layers))
    scale = FixedPoint(plan.masking.clipping_range, len(plan.sites)).scale
    updates = (np.asarray(totals, np.float64) * scale).astype(np.int32)
    assert updates.size == exchange.layout.parameters
    given = dict.fromkeys((scalar.name for scalar in exchange.scalars), 0) | dict(scalars or {})
    assert set(given) == {scalar.name for scalar in exchange.scalars}
    return Sums(exchange=exchange, contributors=contributors or len(plan.sites), updates=updates, scalars=given)
