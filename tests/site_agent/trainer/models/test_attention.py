"""The layers of the networks: attention and its blocks by hand, the affine normalisation, and AlphaDropout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from site_agent.trainer.models import transformer
from site_agent.trainer.models.layers import Normalisation, _dropout_terms
from site_agent.trainer.models.transformer import attend
from tests.for_each import for_each


def library(projections: Tensor, heads: int) -> Tensor:
    """The library's attention of (3·e, d, B), laid out as ours."""
    rows, tokens, batch = projections.shape
    # (3, width, heads, tokens, batch) as the library wants it: 3 of (batch, heads, tokens, width)
    queries, keys, values = projections.view(3, rows // 3 // heads, heads, tokens, batch).permute(0, 4, 2, 3, 1)
    result = functional.scaled_dot_product_attention(queries, keys, values)
    return result.permute(3, 1, 2, 0).reshape(rows // 3, tokens, batch)


def check(projections: Tensor, heads: int) -> None:
    """Ours equals the library's, and so does the gradient; without gradients the result is the same to the bit."""
    rows, tokens, batch = projections.shape
    generator = torch.Generator().manual_seed(1)
    gradient = torch.randn(rows // 3, tokens, batch, dtype=projections.dtype, generator=generator)

    expected = library(projections.requires_grad_(), heads)
    result = attend(projections, heads)
    (wanted,), (found,) = (torch.autograd.grad(one, [projections], gradient) for one in (expected, result))

    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(found, wanted)
    with torch.no_grad():
        assert torch.equal(attend(projections, heads), result)


@pytest.fixture(params=["few", "many", "many groups"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    # The three ways are chosen by size; small sizes go through each of them here.
    if request.param != "few":
        monkeypatch.setattr(transformer, "_FEW", 0)
    if request.param == "many groups":
        monkeypatch.setattr(transformer, "_IN_A_GROUP", 150)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize(("width", "heads"), [(1, 4), (2, 8), (3, 2), (4, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_attention_and_its_gradient_equal_the_library(width: int, heads: int, seed: int) -> None:
    """The result and the gradient equal the library's attention and its derived gradient."""
    generator = torch.Generator().manual_seed(seed)

    check(torch.randn(3 * width * heads, 7, 5, dtype=torch.float64, generator=generator), heads)


@pytest.mark.parametrize(("tokens", "batch"), [(40, 300), (3, 6000)])
def test_sizes_that_are_parted_into_groups_equal_the_library(tokens: int, batch: int) -> None:
    """Large batches, computed in groups, give what the library gives."""
    generator = torch.Generator().manual_seed(tokens)

    check(torch.randn(48, tokens, batch, dtype=torch.float64, generator=generator), 8)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("size", [10.0, 50.0])
def test_bounds_that_are_far_above_every_score_lose_nothing(size: float) -> None:
    """Where each channel's largest product is at another key, float32 is as exact as elsewhere."""
    projections = torch.zeros(6, 2, 3)
    projections[:2] = size  # one head of width 2: queries (size, size)
    projections[2, 0], projections[3, 0] = size, -size + 1e-3  # keys whose products nearly cancel
    projections[2, 1], projections[3, 1] = -size, size
    projections[4:] = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0))

    result = attend(projections.requires_grad_(), 1)

    exact = library(projections.double(), 1).float()
    torch.testing.assert_close(result, exact, rtol=2e-3, atol=1e-4)
    assert torch.autograd.grad(result.sum(), [projections])[0].isfinite().all()


@pytest.mark.usefixtures("_way")
def test_enormous_scores_stay_finite() -> None:
    """Scores far beyond the range of exp give finite results and gradients."""
    projections = 1e4 * torch.randn(48, 6, 3, generator=torch.Generator().manual_seed(0))

    result = attend(projections.requires_grad_(), 8)

    assert result.isfinite().all()
    assert torch.autograd.grad(result.sum(), [projections])[0].isfinite().all()


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
    factor, shift = _dropout_terms(values, rate)
    torch.manual_seed(4)
    expected = functional.alpha_dropout(values, rate, training=True)

    torch.testing.assert_close(factor * values + shift, expected, rtol=1e-5, atol=1e-5)
    assert (factor == 0).float().mean().item() == pytest.approx(rate, abs=0.02)
