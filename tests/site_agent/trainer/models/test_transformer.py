"""The hand-written gradient of the blocks against finite differences."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from site_agent.trainer.models.transformer import BlockTensors, transform
from tests.for_each import for_each

TOKENS, WIDTH, BATCH = 3, 4, 2


def block(generator: torch.Generator, *, gate: bool) -> BlockTensors:
    """Random tensors of one block that want gradients."""

    def draw(*shape: int) -> Tensor:
        # Not larger: finite differences of two steep blocks in a row would be wrong themselves.
        return (0.5 * torch.randn(*shape, dtype=torch.float64, generator=generator)).requires_grad_()

    hidden = WIDTH // 2
    return BlockTensors(
        draw(TOKENS), draw(TOKENS), draw(3 * WIDTH, WIDTH), draw(WIDTH, WIDTH), draw(TOKENS), draw(TOKENS),
        draw(hidden, WIDTH), draw(hidden, WIDTH) if gate else None, draw(WIDTH, hidden),
    )  # fmt: skip


@pytest.mark.parametrize(("gate", "dropout"), [(False, 0.4), (True, 0.0)])
@for_each("seed", range(1))
def test_the_gradient_is_that_of_finite_differences(gate: bool, dropout: float, seed: int) -> None:
    """Two blocks in a row have the gradient of finite differences in the tokens and in every tensor."""
    generator = torch.Generator().manual_seed(seed)
    blocks = [block(generator, gate=gate) for _ in range(2)]
    tokens = torch.randn(WIDTH, TOKENS, BATCH, dtype=torch.float64, generator=generator, requires_grad=True)
    inputs = [tokens, *(tensor for each in blocks for tensor in each if tensor is not None)]

    def run(values: Tensor, *_: Tensor) -> Tensor:
        torch.manual_seed(seed)  # the same values are dropped in every evaluation
        return transform(values, blocks, 2, dropout)

    assert torch.autograd.gradcheck(run, inputs)


def test_without_blocks_tokens_pass_unchanged() -> None:
    """A network may have no transformer block at all."""
    tokens = torch.ones(WIDTH, TOKENS, BATCH)

    assert transform(tokens, [], 2, 0.0) is tokens
