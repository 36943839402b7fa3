"""Penalties are the gradients that their formulas say, on federated parameters only."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from protos.ingredients import Proximal
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.penalties import add_penalties


@pytest.mark.parametrize("strength", [0.01, 1.0, 7.5])
def test_the_proximal_gradient_is_that_of_its_formula(strength: float) -> None:
    """Autograd of strength / 2 * ||own - received||^2 gives what is added; private parameters get nothing."""
    torch.manual_seed(0)
    flat = FlatNetwork(nn.Linear(3, 2), ["weight"])
    flat.gradient.copy_(torch.arange(8.0))
    received = torch.randn(6)
    own = flat.federated_values.clone().requires_grad_()
    (formula,) = torch.autograd.grad(strength / 2 * ((own - received) ** 2).sum(), own)

    add_penalties((Proximal(strength),), flat, received)

    torch.testing.assert_close(flat.gradient[:6], torch.arange(6.0) + formula)
    assert flat.gradient[6:].tolist() == [6.0, 7.0]


def test_at_the_received_values_nothing_pulls() -> None:
    """In the first step of a round the proximal term has no gradient."""
    flat = FlatNetwork(nn.Linear(2, 1), ["weight", "bias"])

    add_penalties((Proximal(5.0),), flat, flat.federated_values.clone())

    assert not flat.gradient.any()
