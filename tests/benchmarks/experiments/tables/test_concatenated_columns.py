"""The concatenated network of CHFL's experiment trains each network on its own loss."""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from benchmarks.experiments.modules.concatenated_columns import COMMON, Concatenated
from benchmarks.experiments.tables.chfl import listed_tensors


def test_each_network_has_the_gradient_of_its_own_loss() -> None:
    """One backward pass gives both gradients, as two passes by hand do; the common network hears no other loss."""
    torch.manual_seed(1)
    network, rows, targets = Concatenated(COMMON + 4, 7), torch.randn(6, COMMON + 4), torch.arange(6)
    common = network.common(rows[:, :COMMON])
    unique = network.unique(torch.cat([rows[:, COMMON:], common.detach()], dim=1))
    by_hand = torch.autograd.grad(cross_entropy(common, targets) + cross_entropy(unique, targets), network.parameters())

    logits = network(rows)
    cross_entropy(logits, targets).backward()

    torch.testing.assert_close(logits, unique)
    for parameter, expected in zip(network.parameters(), by_hand, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected, atol=1e-6, rtol=1e-4)


def test_the_plan_lists_the_common_network() -> None:
    """Names and shapes are those of the module, and nothing of the unique network is listed."""
    shapes = {name: list(values.shape) for name, values in Concatenated(COMMON + 4, 7).named_parameters()}

    listed = {each["name"]: each["shape"] for each in listed_tensors(COMMON)}

    assert listed == {name: shape for name, shape in shapes.items() if name.startswith("common.")}
