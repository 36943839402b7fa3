"""Computes the scales of a plan's short integers, one for each layer of the manifest.

The coordinator computes them from the sums and announces them. A gate checks that the first ones are the plan's, and
that later ones grow by few steps a round.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from protos.numbers.round_sums import Sums
from protos.numbers.short_integers import first_exponent, most_after, next_exponent, unpack_exponents
from protos.plan.architecture import TensorSpec
from protos.plan.manifest import Manifest, slices_of
from protos.plan.network_plan import NetworkPlan
from protos.plan.plan import Plan

_UNKNOWN: Final = 127  # the exponent before, for a gate that was started in mid-run


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
        before: None in a round before which nothing was summed; empty if this program does not know them.
    """
    first = first_exponents(plan, manifest)
    if len(scales) != len(first):
        return "scales of other layers than the manifest's"
    if before is None:
        return None if unpack_exponents(scales) == first else "first scales that are not the plan's"
    known = unpack_exponents(before) if before else (_UNKNOWN,) * len(first)
    pairs = zip(unpack_exponents(scales), known, first, strict=True)
    is_fit = all(lowest <= scale <= most_after(earlier, lowest) for scale, earlier, lowest in pairs)
    return None if is_fit else "scales that grow faster than they may"


def _first(plan: Plan) -> int:
    return first_exponent(plan.bits, len(plan.sites), plan.masking.clipping_range)
