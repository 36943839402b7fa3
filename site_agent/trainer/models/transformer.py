"""Computes the transformer blocks of "Global Layers".

Tokens have the axes (e, d, B): entity width, columns, batch. Every linear map is one matrix product over all tokens of
all rows. The rules:

* attention is softmax(q·k / √width)·v of Vaswani et al. 2017, eq. 1, for each head. Heads are channels: channel c of
  head h is row c·heads + h of queries, keys and values;
* sums run in a fixed order, so equal inputs give equal bits on one thread.

Fused attention kernels start one tiny product for each head and row. With heads of width 2, most of their time is
overhead: a step needs 1.9 to 2.4 times as long. Here heads and batch together are the last, contiguous axis ("lanes").
With few lanes, all pairs of tokens are computed at once. With many lanes one token is computed after the other, so that
all numbers stay in the CPU's cache, and the backward pass, written by hand, computes the probabilities again: a step
needs a third to a fifth of the time of all pairs at once. Powers there are of 2, with log2(e) in the queries, because
torch's exp2 takes a quarter of the time of its exp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from protos.plan.architecture import GlobalLayersNetwork
from site_agent.trainer.models.layers import FeedForward, Linear, Normalisation, dropped

# Up to this number of pairs of tokens, times lanes, is computed at once. Their probabilities are 2 MB of float32.
_FEW: Final = 1 << 19
# Tokens x lanes of a group, 512 KB. With half or twice this number, the time changes by less than a tenth.
_IN_A_GROUP: Final = 1 << 17
# In a smaller sum of powers of 2, some terms can be lost to underflow.
_SMALLEST_TOTAL: Final = 2.0**-100


class TransformerBlock(nn.Module):
    """Computes x ← BN(x); x ← attention(x) + x; SELU(FF(x)) + x."""

    def __init__(self, architecture: GlobalLayersNetwork, columns: int) -> None:
        super().__init__()
        width, self._heads, self._dropout = architecture.entity_width, architecture.heads, architecture.dropout
        self.normalisation = Normalisation(columns)
        self.attention = SelfAttention(width)
        self.feedforward = FeedForward(columns, width, width // 2, gate=architecture.gate, bias=False, dropout=0.0)

    def forward(self, tokens: Tensor) -> Tensor:
        """Apply the block to contiguous tokens, (e, d, B). The shape stays the same."""
        shape, flat, feedforward = tokens.shape, (len(tokens), -1), self.feedforward
        normalised: Tensor = self.normalisation(tokens).view(flat)
        projected = torch.matmul(self.attention.projections.weight, normalised).view(-1, *shape[1:])
        between = normalised + torch.matmul(self.attention.output.weight, attend(projected, self._heads).reshape(flat))
        ready = dropped(feedforward.normalisation(between.view(shape)), self._dropout, self.training).view(flat)
        hidden = functional.selu(torch.matmul(feedforward.inner.weight, ready))
        if feedforward.gate is not None:
            hidden = hidden * torch.matmul(feedforward.gate.weight, between)
        return (functional.selu(torch.matmul(feedforward.outer.weight, hidden)) + between).view(shape)


class SelfAttention(nn.Module):
    """The two matrices of attention, without biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projections = Linear(width, 3 * width, bias=False)
        self.output = Linear(width, width, bias=False)


def attend(projections: Tensor, heads: int) -> Tensor:
    """Compute attention of every token to every token of the same row.

    From queries, keys and values, (3·e, d, B) with e a multiple of `heads`, to (e, d, B), contiguous.
    """
    _, tokens, batch = projections.shape
    if tokens * tokens * heads * batch <= _FEW:
        return _attend_few(projections, heads)
    if torch.is_grad_enabled():
        # Torch does not give Function.apply a type.
        result: Tensor = _Attention.apply(projections, heads)  # type: ignore[no-untyped-call]
        return result
    # Also when a network is exported, where autograd's own functions are unknown.
    return _attend_in_groups(projections, heads)[0]


