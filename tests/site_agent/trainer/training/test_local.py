"""Training at one site repeats to the bit: its batches, dropout and rates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from protos.plan.architecture import GlobalLayersNetwork, network_tensors
from protos.plan.ingredients import Method
from protos.plan.optimisers import AdamW, Optimiser, TaskDefault
from site_agent.trainer.arithmetic import prepare_arithmetic
from site_agent.trainer.data.contract import Task
from site_agent.trainer.site_network import build_network
from site_agent.trainer.training.batches import Batches, Rows
from site_agent.trainer.training.flat_network import FlatNetwork
from site_agent.trainer.training.local import LocalTraining
from site_agent.trainer.training.procedures import build_procedure
from site_agent.trainer.training.torch_losses import build_loss
from site_agent.trainer.training.training_model import Recipe
from tests.for_each import for_each

prepare_arithmetic(1)  # as every trainer does before it trains

COLUMNS = 5
FEDERATED = ("body.layer3.linear.weight", "body.layer3.linear.bias")


def _rows(seed: int, task: Task, count: int) -> Rows:
    generator = np.random.default_rng(seed)
    features = torch.from_numpy(generator.normal(size=(count, COLUMNS)).astype(np.float32))
    if task == "multi-class":
        return Rows(features, torch.from_numpy(generator.integers(0, 3, size=count)))
    targets = features[:, 0] + features[:, 1]
    return Rows(features, (targets > 0).float() if task == "binary" else targets)


def _training(
    seed: int,
    *,
    task: Task = "binary",
    dropout: float = 0.0,
    optimiser: Optimiser | None = None,
    dropout_seed: int | None = None,
) -> tuple[LocalTraining, FlatNetwork, Recipe]:
    architecture = GlobalLayersNetwork(
        name="global-layers-network", latent=8, gate=True, input_normalisation=True, entity_width=4, heads=2,
        transformer_blocks=1, dropout=dropout,
    )  # fmt: skip
    outputs = 3 if task == "multi-class" else 1
    rows = _rows(seed, task, 43)
    recipe = Recipe(
        build=lambda: FlatNetwork(build_network(architecture, COLUMNS, outputs), FEDERATED),
        loss=build_loss(TaskDefault(name="task-default"), task, outputs, rows.targets),
        optimiser=optimiser or AdamW(name="adamw", learning_rate=0.01),
    )
    flat = recipe.build()
    flat.start(network_tensors(architecture, columns=COLUMNS, outputs=outputs), seed)
    training = LocalTraining(
        build_procedure(Method(), flat, recipe),
        rows=rows,
        batches=Batches(43, 4, np.random.default_rng(seed)),
        dropout_seed=seed if dropout_seed is None else dropout_seed,
    )
    return training, flat, recipe


def _train(training: LocalTraining, flat: FlatNetwork, steps: int) -> None:
    training.train_round(steps, flat.federated_values.clone())


def _numbers(flat: FlatNetwork) -> Tensor:
    return torch.cat([stretch.data for stretch in flat.stretches])


@for_each("seed", range(3))
def test_dropout_depends_on_its_seed_and_leaves_no_trace(seed: int) -> None:
    """Two seeds train differently, and the process's own generator goes on as if nothing had happened."""
    one, first, _ = _training(seed, dropout=0.3)
    two, second, _ = _training(seed, dropout=0.3, dropout_seed=seed + 1)
    before = torch.get_rng_state()

    _train(one, first, 3)
    _train(two, second, 3)

    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(_numbers(first), _numbers(second))


def _batches(seed: int, rows: int = 43, count: int = 4, batch_rows: int | None = None) -> Batches:
    return Batches(rows, count, np.random.default_rng(seed), batch_rows=batch_rows)


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
