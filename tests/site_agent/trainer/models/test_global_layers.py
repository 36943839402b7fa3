"""The network: its parameters, and its logits and gradients compared with a plain implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.reference.global_layers import ReferenceNetwork, copy_parameters, reference_tensors
from protos.plan.architecture import Architecture, GlobalLayersNetwork, network_tensors
from site_agent.trainer.site_network import build_network
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
