"""Computes the transformer blocks of "Global Layers" in a single autograd step, with a handwritten gradient.

For small batches most of a block's time is spent on starting its hundred small operations. A handwritten gradient
starts about half as many as the derived one. Tokens have the axes (e, d, B): entity width, columns, batch. Every linear
map is then one matrix product over all tokens of all rows. If the tensors have a stack axis of S copies in front, all
other arrays have it too. The rules:

* gradients are those of the formulas below, to rounding; a test compares with finite differences;
* the caller makes dropout's random draws, so this file draws no random number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from protos.plan.architecture import GlobalLayersNetwork
from site_agent.trainer.models.attention import Kept, attend, attend_backward
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
        ctx.heads, ctx.kept = heads, []
        for block, dropout in zip(_grouped(flat), terms, strict=True):
            tokens, kept = _block(tokens, block, heads, dropout)
            ctx.kept.append(kept)
        return tokens

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        gradient = gradient.contiguous()
        found: list[Tensor | None] = []
        for block, kept in zip(reversed(_grouped(ctx.saved_tensors)), reversed(ctx.kept), strict=True):
            gradient, of_block = _block_backward(gradient, block, kept, ctx.heads)
            found[:0] = of_block
        return gradient, None, None, *found


def _grouped(flat: Sequence[Any]) -> list[BlockTensors]:
    size = len(BlockTensors._fields)
    return [BlockTensors(*flat[start : start + size]) for start in range(0, len(flat), size)]


@dataclass(slots=True)
class _Kept:
    """Intermediate results of one block, for the backward pass: matrices (rows, d·B) if no shape is given below."""

    tokens: Tensor  # (e, d, B)
    normalised: Tensor
    attention: Kept
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
) -> tuple[Tensor, _Kept]:
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
    kept = _Kept(
        tokens, normalised, attention, attended, between, ready, factor, selected, gating, hidden, result
    )  # fmt: skip
    return torch.add(result, between).view(shape), kept


def _block_backward(gradient: Tensor, block: BlockTensors, kept: _Kept, heads: int) -> tuple[Tensor, BlockTensors]:
    """Return the gradients of the tokens and of the block's tensors, from the gradient of the result, (e, d, B)."""
    shape = gradient.shape
    flat = (*shape[:-2], -1)
    gradient = gradient.view(flat)
    of_between, feedforward = _feedforward_backward(gradient, block, kept, shape)
    of_output = _product(of_between, kept.attended.mT)
    of_attended = _product(block.output.mT, of_between).view(shape)
    of_projected = attend_backward(of_attended, kept.attention, heads).flatten(-2)
    of_projections = _product(of_projected, kept.normalised.mT)
    of_normalised = _sum_of_product(of_between, block.projections.mT, of_projected)
    of_tokens, of_scale, of_shift = _normalised_backward(of_normalised.view(shape), kept.tokens, block.scale)
    return of_tokens, BlockTensors(of_scale, of_shift, of_projections, of_output, *feedforward)


def _feedforward_backward(
    gradient: Tensor, block: BlockTensors, kept: _Kept, shape: torch.Size
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]]:
    """Return the gradients of a (including the residual path) and of the block's five tensors from `inner_scale` on."""
    of_result = _selu_backward(gradient, kept.result)
    of_outer = _product(of_result, kept.hidden.mT)
    of_hidden = _product(block.outer.mT, of_result)
    of_selected = of_hidden if kept.gating is None else of_hidden * kept.gating
    of_mapped = _selu_backward(of_selected, kept.selected)
    of_inner = _product(of_mapped, kept.ready.mT)
    of_ready = _product(block.inner.mT, of_mapped).view(shape)
    if kept.factor is not None:
        of_ready.mul_(kept.factor)
    found, of_scale, of_shift = _normalised_backward(of_ready, kept.between.view(shape), block.inner_scale)
    of_between = found.view(gradient.shape).add_(gradient)
    of_gate = None
    if block.gate is not None:
        of_gating = of_hidden.mul_(kept.selected)
        of_gate = _product(of_gating, kept.between.mT)
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
    # The gradient of SELU follows from SELU's result, so its argument is not kept.
    found: Tensor = torch.ops.aten.elu_backward.default(gradient, _SELU_ALPHA, _SELU_SCALE, 1.0, True, result)
    return found
