"""Computes the transformer blocks of "Global Layers" in a single autograd step, with a handwritten gradient.

For small batches most of a block's time is spent on starting its hundred small operations. A handwritten gradient
starts about half as many as the derived one. Tokens have the axes (e, d, B): entity width, columns, batch. Every linear
map is then one matrix product over all tokens of all rows. If the tensors have a stack axis of S copies in front, all
other arrays have it too. The rules:

* gradients are those of the formulas below, to rounding; a test compares with finite differences;
* the caller makes dropout's random draws, so this file draws no random number;
* attention is softmax(q·k / √width)·v of Vaswani et al. 2017, eq. 1, for each head. Heads are channels: channel c of
  head h is row c·heads + h of queries, keys and values;
* sums run in a fixed order, so equal inputs give equal bits on one thread.

Fused attention kernels start one tiny product for each head and row. With heads of width 2, most of their time is
overhead. Here heads and batch together are the last, contiguous axis ("lanes"). Powers are of 2, with log2(e) in the
queries, because torch's exp2 takes a quarter of the time of its exp. With few lanes, all pairs of tokens are computed
at once and the probabilities are stored. With many lanes, one token is computed after the other, so that all numbers
stay in the CPU's cache, and the backward pass computes the probabilities again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from protos.plan.architecture import GlobalLayersNetwork
from site_agent.trainer.models.layers import (
    NORMALISATION_EPSILON,
    NORMALISATION_FACTOR,
    FeedForward,
    Linear,
    Normalisation,
    affine,
    dropout_terms,
    standard_statistics,
)

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
    weights: Tensor  # with few lanes P, (d, d, L); with many lanes -log2 Σ_k 2^s, (d, L)
    result: Tensor  # (w, d, L)


# The values for the backward pass, one entry for each group of rows.
SavedAttention: TypeAlias = tuple[Attended, ...]


def attend(projections: Tensor, heads: int) -> tuple[Tensor, SavedAttention]:
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


def attend_backward(gradient: Tensor, attended: SavedAttention, heads: int) -> Tensor:
    """Return the gradient of the projections, (3·e, d, B), from the gradient of the result, (e, d, B), or for stacks.

    With the incoming gradient g: ∂v = Σ_q P·g and ∂s = P·(g·v - Σ_c g·O), the scores without log2(e); the
    rest is the product rule.
    """
    *stack, rows, tokens, batch = gradient.shape
    found = gradient.new_empty((*stack, 3 * rows, tokens, batch))
    for inner, each, outer in zip(_groups(gradient, heads), attended, _groups(found, heads), strict=True):
        incoming = _by_lane(inner, heads, 1)[0]
        of_lanes = incoming.new_empty((3, *incoming.shape))
        backward = _backward_few if each.weights.dim() == 3 else _backward_many
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
    own, probabilities = incoming.unsqueeze(2), attended.weights
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


# SELU's two constants (Klambauer et al. 2017), with torch's values.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


class BlockTensors(NamedTuple):
    """The tensors of one block, or their gradients. Without a gate, `gate` is None."""

    scale: Tensor  # shape (d,), also of `shift` and of the two inner tensors, for two normalisations
    shift: Tensor
    projections: Tensor  # (3e, e)
    output: Tensor  # (e, e)
    inner_scale: Tensor
    inner_shift: Tensor
    inner: Tensor  # (e/2, e)
    gate: Tensor | None  # (e/2, e)
    outer: Tensor  # (e, e/2)


class TransformerBlock(nn.Module):
    """Stores the tensors of x ← BN(x); x ← attention(x) + x; SELU(FF(x)) + x. `transform` computes the block."""

    def __init__(self, architecture: GlobalLayersNetwork, columns: int) -> None:
        super().__init__()
        width = architecture.entity_width
        self.normalisation = Normalisation(columns)
        self.attention = SelfAttention(width)
        self.feedforward = FeedForward(
            columns, width, width // 2, gate=architecture.gate, bias=False, dropout=architecture.dropout
        )

    def tensors(self) -> BlockTensors:
        """Return the parameters of a transformer block in the order in which the computation uses them."""
        normalisation, attention, feedforward = self.normalisation, self.attention, self.feedforward
        inner_normalisation, gate = feedforward.normalisation, feedforward.gate
        return BlockTensors(
            normalisation.weight, normalisation.bias, attention.projections.weight, attention.output.weight,
            inner_normalisation.weight, inner_normalisation.bias, feedforward.inner.weight,
            None if gate is None else gate.weight, feedforward.outer.weight,
        )  # fmt: skip


class SelfAttention(nn.Module):
    """The two matrices of attention, without biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projections = Linear(width, 3 * width, bias=False)
        self.output = Linear(width, width, bias=False)


