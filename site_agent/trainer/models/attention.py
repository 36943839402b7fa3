"""Attention of many narrow heads, written out so that a CPU spends its time on arithmetic.

The usual routes (fused kernels, batched matrix products) start one tiny product per head and row;
with heads of width 2 most of their time is overhead. Here heads and batch together are the last,
contiguous axis ("lanes"), and every operation runs over many queries x tokens x lanes numbers at once.
The rules:

* heads are channels: channel c of head h is row c·heads + h of queries, keys and values;
* the result is softmax(q·k / √width)·v of Vaswani et al. 2017, eq. 1, for each head, nothing else;
* sums run in a fixed order, so equal inputs give equal bits on one thread.

Powers are of 2, with log2(e) in the queries, because torch's exp2 takes a quarter of the time of its
exp. Few numbers are computed at once and kept for the backward pass. Many are computed for some queries
after the other, in a scratch that the processor's cache holds, and again in the backward pass: fetching
them from memory would take longer.

Both functions work outside autograd; `transformer.py` calls them from its own forward and backward.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import torch
from torch import Tensor

# Numbers of pairs of tokens, as float32: up to 256 KB are computed at once, more in pieces of up to 2 MB.
# With pieces of an eighth of that attention takes half as long again.
_AT_ONCE: Final = 1 << 16
_IN_A_PIECE: Final = 1 << 19
# At least so many queries in a piece, because what is summed over queries is added up once for each piece.
_FEWEST_QUERIES: Final = 8


@dataclass(frozen=True)
class Attended:
    """What the backward pass needs; w channels a head, d tokens, L lanes.

    With scores s = q·k·log2(e) / √w and E = 2^(s - max s), the result is O = Σ_k E·v / Σ_k E. E is never
    divided: the backward pass divides the incoming gradient, which has d times fewer numbers.
    """

    queries: Tensor  # (w, d, L), already times log2(e) / √w
    keys: Tensor  # (w, d, L)
    values: Tensor  # (w, d, L)
    kept: Tensor  # E, (d, d, L), where it is small; otherwise -max s, (d, L)
    totals: Tensor  # (d, L), the sums of E over keys
    result: Tensor  # (w, d, L)


def attend(projections: Tensor, heads: int) -> tuple[Tensor, tuple[Attended, ...]]:
    """Every token attends to every token of its row.

    Args:
        projections: (3·e, d, B) with e a multiple of `heads`; queries, keys, values. With a stack
            (S, 3·e, d, B).
        heads: number of heads.

    Returns:
        (e, d, B) or (S, e, d, B), and what `attend_backward` needs, for one group of rows after the other.
    """
    *stack, rows, tokens, batch = projections.shape
    result = projections.new_empty((*stack, rows // 3, tokens, batch))
    found = []
    for inner, outer in zip(_groups(projections, heads), _groups(result, heads), strict=True):
        unscaled, keys, values = _by_lane(inner, heads, 3).unbind()
        attended = _attend(unscaled * _scale(unscaled), keys, values)
        _by_token(attended.result, heads, outer)
        found.append(attended)
    return result, tuple(found)


def attend_backward(gradient: Tensor, attended: tuple[Attended, ...], heads: int) -> Tensor:
    """The gradient of the projections, (3·e, d, B), from that of the result, (e, d, B); with a stack before.

    With g = ∂O / Σ_k E: ∂v = Σ_q E·g and ∂s = E·(g·v - Σ_c g·O), the scores without log2(e); the rest is
    the product rule.
    """
    *stack, rows, tokens, batch = gradient.shape
    found = gradient.new_empty((*stack, 3 * rows, tokens, batch))
    for inner, each, outer in zip(_groups(gradient, heads), attended, _groups(found, heads), strict=True):
        incoming = _by_lane(inner, heads, 1)[0].div_(each.totals)
        of_rows = (incoming * each.result).sum(0).neg_()
        of_lanes = incoming.new_empty((3, *incoming.shape))
        backward = _backward_at_once if each.kept.dim() == 3 else _backward_in_pieces
        backward(each, incoming, of_rows, of_lanes)
        # The scores were made from scaled queries, and the scaled queries have log2(e) in them.
        of_lanes[0].mul_(_scale(incoming) * math.log(2.0))
        of_lanes[1].mul_(math.log(2.0))
        _by_token(of_lanes, heads, outer)
    return found


def _scale(queries: Tensor) -> float:
    return math.log2(math.e) / math.sqrt(len(queries))


def _attend(queries: Tensor, keys: Tensor, values: Tensor) -> Attended:
    """All are (w, d, L)."""
    width, tokens, lanes = queries.shape
    if tokens * tokens * lanes <= _AT_ONCE:
        scores = _pairs(queries.unsqueeze(2), keys)
        exponentials = scores.sub_(scores.amax(1, keepdim=True)).exp2_()
        totals = exponentials.sum(1)
        result = (exponentials * values.unsqueeze(1)).sum(2).div_(totals)
        return Attended(queries, keys, values, exponentials, totals, result)
    shifts, totals, result = queries.new_empty((width + 2, tokens, lanes)).tensor_split((1, 2))
    for piece, scores, _, products in _pieces(queries):
        _pairs(queries[:, piece].unsqueeze(2), keys, scores)
        shift = torch.amax(scores, 1, out=shifts[0, piece])
        exponentials = scores.sub_(shift.unsqueeze(1)).exp2_()
        torch.sum(exponentials, 1, out=totals[0, piece])
        torch.sum(torch.mul(exponentials, values.unsqueeze(1), out=products), 2, out=result[:, piece])
    return Attended(queries, keys, values, shifts[0].neg_(), totals[0], result.div_(totals))


def _backward_at_once(attended: Attended, incoming: Tensor, of_rows: Tensor, of_lanes: Tensor) -> None:
    """Write the gradients of queries, keys and values, (3, w, d, L); of_rows is -Σ_c g·O, (d, L)."""
    of_queries, of_keys, of_values = of_lanes.unbind()
    own, exponentials = incoming.unsqueeze(2), attended.kept
    of_scores = _pairs(own, attended.values, start=of_rows.unsqueeze(1)).mul_(exponentials)
    products = exponentials * own
    torch.sum(products, 1, out=of_values)
    torch.mul(of_scores, attended.keys.unsqueeze(1), out=products)
    torch.sum(products, 2, out=of_queries)
    torch.mul(of_scores, attended.queries.unsqueeze(2), out=products)
    torch.sum(products, 1, out=of_keys)


def _backward_in_pieces(attended: Attended, incoming: Tensor, of_rows: Tensor, of_lanes: Tensor) -> None:
    """As `_backward_at_once`, for some queries after the other."""
    of_queries, of_keys, of_values = of_lanes.unbind()
    for piece, exponentials, of_scores, products in _pieces(incoming):
        queries, own = attended.queries[:, piece].unsqueeze(2), incoming[:, piece].unsqueeze(2)
        _pairs(queries, attended.keys, exponentials, attended.kept[piece].unsqueeze(1)).exp2_()
        _add(torch.mul(exponentials, own, out=products), of_values, piece)
        _pairs(own, attended.values, of_scores, of_rows[piece].unsqueeze(1)).mul_(exponentials)
        torch.sum(torch.mul(of_scores, attended.keys.unsqueeze(1), out=products), 2, out=of_queries[:, piece])
        _add(torch.mul(of_scores, queries, out=products), of_keys, piece)


def _pairs(rows: Tensor, columns: Tensor, result: Tensor | None = None, start: Tensor | None = None) -> Tensor:
    """start + Σ_c rows·columns for pairs of tokens: of (w, some, 1, L) and (w, d, L), to (some, d, L)."""
    (row, *other_rows), (column, *other_columns) = rows.unbind(), columns.unbind()
    total = torch.mul(row, column, out=result) if start is None else torch.addcmul(start, row, column, out=result)
    for row, column in zip(other_rows, other_columns, strict=True):
        total.addcmul_(row, column)
    return total


def _add(products: Tensor, total: Tensor, piece: slice) -> None:
    """Sum (w, some, d, L) over its queries; the first piece begins the total, (w, d, L)."""
    if piece.start == 0:
        torch.sum(products, 1, out=total)
    else:
        total.add_(products.sum(1))


def _pieces(like: Tensor) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Some queries after the other, with memory: two of (some, d, L) and one of (w, some, d, L).

    `like` is one of (w, d, L) in type and device. What stands in the memory is lost with the next piece.
    """
    width, tokens, lanes = like.shape
    largest = math.ceil(tokens / math.ceil(tokens * tokens * lanes / _IN_A_PIECE))
    arrays, numbers = width + 2, largest * tokens * lanes
    # A power of 2, so that sites, batches and networks of many sizes share few memories.
    memory = _memory(1 << (arrays * numbers - 1).bit_length(), like.dtype, like.device, threading.get_ident())
    scratch = memory[: arrays * numbers].view(arrays, largest, tokens, lanes)
    for first in range(0, tokens, largest):
        some = min(largest, tokens - first)
        yield slice(first, first + some), scratch[0, :some], scratch[1, :some], scratch[2:, :some]


