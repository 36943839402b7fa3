"""The layers that the networks of this folder share: normalise, map, select, drop.

The batch is the first axis and channels are the second, as torch's own layers have it. The rules:

* a fresh layer holds NaN, because first values come from the plan's seed and not from here;
* the normalisation is affine: it neither measures nor keeps anything about the patients;
* nothing here has a buffer.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

NORMALISATION_EPSILON = 1e-5

# What AlphaDropout puts in the place of a dropped value: SELU's lowest result, -scale·alpha.
_DROPPED_VALUE = -1.0507009873554804934193349852946 * 1.6732632423543772848170429916717


class Linear(nn.Module):
    """W·x + b."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = parameter(outputs, inputs)
        self.bias = parameter(outputs) if bias else None

    def forward(self, values: Tensor) -> Tensor:
        """(B, inputs) to (B, outputs)."""
        return functional.linear(values, self.weight, self.bias)


class Normalisation(nn.Module):
    """γ·x/√(1 + 1e-5) + β over the second axis: BatchNorm1d that never measures."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = parameter(channels)
        self.bias = parameter(channels)

    def forward(self, values: Tensor) -> Tensor:
        """(B, channels) or (B, channels, any) to the same shape."""
        weight = self.weight
        mean, variance = standard_statistics(weight)
        # One kernel forward and one backward, which beats any way to write the line out.
        return torch.batch_norm(values, weight, self.bias, mean, variance, False, 0.0, NORMALISATION_EPSILON, False)


class FeedForward(nn.Module):
    """W2·SELU(W1·Dropout(BN(x))), or W2·(SELU(W1·Dropout(BN(x))) ⊙ W3·x) with a gate."""

    def __init__(self, channels: int, width: int, hidden: int, *, gate: bool, bias: bool, dropout: float) -> None:
        super().__init__()
        self.normalisation = Normalisation(channels)
        self.inner = Linear(width, hidden, bias=bias)
        self.gate = Linear(width, hidden, bias=False) if gate else None
        self.outer = Linear(hidden, width, bias=bias)
        self._dropout = dropout

    def forward(self, values: Tensor) -> Tensor:
        """(B, width) to the same shape."""
        hidden = functional.selu(self.inner(_dropped(self.normalisation(values), self._dropout, self.training)))
        if self.gate is not None:
            hidden = hidden * self.gate(values)
        outer: Tensor = self.outer(hidden)
        return outer


class FullyConnected(nn.Module):
    """Dropout(SELU(Linear(BN(x))))."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.normalisation = Normalisation(inputs)
        self.linear = Linear(inputs, outputs, bias=True)
        self._dropout = dropout

    def forward(self, values: Tensor) -> Tensor:
        """(B, inputs) to (B, outputs)."""
        return _dropped(functional.selu(self.linear(self.normalisation(values))), self._dropout, self.training)


def standard_statistics(scale: Tensor) -> tuple[Tensor, Tensor]:
    """Mean 0 and variance 1 for as many channels as the scale has, of its type and on its device."""
    return _statistics(scale.shape[0], scale.dtype, scale.device)


@lru_cache(maxsize=256)
def _statistics(channels: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    # Constants, not buffers: they must never appear among what is saved or sent. Tensors made in
    # inference mode could not serve a later training step, hence the switch.
    with torch.inference_mode(False):
        return torch.zeros(channels, dtype=dtype, device=device), torch.ones(channels, dtype=dtype, device=device)


def dropout_terms(values: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """A fresh factor and shift of the same shape; AlphaDropout is factor·x + shift.

    Source: Klambauer et al. 2017, section 3: a dropped value becomes SELU's lowest result, then an
    affine map restores mean 0 and variance 1. The choice comes from torch's default generator.

    Args:
        values: only shape and type matter.
        rate: probability of dropping one value, in (0, 1).
    """
    scale = 1.0 / math.sqrt((1.0 - rate) * (1.0 + rate * _DROPPED_VALUE**2))
    kept = torch.empty_like(values).bernoulli_(1.0 - rate)
    return kept * scale, (1.0 - rate - kept) * (scale * _DROPPED_VALUE)


def _dropped(values: Tensor, rate: float, is_training: bool) -> Tensor:
    if rate == 0.0 or not is_training:
        return values
    factor, shift = dropout_terms(values, rate)
    return torch.addcmul(shift, values, factor)


def parameter(*shape: int) -> nn.Parameter:
    """A parameter that shows at once when nobody gave it its first values."""
    return nn.Parameter(torch.full(shape, math.nan))
