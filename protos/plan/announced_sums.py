"""Computes shared parameters from the announced sum of a round. Sites do the same as the coordinator.

A sum has `bits` bits for each number, and parameters have 32. So a site that has the parameters of a round receives
only the sum of this round, and applies the server rule itself. It then compares the digest of the parameters with the
announced one. With 32 bits nothing would be gained. Server rules with a state (adaptive ones, control variates) and
private training send the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from protos.numbers.round_sums import Sums
from protos.numbers.short_integers import WIDTHS, Integers, unpack_exponents
from protos.plan.exchange import Exchange
from protos.plan.ingredients import Mean
from protos.plan.manifest import ROWS, Manifest
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.server_rules import Float32, apply_rule
from protos.plan.weighting import RowWeights
from protos.wire.messages import MalformedMessage, Stage


@dataclass(frozen=True)
class Received:
    """The parameters of one round at a site: the round, its exchange and scales, and float32 of (down numbers,)."""

    round: int
    exchange: Exchange
    scales: bytes
    values: Float32 = field(repr=False)


def sums_go_down(plan: Plan) -> bool:
    """Return whether sums can be sent in place of the parameters that follow from them."""
    return isinstance(plan, NetworkPlan) and plan.bits != 32 and isinstance(plan.ingredients.server_rule, Mean)


def sum_goes_down(plan: Plan, exchange: Exchange) -> bool:
    """Return whether the sum of a round with this exchange can be sent."""
    is_whole = bool(exchange.up) and exchange.down == exchange.up
    return sums_go_down(plan) and exchange.stage is Stage.TRAINING and is_whole


def sum_bytes(exchange: Exchange) -> int:
    """Return the size of the sum of a round that `sum_goes_down` allows."""
    return exchange.layout.width * exchange.updates


def parameters_after(
    plan: Plan, manifest: Manifest, before: Received, announced: npt.NDArray[np.uint8], summed_rows: int
) -> Float32:
    """Return the parameters that follow from a round and its sum. They take the place of the values before.

    Args:
        announced: the sum, uint8 of shape (`sum_bytes`,).
        summed_rows: of the sites, under a plan with weights by rows.

    Raises:
        MalformedMessage: the plan has no such sum.
    """
    if not isinstance(plan, NetworkPlan) or not sum_goes_down(plan, before.exchange):
        raise MalformedMessage("a sum in place of parameters")
    if isinstance(plan.weighting, RowWeights) != bool(summed_rows):
        raise MalformedMessage("a sum with other weights than the plan's")
    updates: Integers = announced.view(WIDTHS[plan.bits])
    sums = Sums(
        exchange=before.exchange,
        contributors=plan.training_count,
        updates=updates,
        scalars={ROWS: summed_rows},
        exponents=unpack_exponents(before.scales),
    )
    apply_rule(plan, replace(manifest, tensors=before.exchange.up), sums, before.values, {})
    return before.values