@lru_cache(maxsize=8)
def _memory(numbers: int, dtype: torch.dtype, device: torch.device, _thread: int) -> Tensor:
    # Kept from call to call, because fresh memory costs as much as what is computed in it. Tensors made in
    # inference mode could not be written outside of it, hence the switch.
    with torch.inference_mode(False):
        return torch.empty(numbers, dtype=dtype, device=device)


def _groups(rows: Tensor, heads: int) -> Iterator[Tensor]:
    """(S, c, d, B), or (c, d, B) as a stack of one, in groups of whole copies or of some of the batch.

    A group is so large that its pairs fill a piece, and so small that a piece has enough queries.
    """
    rows = rows.unsqueeze(0) if rows.dim() == 3 else rows
    tokens, batch = rows.shape[-2:]
    copies = max(1, _IN_A_PIECE // (tokens * tokens * heads * batch))
    most = max(1, _IN_A_PIECE // (_FEWEST_QUERIES * tokens * heads))
    for first in range(0, len(rows), copies):
        for start in range(0, batch, most):
            yield rows[first : first + copies, ..., start : start + most]


def _by_lane(rows: Tensor, heads: int, parts: int) -> Tensor:
    """A copy of (S, parts·w·heads, d, B) as (parts, w, d, L), lanes in the order heads, copies, batch."""
    copies, channels, tokens, batch = rows.shape
    by_head = rows.view(copies, channels // heads, heads, tokens, batch).permute(1, 3, 2, 0, 4)
    return by_head.clone(memory_format=torch.contiguous_format).view(parts, -1, tokens, heads * copies * batch)


def _by_token(lanes: Tensor, heads: int, rows: Tensor) -> None:
    """Write (..., w, d, L) to where `_by_lane` would have read it, (S, parts·w·heads, d, B)."""
    copies, channels, tokens, batch = rows.shape
    by_head = rows.view(copies, channels // heads, heads, tokens, batch).permute(1, 3, 2, 0, 4)
    by_head.copy_(lanes.view(by_head.shape))
