"""The shared layers: the affine normalisation and AlphaDropout."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from site_agent.trainer.models.layers import Normalisation, dropout_terms
from tests.for_each import for_each


@for_each("seed", range(10))
def test_the_normalisation_is_batch_normalisation_that_never_trained(seed: int) -> None:
    """It equals γ·x/√(1 + 1e-5) + β over the second axis."""
    generator = torch.Generator().manual_seed(seed)
    normalisation = Normalisation(6).double()
    with torch.no_grad():
        normalisation.weight.copy_(torch.randn(6, generator=generator))
        normalisation.bias.copy_(torch.randn(6, generator=generator))
    values = torch.randn(9, 6, dtype=torch.float64, generator=generator)

    expected = normalisation.weight * values / (1 + 1e-5) ** 0.5 + normalisation.bias

    torch.testing.assert_close(normalisation(values), expected)
    torch.testing.assert_close(normalisation(values.unsqueeze(2)), expected.unsqueeze(2))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.7])
def test_dropout_is_alpha_dropout(rate: float) -> None:
    """For the same draws the factor and shift give what the library's AlphaDropout gives."""
    values = torch.randn(500, 40, generator=torch.Generator().manual_seed(0))

    torch.manual_seed(4)
    factor, shift = dropout_terms(values, rate)
    torch.manual_seed(4)
    expected = functional.alpha_dropout(values, rate, training=True)

    torch.testing.assert_close(factor * values + shift, expected, rtol=1e-5, atol=1e-5)
    assert (factor == 0).float().mean().item() == pytest.approx(rate, abs=0.02)
