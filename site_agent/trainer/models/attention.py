"""Computes the attention layer of a transformer with many narrow heads, fast on a processor (CPU).

The usual ways (fused kernels, batched matrix products) start one tiny product for each head and row. With heads of
width 2, most of their time is overhead. Here heads and batch together are the last, contiguous axis ("lanes"), and
every operation processes many tokens x lanes numbers at once. The rules:

* heads are channels: channel c of head h is row c·heads + h of queries, keys and values;
* the result is softmax(q·k / √width)·v of Vaswani et al. 2017, eq. 1, for each head;
* sums run in a fixed order, so equal inputs give equal bits on one thread.

Powers are of 2, with log2(e) in the queries, because torch's exp2 takes a quarter of the time of its exp. With few
lanes, all pairs of tokens are computed at once and the probabilities are stored, because starting operations takes most
of the time. With many lanes, one token is computed after the other, so that all numbers stay in the CPU's cache. The
backward pass then computes the probabilities again, because reading them from memory would take longer.

Both functions work outside autograd; `transformer.py` calls them from its own forward and backward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

import torch
from torch import Tensor

# Up to this number of pairs of tokens, times lanes, is computed at once. Their probabilities are 2 MB of float32.
_FEW: Final = 1 << 19
# Tokens x lanes of a group, 512 KB. With half or twice this number, the time changes by less than a tenth.
_IN_A_GROUP: Final = 1 << 17
# In a smaller sum of powers of 2, some terms can be lost to underflow.
_SMALLEST_TOTAL: Final = 2.0**-100


class Attended(NamedTuple):
    """Values that attention's backward pass needs: w channels per head, d tokens, L lanes (heads, copies and rows).

    With scores s = q·k·log2(e) / √w the probabilities are P = 2^s / Σ_k 2^s, and the result is O = Σ_k P·v.
    """

    queries: Tensor  # (w, d, L), already times log2(e) / √w
    keys: Tensor  # (w, d, L)
    values: Tensor  # (w, d, L)
    kept: Tensor  # with few lanes P, (d, d, L); with many lanes -log2 Σ_k 2^s, (d, L)
    result: Tensor  # (w, d, L)


# The values for the backward pass, one entry for each group of rows.
Kept: TypeAlias = tuple[Attended, ...]


def attend(projections: Tensor, heads: int) -> tuple[Tensor, Kept]:
    """Compute attention of every token to every token of the same row.

    From queries, keys and values, (3·e, d, B) or (S, 3·e, d, B) with e a multiple of `heads`, to (e, d, B) or
    (S, e, d, B), and to the values that `attend_backward` needs.
    """
    *stack, rows, tokens, batch = projections.shape
    result = projections.new_empty((*stack, rows // 3, tokens, batch))
    found = []
    for inner, outer in zip(_groups(projections, heads), _groups(result, heads), strict=True):
        unscaled, keys, values = _by_lane(inner, heads, 3).unbind()
        queries = unscaled * (math.log2(math.e) / math.sqrt(len(unscaled)))
        is_few = tokens * queries[0].numel() <= _FEW
        attended = (_attend_few if is_few else _attend_many)(queries, keys, values)
        _by_token(attended.result, heads, outer)
        found.append(attended)
    return result, tuple(found)


def attend_backward(gradient: Tensor, attended: Kept, heads: int) -> Tensor:
    """Return the gradient of the projections, (3·e, d, B), from the gradient of the result, (e, d, B), or for stacks.

    With the incoming gradient g: ∂v = Σ_q P·g and ∂s = P·(g·v - Σ_c g·O), the scores without log2(e); the
    rest is the product rule.
    """
    *stack, rows, tokens, batch = gradient.shape
    found = gradient.new_empty((*stack, 3 * rows, tokens, batch))
    for inner, each, outer in zip(_groups(gradient, heads), attended, _groups(found, heads), strict=True):
        incoming = _by_lane(inner, heads, 1)[0]
        of_lanes = incoming.new_empty((3, *incoming.shape))
        backward = _backward_few if each.kept.dim() == 3 else _backward_many
        backward(each, incoming, (incoming * each.result).sum(0).neg_(), of_lanes)
        # The scores were computed from scaled queries, which include log2(e).
        of_lanes[0].mul_(1.0 / math.sqrt(len(incoming)))
        of_lanes[1].mul_(math.log(2.0))
        _by_token(of_lanes, heads, outer)
    return found


def _attend_few(queries: Tensor, keys: Tensor, values: Tensor) -> Attended:
    """Compute attention for few lanes at once. All arguments are (w, d, L)."""
    scores = _sum_of_products(queries.unsqueeze(2).unbind(), keys.unbind())
    powers = scores.sub_(scores.amax(1, keepdim=True)).exp2_()
    probabilities = powers.div_(powers.sum(1, keepdim=True))
    result = (probabilities * values.unsqueeze(1)).sum(2)
    return Attended(queries, keys, values, probabilities, result)


def _backward_few(attended: Attended, incoming: Tensor, of_rows: Tensor, of_lanes: Tensor) -> None:
    """Write the gradients of queries, keys, values into `of_lanes`, (3, w, d, L). `of_rows` is -Σ_c g·O, (d, L)."""
    of_queries, of_keys, of_values = of_lanes.unbind()
    own, probabilities = incoming.unsqueeze(2), attended.kept
    products = probabilities * own
    torch.sum(products, 1, out=of_values)
    of_scores = _sum_of_products(own.unbind(), attended.values.unbind(), of_rows.unsqueeze(1)).mul_(probabilities)
    torch.sum(torch.mul(of_scores, attended.keys.unsqueeze(1), out=products), 2, out=of_queries)
    torch.sum(torch.mul(of_scores, attended.queries.unsqueeze(2), out=products), 1, out=of_keys)


def _attend_many(queries: Tensor, keys: Tensor, values: Tensor) -> Attended:
    """Compute attention for many lanes, one key after the other."""
    # An upper bound of the largest score, faster to compute: the sum of each channel's largest product.
    bounds = torch.maximum(queries * keys.amax(1, keepdim=True), queries * keys.amin(1, keepdim=True))
    starts = bounds.sum(0).neg_()
    result, totals = _sums_of_powers(queries, keys, values, starts)
    if not totals.min().item() >= _SMALLEST_TOTAL:
        starts = _largest_scores(queries, keys).neg_()
        result, totals = _sums_of_powers(queries, keys, values, starts)
    return Attended(queries, keys, values, starts.sub_(totals.log2()), result.div_(totals))


def _sums_of_powers(queries: Tensor, keys: Tensor, values: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    """Return Σ_k 2^(s + start)·v, (w, d, L), and Σ_k 2^(s + start), (d, L)."""
    result, totals, powers = torch.zeros_like(queries), torch.zeros_like(starts), torch.empty_like(starts)
    channels, of_channels = queries.unbind(), powers.unsqueeze(0)
    for key, value in zip(_tokens(keys), values.unsqueeze(1).unbind(2), strict=True):
        _sum_of_products(channels, key, starts, powers).exp2_()
        totals.add_(powers)
        result.addcmul_(of_channels, value)
    return result, totals


def _largest_scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Return max_k s, (d, L)."""
    largest = torch.full_like(queries[0], -math.inf)
    for key in _tokens(keys):
        torch.maximum(largest, _sum_of_products(queries.unbind(), key), out=largest)
    return largest


