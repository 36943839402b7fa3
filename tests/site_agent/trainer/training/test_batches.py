"""The rows of a step: equal batches, no row twice in an epoch, and the same again from a state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from site_agent.trainer.training.batches import Batches, Rows
from tests.for_each import for_each


def _batches(seed: int, rows: int = 43, count: int = 4, batch_rows: int | None = None) -> Batches:
    return Batches(rows, count, [np.random.default_rng(seed)], stacked=False, batch_rows=batch_rows)


@for_each("seed", range(5))
def test_every_epoch_uses_equal_batches_and_no_row_twice(seed: int) -> None:
    """43 rows in 4 batches are 10 each; 3 are left over, other ones in other epochs."""
    batches = _batches(seed)

    epochs = [torch.cat([batches.draw() for _ in range(4)]) for _ in range(3)]

    assert [len(epoch.unique()) for epoch in epochs] == [40, 40, 40]
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3
    assert all(0 <= row < 43 for epoch in epochs for row in epoch.tolist())


@pytest.mark.parametrize("drawn", [0, 3, 4, 6])
@for_each("seed", range(5))
def test_a_state_brings_back_the_batches_that_follow_it(seed: int, drawn: int) -> None:
    """Into the same batches after others were drawn, and into fresh ones of another seed."""
    batches, other = _batches(seed), _batches(seed + 1)
    for _ in range(drawn):
        batches.draw()
    state = batches.state()
    expected = torch.stack([batches.draw() for _ in range(7)])

    for restored in (batches, other):
        restored.restore(state)

        assert torch.equal(torch.stack([restored.draw() for _ in range(7)]), expected)


@for_each("seed", range(3))
def test_each_copy_of_a_stack_draws_as_it_would_alone(seed: int) -> None:
    """Two copies, two generators: row by row the batches of two separate trainings, and their rows."""
    stack = Batches(43, 4, [np.random.default_rng(seed), np.random.default_rng(seed + 7)], stacked=True)
    features = torch.arange(2.0 * 43 * 3).reshape(2, 43, 3)
    rows = Rows(features, torch.arange(2.0 * 43).reshape(2, 43))
    alone = [_batches(seed), _batches(seed + 7)]

    for _ in range(9):
        drawn, single = stack.draw(), [batches.draw() for batches in alone]
        chosen = rows.select(drawn)

        assert torch.equal(drawn, torch.stack(single))
        for copy in range(2):
            expected = Rows(rows.features[copy], rows.targets[copy]).select(single[copy])
            assert torch.equal(chosen.features[copy], expected.features)
            assert torch.equal(chosen.targets[copy], expected.targets)
