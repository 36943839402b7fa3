"""Defines the parts that all networks of this folder use, such as linear layers, normalisation and dropout.

The batch is the first axis and channels are the second, as in torch's own layers. The rules:

* a new layer contains NaN, because the plan's seed gives the first values;
* the normalisation is affine: it neither measures nor stores anything about the patients;
* no layer has a buffer.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from functools import lru_cache
from typing import Protocol, TypeAlias, assert_never, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from protos.plan.architecture import ActivationName

Activation: TypeAlias = Callable[[Tensor], Tensor]

NORMALISATION_EPSILON = 1e-5

# AlphaDropout replaces a dropped value by SELU's lowest result, -scale·alpha.
_DROPPED_VALUE = -1.0507009873554804934193349852946 * 1.6732632423543772848170429916717


@runtime_checkable
class Represents(Protocol):
    """A network whose logits are `decide(represent(rows))`. A hospital's own module can lack these two functions."""

    @abstractmethod
    def represent(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the network's representation of encoded rows, (B, d), before the logits.

        A network with a common and a unique extractor returns both results, in this order.
        """

    @abstractmethod
    def decide(self, representations: tuple[Tensor, ...]) -> Tensor:
        """Return logits (B, C) from the result of `represent`."""


class Network(nn.Module, Represents):
    """A network of this program. It has no buffers, and first values of NaN."""

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits (B, C) of encoded rows (B, d). Images are flat rows."""
        return self.decide(self.represent(rows))


class Linear(nn.Module):
    """A linear layer, W·x + b."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.weight = parameter(outputs, inputs)
        self.bias = parameter(outputs) if bias else None

    def forward(self, values: Tensor) -> Tensor:
        """Apply a linear map to the last axis: (B, inputs) to (B, outputs). Axes between the two are kept."""
        return functional.linear(values, self.weight, self.bias)


class Normalisation(nn.Module):
    """Computes γ·x/√(1 + 1e-5) + β over the second axis, like BatchNorm1d without measuring the batch."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = parameter(channels)
        self.bias = parameter(channels)

    def forward(self, values: Tensor) -> Tensor:
        """Normalise each channel of a batch, (B, channels) or (B, channels, any). The shape stays the same."""
        return affine(values, self.weight, self.bias)


class FeedForward(nn.Module):
    """Computes W2·SELU(W1·Dropout(BN(x))), or with a gate W2·(SELU(W1·Dropout(BN(x))) ⊙ W3·x)."""

    def __init__(self, channels: int, width: int, hidden: int, *, gate: bool, bias: bool, dropout: float) -> None:
        super().__init__()
        self.normalisation = Normalisation(channels)
        self.inner = Linear(width, hidden, bias=bias)
        self.gate = Linear(width, hidden, bias=False) if gate else None
        self.outer = Linear(hidden, width, bias=bias)
        self._dropout = dropout

    def forward(self, values: Tensor) -> Tensor:
        """Apply the feed-forward layer to a batch, (B, width). The shape stays the same."""
        hidden = functional.selu(self.inner(dropped(self.normalisation(values), self._dropout, self.training)))
        if self.gate is not None:
            hidden = hidden * self.gate(values)
        outer: Tensor = self.outer(hidden)
        return outer


class FullyConnected(nn.Module):
    """Computes Dropout(SELU(Linear(BN(x))))."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.normalisation = Normalisation(inputs)
        self.linear = Linear(inputs, outputs, bias=True)
        self._dropout = dropout

    def forward(self, values: Tensor) -> Tensor:
        """Apply the layer to a batch: (B, inputs) to (B, outputs)."""
        return dropped(functional.selu(self.linear(self.normalisation(values))), self._dropout, self.training)


def affine(values: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return γ·x/√(1 + 1e-5) + β along the second axis."""
    mean, variance = _statistics(scale.shape[0], scale.dtype, scale.device)
    # This needs one kernel forward and one kernel backward, and is the fastest way that we know.
    return torch.batch_norm(values, scale, shift, mean, variance, False, 0.0, NORMALISATION_EPSILON, False)


def activation_of(name: ActivationName) -> Activation:
    """Return the activation function that the plan names. It keeps the shape of its input."""
    match name:
        case "relu":
            return functional.relu
        case "selu":
            return functional.selu
        case "gelu":
            return functional.gelu
        case "tanh":
            return torch.tanh
        case _:
            assert_never(name)


@lru_cache(maxsize=256)
def _statistics(channels: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return for each channel a mean of 0 and a variance of 1."""
    # These tensors are constants and not buffers, so that they are never saved or sent. Inference mode is switched off,
    # because a later training step cannot use tensors made in it.
    with torch.inference_mode(False):
        return torch.zeros(channels, dtype=dtype, device=device), torch.ones(channels, dtype=dtype, device=device)


def _dropout_terms(values: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Draw the factor and the shift of AlphaDropout, which computes factor·x + shift, in the shape of `values`.

    Source: Klambauer et al. 2017, section 3: a dropped value becomes SELU's lowest result, then an affine map restores
    mean 0 and variance 1. The random choice uses torch's default generator. `rate` is the probability of dropping one
    value, in (0, 1).
    """
    scale = 1.0 / math.sqrt((1.0 - rate) * (1.0 + rate * _DROPPED_VALUE**2))
    kept = torch.empty_like(values).bernoulli_(1.0 - rate)
    return kept * scale, (1.0 - rate - kept) * (scale * _DROPPED_VALUE)


def dropped(values: Tensor, rate: float, is_training: bool) -> Tensor:
    """Apply AlphaDropout in training. `rate` is the probability of dropping one value, in [0, 1)."""
    if rate == 0.0 or not is_training:
        return values
    factor, shift = _dropout_terms(values, rate)
    return torch.addcmul(shift, values, factor)


def parameter(*shape: int) -> nn.Parameter:
    """Return a new parameter filled with NaN (no number), so that a missing initial value is detected at once."""
    return nn.Parameter(torch.full(shape, math.nan))
