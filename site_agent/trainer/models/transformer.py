"""One transformer block of the paper as a single step of autograd, with its gradient by hand.

For small batches the time of a block is not arithmetic but the start of its hundred small
operations; a hand-written gradient starts about half as many as the derived one. Tokens lie as
(e, d, B): entity width, columns, batch. Every linear map is then one matrix product over all tokens
of all rows. The rules:

* gradients are those of the formulas below, to rounding; a test compares with finite differences;
* dropout's random choice is made outside and handed in, so nothing here draws a random number.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from protos.architecture import GlobalLayersNetwork
from site_agent.trainer.models.attention import Attended, attend, attend_backward
from site_agent.trainer.models.layers import (
    NORMALISATION_EPSILON,
    FeedForward,
    Linear,
    Normalisation,
    dropout_terms,
    standard_statistics,
)

# SELU's two constants, Klambauer et al. 2017, as torch has them.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772848170429916717, 1.0507009873554804934193349852946


class TransformerBlock(nn.Module):
    """x ← BN(x); x ← attention(x) + x; SELU(FF(x)) + x, on tokens of shape (e, d, B)."""

    def __init__(self, architecture: GlobalLayersNetwork, columns: int) -> None:
        super().__init__()
        width = architecture.entity_width
        self.normalisation = Normalisation(columns)
        self.attention = SelfAttention(width)
        self.feedforward = FeedForward(
            columns, width, width // 2, gate=architecture.gate, bias=False, dropout=architecture.dropout
        )
        self._heads = architecture.heads
        self._dropout = architecture.dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """(e, d, B) to the same shape."""
        normalisation, attention, feedforward = self.normalisation, self.attention, self.feedforward
        gate = feedforward.gate
        dropout = dropout_terms(tokens, self._dropout) if self._dropout and self.training else None
        block: Tensor = _Block.apply(
            tokens, normalisation.weight, normalisation.bias, attention.projections.weight, attention.output.weight,
            feedforward.normalisation.weight, feedforward.normalisation.bias, feedforward.inner.weight,
            None if gate is None else gate.weight, feedforward.outer.weight, dropout, self._heads,
        )  # type: ignore[no-untyped-call]  # torch leaves Function.apply untyped  # fmt: skip
        return block


class SelfAttention(nn.Module):
    """The two matrices of attention without biases; `TransformerBlock` computes with them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projections = Linear(width, 3 * width, bias=False)
        self.output = Linear(width, width, bias=False)


class _Block(torch.autograd.Function):
    """n = BN(x); a = Wo·attention(Wp·n) + n; SELU(W2·h) + a with h = SELU(W1·(f·BN(a) + t)) [⊙ W3·a].

    f and t are dropout's factor and shift, 1 and 0 where there is none. The order of the arguments
    is that of the results of `backward`.
    """

    @staticmethod
    def forward(
        ctx: Any, tokens: Tensor, scale: Tensor, shift: Tensor, projections: Tensor, output: Tensor,
        inner_scale: Tensor, inner_shift: Tensor, inner: Tensor, gate: Tensor | None, outer: Tensor,
        dropout: tuple[Tensor, Tensor] | None, heads: int,
    ) -> Tensor:  # fmt: skip
        """(e, d, B) to the same shape."""
        normalised = _normalised(tokens, scale, shift)
        attended, kept = attend(_mapped(projections, normalised), heads)
        between = torch.addmm(_flat(normalised), output, _flat(attended)).view(tokens.shape)
        ready = _normalised(between, inner_scale, inner_shift)
        if dropout is not None:
            ready = torch.addcmul(dropout[1], ready, dropout[0])
        selected = functional.selu(torch.mm(inner, _flat(ready)))
        gating = None if gate is None else torch.mm(gate, _flat(between))
        result = functional.selu(torch.mm(outer, selected if gating is None else selected * gating))
        ctx.save_for_backward(
            tokens, scale, projections, output, inner_scale, inner, gate, outer, normalised, attended, between,
            ready, selected, gating, result, kept.packed, kept.exponentials, kept.totals, kept.result,
            None if dropout is None else dropout[0],
        )  # fmt: skip
        ctx.heads = heads
        return torch.add(result.view(tokens.shape), between)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the tokens and of every tensor, in the order of `forward`."""
        (
            tokens, scale, projections, output, inner_scale, inner, gate, outer, normalised, attended, between,
            ready, selected, gating, result, packed, exponentials, totals, attention_result, factor,
        ) = ctx.saved_tensors  # fmt: skip
        gradient = gradient.contiguous()
        of_result = _selu_backward(_flat(gradient), result)
        hidden = selected if gating is None else selected * gating
        of_outer = torch.mm(of_result, hidden.t())
        of_hidden = torch.mm(outer.t(), of_result)
        of_inner_map = _selu_backward(of_hidden if gating is None else of_hidden * gating, selected)
        of_inner = torch.mm(of_inner_map, _flat(ready).t())
        of_ready = torch.mm(inner.t(), of_inner_map).view(tokens.shape)
        if factor is not None:
            of_ready.mul_(factor)
        of_between, of_inner_scale, of_inner_shift = _normalised_backward(of_ready, between, inner_scale)
        of_between.add_(gradient)
        of_gate = None
        if gate is not None:
            of_gating = of_hidden.mul_(selected)
            of_gate = torch.mm(of_gating, _flat(between).t())
            _flat(of_between).addmm_(gate.t(), of_gating)
        of_output = torch.mm(_flat(of_between), _flat(attended).t())
        kept = Attended(packed, exponentials, totals, attention_result)
        of_attended = torch.mm(output.t(), _flat(of_between)).view(tokens.shape)
        of_mapped = _flat(attend_backward(of_attended, kept, ctx.heads))
        of_projections = torch.mm(of_mapped, _flat(normalised).t())
        of_normalised = torch.addmm(_flat(of_between), projections.t(), of_mapped).view(tokens.shape)
        of_tokens, of_scale, of_shift = _normalised_backward(of_normalised, tokens, scale)
        return (
            of_tokens, of_scale, of_shift, of_projections, of_output, of_inner_scale, of_inner_shift, of_inner,
            of_gate, of_outer, None, None,
        )  # fmt: skip


def _flat(tokens: Tensor) -> Tensor:
    return tokens.flatten(1)


def _mapped(matrix: Tensor, tokens: Tensor) -> Tensor:
    return torch.mm(matrix, tokens.flatten(1)).view(-1, tokens.shape[1], tokens.shape[2])


def _normalised(tokens: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    mean, variance = standard_statistics(len(scale), scale.dtype, scale.device)
    return torch.batch_norm(tokens, scale, shift, mean, variance, False, 0.0, NORMALISATION_EPSILON, False)


def _normalised_backward(gradient: Tensor, tokens: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    mean, variance = standard_statistics(len(scale), scale.dtype, scale.device)
    found: tuple[Tensor, Tensor, Tensor] = torch.ops.aten.native_batch_norm_backward.default(
        gradient, tokens, scale, mean, variance, None, None, False, NORMALISATION_EPSILON, (True, True, True)
    )
    return found


def _selu_backward(gradient: Tensor, result: Tensor) -> Tensor:
    # The gradient of SELU follows from its result, so its argument need not be kept.
    found: Tensor = torch.ops.aten.elu_backward.default(gradient, _SELU_ALPHA, _SELU_SCALE, 1.0, True, result)
    return found