def transform(tokens: Tensor, blocks: Sequence[BlockTensors], heads: int, dropout: float) -> Tensor:
    """Apply all transformer blocks in sequence. The gradient of the result can be computed only once.

    `tokens` are (e, d, B) or (S, e, d, B), contiguous. The result has the same shape; without blocks, it is the tokens
    themselves. `dropout` is AlphaDropout's rate inside each feed-forward part; 0 outside training.
    """
    if not blocks:
        return tokens
    terms = [dropout_terms(tokens, dropout) if dropout else None for _ in blocks]
    if not torch.is_grad_enabled():  # also when a network is exported, where autograd's own functions are unknown
        for block, term in zip(blocks, terms, strict=True):
            tokens, _ = _block(tokens, block, heads, term)
        return tokens
    flat = [tensor for block in blocks for tensor in block]
    # Torch does not give Function.apply a type.
    transformed: Tensor = _Blocks.apply(tokens, heads, terms, *flat)  # type: ignore[no-untyped-call]
    return transformed


class _Blocks(torch.autograd.Function):
    """Runs every block in one step of autograd, because each step costs as much as several operations."""

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, heads: int, terms: list[tuple[Tensor, Tensor] | None], *flat: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(*flat)
        # Only intermediate results are attributes of the context. Inputs are saved as autograd requires.
        ctx.heads, ctx.blocks = heads, []
        for block, dropout in zip(_grouped(flat), terms, strict=True):
            tokens, saved = _block(tokens, block, heads, dropout)
            ctx.blocks.append(saved)
        return tokens

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradient.contiguous()
        found: list[Tensor | None] = []
        for block, saved in zip(reversed(_grouped(ctx.saved_tensors)), reversed(ctx.blocks), strict=True):
            gradient, of_block = _block_backward(gradient, block, saved, ctx.heads)
            found[:0] = of_block
        return gradient, None, None, *found


def _grouped(flat: Sequence[Any]) -> list[BlockTensors]:
    size = len(BlockTensors._fields)
    return [BlockTensors(*flat[start : start + size]) for start in range(0, len(flat), size)]


@dataclass(slots=True)
class _SavedBlock:
    """Intermediate results of one block, for the backward pass: matrices (rows, d·B) if no shape is given below."""

    tokens: Tensor  # (e, d, B)
    normalised: Tensor
    attention: SavedAttention
    attended: Tensor
    between: Tensor
    ready: Tensor  # after normalisation and dropout
    factor: Tensor | None  # dropout's factor, (e, d, B)
    selected: Tensor
    gating: Tensor | None
    hidden: Tensor
    result: Tensor


def _block(
    tokens: Tensor, block: BlockTensors, heads: int, dropout: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, _SavedBlock]:
    """Compute n = BN(x); a = Wo·attention(Wp·n) + n; SELU(W2·h) + a with h = SELU(W1·(f·BN(a) + t)) [⊙ W3·a].

    f and t are dropout's factor and shift, 1 and 0 if there is none.
    """
    shape, stack = tokens.shape, tokens.shape[:-3]
    flat = (*shape[:-2], -1)
    normalised = affine(tokens, block.scale, block.shift).view(flat)
    projections = _product(block.projections, normalised).view(*stack, -1, *shape[-2:])
    attended, attention = attend(projections, heads)
    attended = attended.view(flat)
    between = _sum_of_product(normalised, block.output, attended)
    ready = affine(between.view(shape), block.inner_scale, block.inner_shift)
    if dropout is not None:
        ready = torch.addcmul(dropout[1], ready, dropout[0])
    ready = ready.view(flat)
    hidden = selected = functional.selu(_product(block.inner, ready))
    gating = None
    if block.gate is not None:
        gating = _product(block.gate, between)
        hidden = selected * gating
    result = functional.selu(_product(block.outer, hidden))
    factor = None if dropout is None else dropout[0]
    saved = _SavedBlock(
        tokens, normalised, attention, attended, between, ready, factor, selected, gating, hidden, result
    )  # fmt: skip
    return torch.add(result, between).view(shape), saved


