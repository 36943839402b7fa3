"""Attention of many narrow heads, written out so that a CPU spends its time on arithmetic.

The usual routes (fused kernels, batched matrix products) start one tiny product per head and row;
with heads of width 2 most of their time is overhead. Here heads and batch together are the last,
contiguous axis ("lanes"), and every operation runs over tokens² x lanes numbers at once. The rules:

* heads are channels: channel c of head h is row c·heads + h of queries, keys and values;
* the result is softmax(q·k / √width)·v of Vaswani et al. 2017, eq. 1, for each head, nothing else;
* sums run in a fixed order, so equal inputs give equal bits on one thread.

Both functions work outside autograd; `transformer.py` calls them from its own forward and backward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Attended:
    """What the backward pass needs; w channels a head, d tokens, L = heads·B lanes.

    With scores s = q·k / √w and E = exp(s - max s), the result is O = Σ_k E·v / Σ_k E. E is never
    divided: the backward pass divides the incoming gradient, which has d times fewer numbers.
    """

    queries: Tensor  # (w, d, L), already divided by √w
    keys: Tensor  # (w, d, L)
    values: Tensor  # (w, d, L)
    exponentials: Tensor  # (d, d, L): queries by keys
    totals: Tensor  # (d, L)
    result: Tensor  # (w, d, L)


def attend(projections: Tensor, heads: int) -> tuple[Tensor, Attended]:
    """Every token attends to every token of its row.

    Args:
        projections: (3·e, d, B) with e a multiple of `heads`; queries, keys, values. Needs memory
            for (1 + e / heads) · d² · heads · B numbers. With a stack (S, 3·e, d, B), and S times as many.
        heads: number of heads.

    Returns:
        (e, d, B) or (S, e, d, B), and what `attend_backward` needs.
    """
    width = projections.shape[-3] // (3 * heads)
    packed = _by_lane(projections, heads)
    unscaled, keys, values = packed.view(3, width, *packed.shape[1:]).unbind()
    queries = unscaled * (1.0 / math.sqrt(width))
    exponentials = _pairs(queries, keys)
    exponentials.sub_(exponentials.amax(1, keepdim=True)).exp_()
    totals = exponentials.sum(1)
    result = (exponentials * values.unsqueeze(1)).sum(2).div_(totals)
    return _by_token(result, heads, projections.shape), Attended(queries, keys, values, exponentials, totals, result)


def attend_backward(gradient: Tensor, kept: Attended, heads: int) -> Tensor:
    """The gradient of the projections, (3·e, d, B), from that of the result, (e, d, B); with a stack before.

    With g = ∂O / Σ_k E: ∂v = Σ_q E·g and ∂s = E·(g·v - Σ_c g·O); the rest is the product rule.
    """
    width, tokens, lanes = kept.result.shape
    incoming = _by_lane(gradient, heads).div_(kept.totals)
    of_scores = _pairs(incoming, kept.values)
    of_scores.sub_((incoming * kept.result).sum(0).unsqueeze(1)).mul_(kept.exponentials)
    outgoing = incoming.new_empty((3, width, tokens, lanes))
    of_queries, of_keys, of_values = outgoing.unbind()
    products = of_scores * kept.keys.unsqueeze(1)
    torch.sum(products, 2, out=of_queries)
    # The scores were made from scaled queries, so only the queries' gradient still needs the scale.
    of_queries.mul_(1.0 / math.sqrt(width))
    torch.mul(of_scores, kept.queries.unsqueeze(2), out=products)
    torch.sum(products, 1, out=of_keys)
    torch.mul(kept.exponentials, incoming.unsqueeze(2), out=products)
    torch.sum(products, 1, out=of_values)
    return _by_token(outgoing.flatten(0, 1), heads, gradient.shape)


def _pairs(rows: Tensor, columns: Tensor) -> Tensor:
    """Σ_c rows[c, i]·columns[c, j] for every pair of tokens: two (w, d, L) to (d, d, L)."""
    by_row, by_column = rows.unsqueeze(2).unbind(), columns.unbind()
    total = by_row[0] * by_column[0]
    for row, column in zip(by_row[1:], by_column[1:], strict=True):
        total.addcmul_(row, column)
    return total


def _by_lane(rows: Tensor, heads: int) -> Tensor:
    """A copy of (c·heads, d, B) as (c, d, heads·B), or of (S, c·heads, d, B) as (c, d, heads·S·B)."""
    tokens, batch = rows.shape[-2:]
    by_head = rows.reshape(-1, rows.shape[-3] // heads, heads, tokens, batch)
    packed = by_head.permute(1, 3, 2, 0, 4).clone(memory_format=torch.contiguous_format)
    return packed.view(packed.shape[0], tokens, -1)


def _by_token(lanes: Tensor, heads: int, like: torch.Size) -> Tensor:
    """A copy of what `_by_lane` returned, laid out as it was; `like` has the same stack, tokens and batch."""
    tokens, batch = like[-2:]
    by_head = lanes.view(len(lanes), tokens, heads, -1, batch).permute(3, 0, 2, 1, 4)
    rows = by_head.clone(memory_format=torch.contiguous_format)
    return rows.view(*like[:-3], len(lanes) * heads, tokens, batch)
