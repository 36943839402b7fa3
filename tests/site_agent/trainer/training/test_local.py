"""Training at one site repeats to the bit, whatever else happens in the process."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from protos.architecture import GlobalLayersNetwork, network_tensors
from protos.errors import DataError
from protos.plan import AdamW, Optimiser, Schedule, StochasticGradientDescent
from site_agent.trainer.data.contract import Task
from site_agent.trainer.models.catalogue import build_network
from site_agent.trainer.training.bridge import FlatNetwork
from site_agent.trainer.training.local import LocalTraining, Rows, loss, predict

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
    seed: int, *, task: Task = "binary", dropout: float = 0.0, rows: int = 43, optimiser: Optimiser | None = None
) -> tuple[LocalTraining, FlatNetwork]:
    architecture = GlobalLayersNetwork(
        name="global-layers-network", latent=8, gate=True, input_normalisation=True, entity_width=4, heads=2,
        transformer_blocks=1, dropout=dropout,
    )  # fmt: skip
    outputs = 3 if task == "multi-class" else 1
    flat = FlatNetwork(build_network(architecture, COLUMNS, outputs), FEDERATED)
    flat.start(network_tensors(architecture, columns=COLUMNS, outputs=outputs), seed)
    training = LocalTraining(
        flat,
        task=task,
        training=_rows(seed, task, rows),
        validation=_rows(seed + 1000, task, 9),
        schedule=Schedule(aggregate="every-epoch", epochs=4, batches_per_epoch=4),
        optimiser=optimiser or AdamW(name="adamw", learning_rate=0.01),
        order=np.random.default_rng(seed),
        dropout_seed=seed,
    )
    return training, flat


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_same_seed_gives_the_same_bits_beside_other_training(seed: int, dropout: float) -> None:
    """Other networks that train in between, and torch's own generator, change nothing."""
    (quiet, expected), (disturbed, found) = _training(seed, dropout=dropout), _training(seed, dropout=dropout)
    other, _ = _training(seed + 1, dropout=0.5)

    quiet.train(10)
    for _ in range(10):
        torch.rand(3)
        other.train(1)
        disturbed.train(1)

    assert torch.equal(expected.parameter, found.parameter)


@pytest.mark.parametrize("seed", range(3))
def test_dropout_depends_on_its_seed_and_leaves_no_trace(seed: int) -> None:
    """Two seeds train differently, and the process's own generator goes on as if nothing had happened."""
    (one, first), (two, second) = _training(seed, dropout=0.3), _training(seed, dropout=0.3)
    two._dropout_state = torch.Generator().manual_seed(seed + 1).get_state()
    before = torch.get_rng_state()

    one.train(3)
    two.train(3)

    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first.parameter, second.parameter)


@pytest.mark.parametrize("seed", range(5))
def test_taking_in_ones_own_values_is_no_event(seed: int) -> None:
    """A federation of one site, with update rate 1 and exact exchange, is training alone to the bit."""
    (alone, expected), (federated, found) = _training(seed), _training(seed)

    alone.train(12)
    for _ in range(3):
        federated.train(4)
        own = found.change(np.zeros(sum(found.network.get_parameter(name).numel() for name in FEDERATED), np.float32))
        found.take_in(own, 1.0)

    assert torch.equal(expected.parameter, found.parameter)


@pytest.mark.parametrize("seed", range(5))
def test_every_epoch_uses_equal_batches_and_no_row_twice(seed: int) -> None:
    """43 rows in 4 batches are 10 each; 3 are left over, other ones in other epochs."""
    training, _ = _training(seed)
    epochs = []

    for _ in range(2):
        batches = []
        for _ in range(4):
            batches.append(training._next_rows())
            training.steps_made += 1
        epochs.append(torch.cat(batches))

    assert [len(epoch.unique()) for epoch in epochs] == [40, 40]
    assert not torch.equal(epochs[0], epochs[1])


def test_an_epoch_ends_at_its_border_only() -> None:
    """After 4, 8, ... steps, and not before the first."""
    training, _ = _training(0)
    ended = []

    for _ in range(9):
        ended.append(training.epoch_ended)
        training.train(1)

    assert [step for step, has_ended in enumerate(ended) if has_ended] == [4, 8]


@pytest.mark.parametrize("task", ["binary", "multi-class", "regression"])
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_training_lowers_the_loss(task: Task, name: str) -> None:
    """For every task, with either optimiser."""
    steps: Optimiser = AdamW(name="adamw", learning_rate=0.01)
    if name == "sgd":
        steps = StochasticGradientDescent(name="sgd", learning_rate=0.02, momentum=0.5)
    training, flat = _training(1, task=task, optimiser=steps)
    rows = _rows(1, task, 43)

    before = float(loss(task, torch.from_numpy(predict(flat, rows.features)), rows.targets))
    training.train(60)
    after = float(loss(task, torch.from_numpy(predict(flat, rows.features)), rows.targets))

    assert after < before


def test_predicting_draws_no_dropout_and_is_the_same_in_blocks() -> None:
    """Many rows go through in several blocks and come out as they went in."""
    _, flat = _training(0, dropout=0.5)
    rows = _rows(5, "binary", 5000).features

    whole = predict(flat, rows)

    assert whole.shape == (5000, 1)
    np.testing.assert_array_equal(whole, predict(flat, rows))
    np.testing.assert_allclose(whole[4990:], predict(flat, rows[4990:]), rtol=1e-4, atol=1e-6)


def test_fewer_rows_than_batches_are_told() -> None:
    """With both numbers, and nothing trained."""
    with pytest.raises(DataError, match="4 batches an epoch, and there are 3 training rows"):
        _training(0, rows=3)
