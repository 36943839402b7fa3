"""Parameters are converted between torch and the wire by name, in order, and nothing else is added."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from site_agent.trainer.training.flat_network import FlatNetwork

FEDERATED = ("1.bias", "1.weight")


def _network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2))


def test_the_optimisers_gradients_are_the_networks() -> None:
    """Two tensors hold every gradient, so one step for each moves every parameter."""
    flat, other = FlatNetwork(_network(0), FEDERATED), _network(0)

    for network in (flat.network, other):
        torch.autograd.backward(network(torch.ones(2, 3)).square().sum())

    for stretch, names in zip(flat.stretches, [FEDERATED, ["0.weight", "0.bias", "2.weight", "2.bias"]], strict=True):
        gradients = [other.get_parameter(name).grad for name in names]
        assert stretch.grad is not None
        assert torch.equal(stretch.grad, torch.cat([found.flatten() for found in gradients if found is not None]))
    flat.zero_gradients()
    assert not any(inner.grad is None or inner.grad.any() for inner in flat.network.parameters())


def test_a_state_and_loaded_values_bring_everything_back() -> None:
    """Into the same network, and by name into another one of its kind with another layout; buffers too."""
    network = nn.Sequential(_network(0), nn.BatchNorm1d(2))
    other = FlatNetwork(nn.Sequential(_network(1), nn.BatchNorm1d(2)), ("0.0.bias",))
    flat = FlatNetwork(network, ("0.1.bias", "0.1.weight"))
    flat.network(torch.linspace(-1.0, 1.0, 27).reshape(9, 3))  # moves the running mean
    state, values, rows = flat.state(), flat.values(), torch.ones(3, 3)
    expected = flat.network.eval()(rows)

    flat.federated.data.zero_()
    flat.private.data.zero_()
    for buffer in flat.network.buffers():
        buffer.zero_()
    flat.restore(state)
    other.load(values)

    assert torch.equal(flat.network(rows), expected)
    assert torch.equal(other.network.eval()(rows), expected)


@pytest.mark.parametrize("wrong", ["missing", "shape", "type", "stranger"])
def test_values_of_another_network_are_refused(wrong: str) -> None:
    """A name, a shape or a type that is not the network's."""
    flat = FlatNetwork(_network(0), FEDERATED)
    values: dict[str, np.ndarray] = dict(flat.values())
    match wrong:
        case "missing":
            del values["0.bias"]
        case "shape":
            values["0.bias"] = np.zeros((4, 1), np.float32)
        case "type":
            values["0.bias"] = np.zeros(4, np.float64)
        case _:
            values["3.bias"] = np.zeros(4, np.float32)

    with pytest.raises(ValueError, match="another network"):
        flat.load(values)


@pytest.mark.parametrize("federated", [("7.bias",), ("1.bias", "1.bias")])
def test_a_name_the_network_does_not_have_is_refused(federated: tuple[str, ...]) -> None:
    """Also one that is named twice: the vector would be longer than the manifest."""
    with pytest.raises(ValueError, match="federated parameter"):
        FlatNetwork(_network(0), federated)


def test_shared_values_of_another_length_are_refused() -> None:
    """One number too many or too few, or of another kind."""
    flat = FlatNetwork(_network(0), FEDERATED)

    for received in (torch.zeros(24), torch.zeros(1), torch.zeros(25, dtype=torch.float64)):
        with pytest.raises(ValueError, match="float32 number"):
            flat.take_in(received, 1.0)