def _block_backward(
    gradient: Tensor, block: BlockTensors, saved: _SavedBlock, heads: int
) -> tuple[Tensor, BlockTensors]:
    """Return the gradients of the tokens and of the block's tensors, from the gradient of the result, (e, d, B)."""
    shape = gradient.shape
    flat = (*shape[:-2], -1)
    gradient = gradient.view(flat)
    of_between, feedforward = _feedforward_backward(gradient, block, saved, shape)
    of_output = _product(of_between, saved.attended.mT)
    of_attended = _product(block.output.mT, of_between).view(shape)
    of_projected = attend_backward(of_attended, saved.attention, heads).flatten(-2)
    of_projections = _product(of_projected, saved.normalised.mT)
    of_normalised = _sum_of_product(of_between, block.projections.mT, of_projected)
    of_tokens, of_scale, of_shift = _normalised_backward(of_normalised.view(shape), saved.tokens, block.scale)
    return of_tokens, BlockTensors(of_scale, of_shift, of_projections, of_output, *feedforward)


def _feedforward_backward(
    gradient: Tensor, block: BlockTensors, saved: _SavedBlock, shape: torch.Size
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]]:
    """Return the gradients of a (including the residual path) and of the block's five tensors from `inner_scale` on."""
    of_result = _selu_backward(gradient, saved.result)
    of_outer = _product(of_result, saved.hidden.mT)
    of_hidden = _product(block.outer.mT, of_result)
    of_selected = of_hidden if saved.gating is None else of_hidden * saved.gating
    of_mapped = _selu_backward(of_selected, saved.selected)
    of_inner = _product(of_mapped, saved.ready.mT)
    of_ready = _product(block.inner.mT, of_mapped).view(shape)
    if saved.factor is not None:
        of_ready.mul_(saved.factor)
    found, of_scale, of_shift = _normalised_backward(of_ready, saved.between.view(shape), block.inner_scale)
    of_between = found.view(gradient.shape).add_(gradient)
    of_gate = None
    if block.gate is not None:
        of_gating = of_hidden.mul_(saved.selected)
        of_gate = _product(of_gating, saved.between.mT)
        of_between = _sum_of_product(of_between, block.gate.mT, of_gating)
    return of_between, (of_scale, of_shift, of_inner, of_gate, of_outer)


def _product(left: Tensor, right: Tensor) -> Tensor:
    """Return (m, k)·(k, n), or S such products of (S, m, k) and (S, k, n)."""
    return torch.mm(left, right) if left.dim() == 2 else torch.bmm(left, right)


def _sum_of_product(start: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return start + left·right, for matrices or stacks of matrices as in `_product`."""
    return torch.addmm(start, left, right) if left.dim() == 2 else torch.baddbmm(start, left, right)


def _normalised_backward(gradient: Tensor, tokens: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if scale.dim() == 2:
        factor = scale * NORMALISATION_FACTOR
        of_scale = (gradient * tokens).sum((1, 3)).mul_(NORMALISATION_FACTOR)
        return gradient * factor.view(len(scale), 1, -1, 1), of_scale, gradient.sum((1, 3))
    mean, variance = standard_statistics(scale)
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward.default(
        gradient, tokens, scale, mean, variance, None, None, False, NORMALISATION_EPSILON, (True, True, True)
    )
    return found


def _selu_backward(gradient: Tensor, result: Tensor) -> Tensor:
    # The gradient of SELU follows from SELU's result, so its argument is not saved.
    found: Tensor = torch.ops.aten.elu_backward.default(gradient, _SELU_ALPHA, _SELU_SCALE, 1.0, True, result)
    return found