def _attend_few(rows: Tensor, heads: int) -> Tensor:
    """Compute attention for all pairs of tokens at once, from (3·e, d, B) to (e, d, B)."""
    channels, tokens, batch = rows.shape
    queries, keys, values = _by_lane(rows, heads, 3).unbind()
    scores = (queries.unsqueeze(2) * (keys * (1.0 / math.sqrt(len(keys)))).unsqueeze(1)).sum(0)
    result = (torch.softmax(scores, 1) * values.unsqueeze(1)).sum(2)
    return result.view(-1, tokens, heads, batch).permute(0, 2, 1, 3).reshape(channels // 3, tokens, batch)


class Attended(NamedTuple):
    """Values that attention's backward pass needs: w channels per head, d tokens, L lanes (heads and rows).

    With scores s = q·k·log2(e) / √w the probabilities are P = 2^s / Σ_k 2^s, and the result is O = Σ_k P·v.
    """

    queries: Tensor  # (w, d, L), already times log2(e) / √w
    keys: Tensor  # (w, d, L)
    values: Tensor  # (w, d, L)
    weights: Tensor  # -log2 Σ_k 2^s, (d, L)
    result: Tensor  # (w, d, L)


class _Attention(torch.autograd.Function):
    """Attention for many lanes, from (3·e, d, B) to (e, d, B)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, heads: int) -> Tensor:
        result, ctx.attended = _attend_in_groups(rows, heads)
        ctx.heads = heads
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # With the incoming gradient g: ∂v = Σ_q P·g and ∂s = P·(g·v - Σ_c g·O), the scores without log2(e); the rest
        # is the product rule.
        channels, tokens, batch = gradient.shape
        found = gradient.new_empty((3 * channels, tokens, batch))
        groups = zip(_groups(gradient.contiguous(), ctx.heads), ctx.attended, _groups(found, ctx.heads), strict=True)
        for inner, attended, outer in groups:
            incoming = _by_lane(inner, ctx.heads, 1)[0]
            of_lanes = incoming.new_empty((3, *incoming.shape))
            _backward_many(attended, incoming, (incoming * attended.result).sum(0).neg_(), of_lanes)
            # The scores were computed from scaled queries, which include log2(e).
            of_lanes[0].mul_(1.0 / math.sqrt(len(incoming)))
            of_lanes[1].mul_(math.log(2.0))
            _by_token(of_lanes, ctx.heads, outer)
        return found, None


def _attend_in_groups(rows: Tensor, heads: int) -> tuple[Tensor, list[Attended]]:
    channels, tokens, batch = rows.shape
    result, found = rows.new_empty((channels // 3, tokens, batch)), []
    for inner, outer in zip(_groups(rows, heads), _groups(result, heads), strict=True):
        queries, keys, values = _by_lane(inner, heads, 3).unbind()
        found.append(_attend_many(queries * (math.log2(math.e) / math.sqrt(len(queries))), keys, values))
        _by_token(found[-1].result, heads, outer)
    return result, found


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
    """Write the gradients of queries, keys, values into `of_lanes`, (3, w, d, L), one query after the other.

    `of_rows` is -Σ_c g·O, (d, L), for the incoming gradient g.
    """
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
    """Split (c, d, B) into groups of rows: as few groups as possible, of almost equal size."""
    _, tokens, batch = rows.shape
    room = max(1, _IN_A_GROUP // (tokens * heads))
    return list(torch.split(rows, math.ceil(batch / math.ceil(batch / room)), -1))


def _by_lane(rows: Tensor, heads: int, parts: int) -> Tensor:
    """Copy (parts·w·heads, d, B) to (parts, w, d, L), with lanes in the order heads, batch."""
    channels, tokens, batch = rows.shape
    by_head = rows.view(channels // heads, heads, tokens, batch).permute(0, 2, 1, 3)
    return by_head.clone(memory_format=torch.contiguous_format).view(parts, -1, tokens, heads * batch)


def _by_token(lanes: Tensor, heads: int, rows: Tensor) -> None:
    """Write (..., w, d, L) back into rows (parts·w·heads, d, B). Undoes `_by_lane`."""
    channels, tokens, batch = rows.shape
    by_head = rows.view(channels // heads, heads, tokens, batch).permute(0, 2, 1, 3)
    by_head.copy_(lanes.view(by_head.shape))