def _backward_many(attended: Attended, incoming: Tensor, of_rows: Tensor, of_lanes: Tensor) -> None:
    """Write the same gradients as `_backward_few`, but process one query after the other."""
    queries, keys, values, starts, _ = attended
    of_queries, of_keys, of_values = of_lanes.unbind()
    of_keys.zero_()
    of_values.zero_()
    probabilities, of_scores = of_rows.new_empty((2, 1, *of_rows.shape)).unbind()
    products = torch.empty_like(keys)
    key_channels, value_channels = keys.unbind(), values.unbind()
    of_tokens = zip(starts.unbind(), of_rows.unbind(), of_queries.unbind(1), strict=True)
    for query, query_row, own, own_row, (start, of_row, of_query) in zip(
        _tokens(queries), queries.unsqueeze(1).unbind(2), _tokens(incoming), incoming.unsqueeze(1).unbind(2),
        of_tokens, strict=True,
    ):  # fmt: skip
        _sum_of_products(key_channels, query, start, probabilities[0]).exp2_()
        _sum_of_products(value_channels, own, of_row, of_scores[0]).mul_(probabilities[0])
        of_values.addcmul_(probabilities, own_row)
        of_keys.addcmul_(of_scores, query_row)
        torch.sum(torch.mul(of_scores, keys, out=products), 1, out=of_query)


def _sum_of_products(
    left: Sequence[Tensor], right: Sequence[Tensor], start: Tensor | None = None, result: Tensor | None = None
) -> Tensor:
    """Return start + Σ_c left[c]·right[c] over channels. Shapes follow torch's broadcasting."""
    if start is None:
        total = torch.mul(left[0], right[0], out=result)
    else:
        total = torch.addcmul(start, left[0], right[0], out=result)
    for channel in range(1, len(left)):
        total.addcmul_(left[channel], right[channel])
    return total


def _tokens(values: Tensor) -> list[tuple[Tensor, ...]]:
    """Split (w, d, L) into w rows (L,) for each of the d tokens."""
    rows, tokens = values.flatten(0, 1).unbind(), values.shape[1]
    return [rows[token::tokens] for token in range(tokens)]


def _groups(rows: Tensor, heads: int) -> list[Tensor]:
    """Split (S, c, d, B), or (c, d, B), into groups: each group has several copies, or several rows of one copy."""
    rows = rows.unsqueeze(0) if rows.dim() == 3 else rows
    copies, _, tokens, batch = rows.shape
    room = max(1, _IN_A_GROUP // (tokens * heads))
    if copies * batch <= room:
        return [rows]  # splitting would cost as much as one operation
    if batch <= room:
        return list(torch.split(rows, _even(copies, room // batch)))
    return [part for one in torch.split(rows, 1) for part in torch.split(one, _even(batch, room), -1)]


def _even(count: int, most: int) -> int:
    """Return the size of almost equal groups: as few groups as possible, none larger than `most`."""
    return math.ceil(count / math.ceil(count / most))


def _by_lane(rows: Tensor, heads: int, parts: int) -> Tensor:
    """Copy (S, parts·w·heads, d, B) to (parts, w, d, L), with lanes in the order heads, copies, batch."""
    copies, channels, tokens, batch = rows.shape
    by_head = rows.view(copies, channels // heads, heads, tokens, batch).permute(1, 3, 2, 0, 4)
    return by_head.clone(memory_format=torch.contiguous_format).view(parts, -1, tokens, heads * copies * batch)


def _by_token(lanes: Tensor, heads: int, rows: Tensor) -> None:
    """Write (..., w, d, L) back into rows (S, parts·w·heads, d, B). Undoes `_by_lane`."""
    copies, channels, tokens, batch = rows.shape
    by_head = rows.view(copies, channels // heads, heads, tokens, batch).permute(1, 3, 2, 0, 4)
    by_head.copy_(lanes.view(by_head.shape))
