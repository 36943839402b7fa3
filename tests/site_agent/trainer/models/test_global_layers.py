"""The network: its parameters, and its logits and gradients compared with a plain implementation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.reference.global_layers import ReferenceNetwork, copy_parameters, reference_tensors
from protos.errors import ConfigurationError
from protos.plan.architecture import Architecture, GlobalLayersNetwork, NamedTensor, NamedTensors, network_tensors
from site_agent.trainer.models.network_catalogue import build_network
from tests.site_agent.trainer.models.starting import start

HEART = GlobalLayersNetwork(name="global-layers-network", latent=128, gate=False, input_normalisation=False)
COVERTYPE = GlobalLayersNetwork(name="global-layers-network", latent=176, gate=True, input_normalisation=True)
SMALL = GlobalLayersNetwork(
    name="global-layers-network", latent=8, gate=True, input_normalisation=True, transformer_blocks=2
)


def started(architecture: Architecture, columns: int, outputs: int, seed: int = 0) -> nn.Module:
    """A network with its first values, its normalisations moved away from 1 and 0."""
    network = build_network(architecture, columns, outputs)
    start(network, network_tensors(architecture, columns=columns, outputs=outputs), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, values in network.named_parameters():
            if "normalisation" in name:
                values.add_(0.3 * torch.randn(values.shape, generator=generator))
    return network


@pytest.mark.parametrize("architecture", [HEART, COVERTYPE, SMALL, SMALL.model_copy(update={"transformer_blocks": 0})])
@pytest.mark.parametrize(("columns", "outputs"), [(1, 1), (9, 1), (13, 2), (54, 7)])
def test_parameters_are_the_listed_tensors(architecture: GlobalLayersNetwork, columns: int, outputs: int) -> None:
    """The network's parameters equal the plan's tensors in names, order and shapes; there is no buffer."""
    network = build_network(architecture, columns, outputs)

    listed = network_tensors(architecture, columns=columns, outputs=outputs)
    assert [(name, tuple(values.shape)) for name, values in network.named_parameters()] == [
        (spec.name, spec.shape) for spec in listed
    ]
    assert list(network.state_dict()) == [spec.name for spec in listed]
    assert [spec.name.partition(".")[0] for spec in listed] == [spec.part.value for spec in listed]


@pytest.mark.parametrize("changes", [{}, {"heads": 4}, {"heads": 16}, {"entity_width": 8, "heads": 2}, {"gate": False}])
@pytest.mark.parametrize("architecture", [SMALL, HEART, COVERTYPE])
def test_logits_and_gradients_equal_the_plain_network(
    architecture: GlobalLayersNetwork, changes: dict[str, Any]
) -> None:
    """In float64 the logits and every gradient equal those of the straightforward implementation."""
    architecture = architecture.model_copy(update=changes)
    ours, reference = started(architecture, 11, 3).double(), ReferenceNetwork(architecture, 11, 3).double()
    copy_parameters(ours, reference, architecture.heads)
    rows = torch.randn(19, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    our_logits, reference_logits = ours(rows), reference(rows)
    our_logits.square().mean().backward()
    reference_logits.square().mean().backward()

    torch.testing.assert_close(our_logits, reference_logits, rtol=1e-10, atol=1e-12)
    gradients = {name: values.grad for name, values in ours.named_parameters() if values.grad is not None}
    translated = reference_tensors(gradients, architecture.heads)
    for name, values in reference.named_parameters():
        torch.testing.assert_close(translated[name], values.grad, rtol=1e-8, atol=1e-12, msg=name)


@pytest.mark.parametrize("batch", [1, 2, 36, 200])
def test_prediction_does_not_depend_on_the_batch(batch: int) -> None:
    """A row's logit is the same alone, in a small batch and in a large one, up to rounding."""
    network = started(HEART, 13, 1).eval()
    rows = torch.randn(200, 13, generator=torch.Generator().manual_seed(2))

    with torch.inference_mode():
        together = network(rows)
        parts = torch.cat([network(rows[i : i + batch]) for i in range(0, 200, batch)])

    torch.testing.assert_close(parts, together, rtol=1e-4, atol=1e-5)


def test_training_after_prediction_works() -> None:
    """Prediction in inference mode leaves nothing behind that a training step could not use."""
    network = started(SMALL, 5, 1)

    with torch.inference_mode():
        network(torch.zeros(2, 5))
    network(torch.ones(2, 5)).sum().backward()

    assert all(values.grad is not None for values in network.parameters())


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_repeated_training_gives_the_same_bits(dropout: float) -> None:
    """Two runs from the same start, with the same draws, end with the same bits."""
    architecture = HEART.model_copy(update={"dropout": dropout})
    ends = []

    for _ in range(2):
        torch.manual_seed(3)
        network = started(architecture, 13, 1).train()
        optimiser = torch.optim.AdamW(network.parameters(), fused=True)
        rows = torch.randn(36, 13)
        for _ in range(4):
            optimiser.zero_grad()
            network(rows).square().mean().backward()
            optimiser.step()
        ends.append(copy.deepcopy(network.state_dict()))

    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert all(bool(values.isfinite().all()) for values in ends[0].values())


def test_dropout_works_in_training_only() -> None:
    """With dropout two training passes differ and two evaluations do not."""
    network = started(SMALL.model_copy(update={"dropout": 0.3}), 5, 1)
    rows = torch.ones(4, 5)

    assert not torch.equal(network.train()(rows), network(rows))
    assert torch.equal(network.eval()(rows), network(rows))


def test_a_network_that_nobody_started_says_so() -> None:
    """A fresh network predicts NaN, so forgotten first values cannot pass unnoticed."""
    assert build_network(SMALL, 3, 1)(torch.ones(2, 3)).isnan().all()


def test_listed_tensors_have_no_network() -> None:
    """An architecture that only lists tensors is refused as a network in plain words."""
    listed = NamedTensors(name="named-tensors", tensors=(NamedTensor(name="a", shape=(2,), bound=1.0),))

    with pytest.raises(ConfigurationError, match="no network"):
        build_network(listed, 3, 1)
