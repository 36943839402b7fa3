"""Defines CHFL's second simple method: a unique network reads its own columns and the common network's output.

Source: Mori et al. 2022, section V-B5. The common network is trained on its own loss and is federated. The unique
network is trained on the joint loss, whose gradient does not reach the common network. Built as a hospital's own module
for the experiment `chfl`.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn

HIDDEN: Final = (512, 256, 128)
# The experiment's common columns, which come first.
COMMON: int = 16


class BothLosses(torch.autograd.Function):
    """Returns the unique logits. In the backward pass, the common logits get a gradient of their own cross-entropy.

    The gradient of a mean cross-entropy is (softmax - target) / rows. So the common one follows from the unique one
    without the targets.
    """

    @staticmethod
    def forward(context: Any, unique: Tensor, common: Tensor) -> Tensor:  # type: ignore[override]
        """Return the unique logits (B, C)."""
        context.save_for_backward(unique.softmax(-1), common.softmax(-1))
        return unique.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return the gradients of both cross-entropies, each for its own logits."""
        unique, common = context.saved_tensors
        return gradient, gradient + (common - unique) / len(gradient)


class Concatenated(nn.Module):
    """`common` reads the common columns, `unique` the others and the common logits."""

    def __init__(self, columns: int, outputs: int) -> None:
        super().__init__()
        self.common = _dense(COMMON, outputs)
        self.unique = _dense(columns - COMMON + outputs, outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Return logits (B, C) of encoded rows (B, d)."""
        common = self.common(rows[:, :COMMON])
        unique = self.unique(torch.cat([rows[:, COMMON:], common.detach()], dim=1))
        logits: Tensor = BothLosses.apply(unique, common)  # type: ignore[no-untyped-call]
        return logits


def build(columns: int, outputs: int) -> nn.Module:
    """Build the network. The arguments are those of `site_agent.trainer.models.user_module`."""
    return Concatenated(columns, outputs)


def _dense(columns: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inner, outer in zip((columns, *HIDDEN), HIDDEN, strict=False):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(HIDDEN[-1], outputs))
