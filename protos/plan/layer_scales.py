"""Computes the scales of a plan's short integers, one for each layer of the manifest.

Coordinator and sites compute the same scales from the plan and from the sums that were announced.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from protos.numbers.round_sums import Sums
from protos.numbers.short_integers import capacity, coarsest_exponent, next_exponent
from protos.plan.architecture import TensorSpec
from protos.plan.manifest import Manifest, largest_weight, slices_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan


def layer_parts(manifest: Manifest, tensors: tuple[TensorSpec, ...]) -> Iterator[tuple[int, slice]]:
    """Yield the parts of a vector that joins these tensors: each a number of a layer of the manifest, and its slice."""
    numbers = {layer: number for number, layer in enumerate(manifest.layers)}
    before: tuple[int, slice] | None = None
    for tensor, part in zip(tensors, slices_of(tensors), strict=True):
        layer = numbers[tensor.layer]
        if before is not None and before[0] == layer:
            part = slice(before[1].start, part.stop)
        elif before is not None:
            yield before
        before = (layer, part)
    if before is not None:
        yield before


def first_exponents(plan: Plan, manifest: Manifest) -> tuple[int, ...]:
    """Return the exponents of the first round, one for each of the manifest's layers. It is empty for 32 bits."""
    if plan.bits == 32:
        return ()
    return (_coarsest(plan, plan.training_count),) * len(manifest.layers)


def next_exponents(plan: NetworkPlan, manifest: Manifest, sums: Sums) -> tuple[int, ...]:
    """Return the exponents of the round after these sums. Layers that were not summed keep theirs."""
    if not sums.exponents:
        return ()
    largest: dict[int, int] = {}
    for layer, part in layer_parts(manifest, sums.exchange.up):
        found = sums.updates[part]
        largest[layer] = max(largest.get(layer, 0), int(found.max()), -int(found.min()))
    limits = {"coarsest": _coarsest(plan, sums.weight(plan.weighting)), "first": _coarsest(plan, plan.training_count)}
    facts = plan.bits, len(plan.sites)
    return tuple(
        next_exponent(exponent, largest[layer], *facts, **limits) if layer in largest else exponent
        for layer, exponent in enumerate(sums.exponents)
    )


def largest_integer(plan: NetworkPlan, exponent: int, weight: float, summed_rows: int) -> float:
    """Return the largest absolute integer that one site sends before rounding.

    Args:
        exponent: of the layer's scale.
        weight: the site's.
        summed_rows: of all sites in an earlier round; 0 before any, or with equal weights.
    """
    weights = summed_rows / largest_weight(plan) if summed_rows else plan.training_count
    room = capacity(plan.bits, len(plan.sites)) / weights
    return weight * min(room, math.ldexp(plan.masking.clipping_range, exponent))


def _coarsest(plan: Plan, weights: float) -> int:
    return coarsest_exponent(plan.bits, len(plan.sites), weights, plan.masking.clipping_range)
