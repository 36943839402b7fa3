"""Parameters cross between torch and the wire by name, in order, and nothing else comes along."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from site_agent.trainer.training.bridge import FlatNetwork


def _network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5), nn.Linear(5, 2))


FEDERATED = ("1.bias", "1.weight")


@pytest.mark.parametrize("seed", range(10))
def test_laying_out_keeps_every_value_and_prediction(seed: int) -> None:
    """A network predicts the same before and after its parameters share one tensor."""
    network, rows = _network(seed), torch.ones(7, 3)
    before, values = network(rows), {name: value.detach().clone() for name, value in network.named_parameters()}

    flat = FlatNetwork(network, FEDERATED)

    assert torch.equal(network(rows), before)
    assert all(np.array_equal(array, values[name]) for name, array in flat.values().items())
    assert flat.federated == (("1.bias", (5,)), ("1.weight", (5, 4)))


@pytest.mark.parametrize("seed", range(10))
def test_private_parameters_are_never_in_a_change(seed: int) -> None:
    """Whatever happens to the private ones, the change is the federated ones' alone, in their order."""
    flat, generator = FlatNetwork(_network(seed), FEDERATED), np.random.default_rng(seed)
    received = generator.normal(size=25).astype(np.float32)
    flat.take_in(received, 1.0)
    bias, weight = generator.normal(size=5).astype(np.float32), generator.normal(size=(5, 4)).astype(np.float32)

    with torch.no_grad():
        for name, parameter in flat.network.named_parameters():
            parameter.fill_(torch.nan) if name not in FEDERATED else None
        flat.network.get_parameter("1.bias").copy_(torch.from_numpy(bias))
        flat.network.get_parameter("1.weight").copy_(torch.from_numpy(weight))
    change = flat.change(received)

    np.testing.assert_array_equal(change, np.concatenate([bias, weight.ravel()]) - received)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("rate", [0.25, 0.7, 1.0])
def test_taking_in_mixes_own_and_shared(seed: int, rate: float) -> None:
    """The federated ones become (1 - rate) own + rate shared; the private ones stay."""
    flat = FlatNetwork(_network(seed), FEDERATED)
    own, private = flat.change(np.zeros(25, np.float32)), flat.values()["0.weight"]
    received = np.random.default_rng(seed).normal(size=25).astype(np.float32)

    flat.take_in(received, rate)

    np.testing.assert_allclose(flat.change(np.zeros(25, np.float32)), (1 - rate) * own + rate * received, atol=1e-6)
    np.testing.assert_array_equal(flat.values()["0.weight"], private)


def test_the_optimisers_gradient_is_the_networks() -> None:
    """One tensor holds every gradient, so one step moves every parameter."""
    flat, other = FlatNetwork(_network(0), FEDERATED), _network(0)

    for network in (flat.network, other):
        torch.autograd.backward(network(torch.ones(2, 3)).square().sum())

    order = [*FEDERATED, "0.weight", "0.bias", "2.weight", "2.bias"]
    gradients = [other.get_parameter(name).grad for name in order]
    assert torch.equal(flat.gradient, torch.cat([gradient.flatten() for gradient in gradients if gradient is not None]))


def test_what_is_handed_out_is_a_copy() -> None:
    """Later training changes neither values nor a change nor a snapshot."""
    flat = FlatNetwork(_network(0), FEDERATED)
    values, change, snapshot = flat.values(), flat.change(np.zeros(25, np.float32)), flat.snapshot()
    copies = values["1.bias"].copy(), change.copy(), snapshot.clone()

    flat.parameter.data.add_(1.0)

    np.testing.assert_array_equal(values["1.bias"], copies[0])
    np.testing.assert_array_equal(change, copies[1])
    assert torch.equal(snapshot, copies[2])


def test_a_snapshot_and_loaded_values_bring_everything_back() -> None:
    """Into the same network, and by name into another one of its kind."""
    flat, other = FlatNetwork(_network(0), FEDERATED), FlatNetwork(_network(1), ("0.bias",))
    snapshot, values, rows = flat.snapshot(), flat.values(), torch.ones(3, 3)
    expected = flat.network(rows)

    flat.parameter.data.zero_()
    flat.restore(snapshot)
    other.load(values)

    assert torch.equal(flat.network(rows), expected)
    assert torch.equal(other.network(rows), expected)


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

    for received in (np.zeros(24, np.float32), np.zeros(1, np.float32), np.zeros(25, np.float64)):
        with pytest.raises(ValueError, match="float32 number"):
            flat.take_in(received, 1.0)  # type: ignore[arg-type]
