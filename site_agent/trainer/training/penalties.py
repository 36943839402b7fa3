"""Computes the penalties that a method adds to the task's loss function in training.

Checkpoints are chosen by the task's loss alone, without these terms. The proximal term is added as its gradient. The
contrastive terms need the outputs of two frozen networks for the same batch: the model as it was received, and the
site's own model at the end of its last round.
"""

from __future__ import annotations

from typing import assert_never

import torch
from torch import Tensor
from torch.nn import functional

from protos.plan.ingredients import Contrastive, ExtractorContrast, Penalty, Proximal
from site_agent.trainer.training.batches import Rows
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.state import State, part_of, prefixed
from site_agent.trainer.training.training_model import Recipe, Term, as_representing


class Penalties:
    """Adds a method's penalties to the training of one model."""

    def __init__(self, penalties: tuple[Penalty, ...], flat: FlatNetwork, recipe: Recipe) -> None:
        self._penalties, self._flat = penalties, flat
        self._contrasts = any(not isinstance(penalty, Proximal) for penalty in penalties)
        self._received = torch.empty(0)
        self._as_received = _frozen(recipe) if self._contrasts else None
        self._as_left = _frozen(recipe) if self._contrasts else None
        self._has_left = False

    def begin_round(self, received: Tensor) -> None:
        """Start a round, after the model has loaded the received shared parameters."""
        self._received = received
        if self._as_received is not None:
            self._as_received.adopt(self._flat)

    def end_round(self) -> None:
        """Finish a round, after the last training step."""
        if self._as_left is not None:
            self._as_left.adopt(self._flat)
            self._has_left = True

    def term(self, batch: Rows) -> Term | None:
        """Return how to add contrastive terms to a batch's loss, or None without such terms and in the first round."""
        if self._as_received is None or self._as_left is None or not self._has_left:
            return None
        with torch.no_grad():
            received = as_representing(self._as_received.network).represent(batch.features)
            left = as_representing(self._as_left.network).represent(batch.features)
        return lambda own: torch.stack([_contrast(p, own, received, left) for p in self._penalties]).sum()

    def add_gradients(self) -> None:
        """Add the proximal term's gradient to the model's gradient, in place."""
        for penalty in self._penalties:
            if isinstance(penalty, Proximal):
                # The gradient of strength / 2 * ||own - received||^2; private parameters have none.
                difference = self._flat.federated_values - self._received
                self._flat.federated_gradient.add_(difference, alpha=penalty.strength)

    def state(self) -> State:
        """Return the state of the penalties that the next round needs."""
        return prefixed("left", self._as_left.state()) if self._as_left is not None and self._has_left else {}

    def restore(self, state: State) -> None:
        """Continue from a saved state of the penalties. Call `begin_round` first."""
        kept = part_of(state, "left")
        self._has_left = bool(kept)
        if kept and self._as_left is not None:
            self._as_left.restore(kept)


def contrast(own: Tensor, alike: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Compute the contrastive loss: the mean cross-entropy of [cos(z, a), cos(z, b)] / temperature with label 0.

    Source: Li et al. 2021 (MOON), eq. 3. z is `own`, a is `alike` and b is `other`: float32 of shape (rows, width), or
    (copies, rows, width), the latter two without gradient. Return shape (), the sum over copies of their means.
    """
    towards = functional.cosine_similarity(own, alike, dim=-1)
    away = functional.cosine_similarity(own, other, dim=-1)
    return functional.softplus((away - towards) / temperature).mean(-1).sum()


def _contrast(
    penalty: Penalty, own: tuple[Tensor, ...], received: tuple[Tensor, ...], left: tuple[Tensor, ...]
) -> Tensor:
    match penalty:
        case Proximal():
            return torch.zeros((), device=own[0].device)
        case Contrastive(strength=strength, temperature=temperature):
            pairs = zip(own, received, left, strict=True)
            return strength * torch.stack([contrast(z, a, b, temperature) for z, a, b in pairs]).sum()
        case ExtractorContrast(common_strength=common, unique_strength=unique, temperature=temperature):
            of_common = contrast(own[0], received[0], left[0], temperature)
            return common * of_common + unique * contrast(own[1], left[1], received[0], temperature)
        case _:
            assert_never(penalty)


def _frozen(recipe: Recipe) -> FlatNetwork:
    flat = recipe.build()
    flat.network.eval()
    return flat
