"""Computes what a plan with short integers sends: the scale of each layer, and sums in the place of parameters.

The coordinator computes the scales from the sums and announces them. A gate checks that the first ones are the plan's,
and that later ones grow by few steps a round.

A sum has `bits` bits for each number, and parameters have 32. So a site that has the parameters of a round receives
only the sum of this round, applies the server rule itself, and compares the digest of the parameters with the announced
one. Server rules with a state (adaptive ones, control variates) and private training send the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from protos.numbers.round_sums import Sums
from protos.numbers.short_integers import WIDTHS, Integers, first_exponent, most_after, next_exponent, unpack_exponents
from protos.plan.architecture import TensorSpec
from protos.plan.exchange import Exchange
from protos.plan.ingredients import Mean
from protos.plan.manifest import ROWS, Manifest, slices_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan
from protos.plan.server_rules import Float32, apply_rule
from protos.plan.weighting import RowWeights
from protos.wire.messages import MalformedMessage, Stage


def layer_parts(tensors: tuple[TensorSpec, ...]) -> Iterator[tuple[str, slice]]:
    """Yield the parts of a vector that joins these tensors: each the name of a layer, and its slice.

    A layer whose tensors are not adjacent has several parts.
    """
    before: tuple[str, slice] | None = None
    for tensor, part in zip(tensors, slices_of(tensors), strict=True):
        if before is not None and before[0] == tensor.layer:
            part = slice(before[1].start, part.stop)
        elif before is not None:
            yield before
        before = (tensor.layer, part)
    if before is not None:
        yield before


def first_exponents(plan: Plan, manifest: Manifest) -> tuple[int, ...]:
    """Return the exponents of the first round, one for each of the manifest's layers. It is empty for 32 bits."""
    return () if plan.bits == 32 else (_first(plan),) * len(manifest.layers)


def next_exponents(plan: NetworkPlan, manifest: Manifest, sums: Sums) -> tuple[int, ...]:
    """Return the exponents of the round after these sums. Layers that were not summed keep theirs."""
    largest: dict[str, int] = {}
    for layer, part in layer_parts(sums.exchange.up) if sums.exponents else ():
        found = sums.updates[part]
        largest[layer] = max(largest.get(layer, 0), int(found.max()), -int(found.min()))
    facts = plan.bits, len(plan.sites), _first(plan)
    return tuple(
        next_exponent(exponent, largest[layer], *facts) if layer in largest else exponent
        for layer, exponent in zip(manifest.layers, sums.exponents, strict=bool(sums.exponents))
    )


def why_not_scales(plan: Plan, manifest: Manifest, scales: bytes, before: bytes | None) -> str | None:
    """Return why no honest coordinator offers these scales after those of the round before. Return None if one may.

    Args:
        before: None in a round before which nothing was summed. Scales of other layers are refused.
    """
    first = first_exponents(plan, manifest)
    if len(scales) != len(first):
        return "scales of other layers than the manifest's"
    if before is None:
        return None if unpack_exponents(scales) == first else "first scales that are not the plan's"
    known = unpack_exponents(before)
    pairs = zip(unpack_exponents(scales), known, first, strict=False)
    is_fit = len(known) == len(first)
    is_fit &= all(lowest <= scale <= most_after(earlier, lowest) for scale, earlier, lowest in pairs)
    return None if is_fit else "scales that grow faster than they may"


def _first(plan: Plan) -> int:
    return first_exponent(plan.bits, len(plan.sites), plan.masking.clipping_range)


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
