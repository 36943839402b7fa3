"""Terms that a method adds to the task's loss in training; written as their gradients.

Checkpoints are chosen on the task's loss alone, so no penalty is ever evaluated.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from torch import Tensor

from protos.ingredients import Penalty, Proximal
from site_agent.trainer.training.bridge import FlatNetwork


def add_penalties(penalties: Iterable[Penalty], flat: FlatNetwork, received: Tensor) -> None:
    """Add each penalty's gradient to the network's, in place.

    Args:
        penalties: the method's.
        flat: after the task's loss has gone backwards.
        received: float32 of shape (federated numbers,), what this round was trained from.
    """
    for penalty in penalties:
        match penalty:
            case Proximal(strength=strength):
                # The gradient of strength / 2 * ||own - received||^2; private parameters have none.
                flat.federated_gradient.add_(flat.federated_values - received, alpha=strength)
            case _:
                assert_never(penalty)
