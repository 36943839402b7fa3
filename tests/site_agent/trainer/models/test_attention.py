"""Attention written out, against the library's and at extreme scores."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from site_agent.trainer.models.attention import attend, attend_backward


@pytest.mark.parametrize(("width", "heads"), [(1, 4), (2, 8), (3, 2), (4, 1)])
@pytest.mark.parametrize("seed", range(5))
def test_attention_and_its_gradient_equal_the_library(width: int, heads: int, seed: int) -> None:
    """The result and the hand-written gradient equal the library's attention and its derived gradient."""
    generator = torch.Generator().manual_seed(seed)
    projections = torch.randn(3 * width * heads, 7, 5, dtype=torch.float64, generator=generator, requires_grad=True)
    gradient = torch.randn(width * heads, 7, 5, dtype=torch.float64, generator=generator)

    # (3, width, heads, tokens, batch) as the library wants it: batch, heads, tokens, width
    queries, keys, values = projections.view(3, width, heads, 7, 5).permute(0, 4, 2, 3, 1)
    expected = functional.scaled_dot_product_attention(queries, keys, values).permute(3, 1, 2, 0).reshape(-1, 7, 5)
    expected.backward(gradient)
    with torch.no_grad():
        result, kept = attend(projections, heads)
        found = attend_backward(gradient, kept, heads)

    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(found, projections.grad)


def test_enormous_scores_stay_finite() -> None:
    """Scores far beyond the range of exp give finite results and gradients."""
    projections = 1e4 * torch.randn(48, 6, 3, generator=torch.Generator().manual_seed(0))

    result, kept = attend(projections, 8)

    assert result.isfinite().all()
    assert attend_backward(torch.ones_like(result), kept, 8).isfinite().all()
